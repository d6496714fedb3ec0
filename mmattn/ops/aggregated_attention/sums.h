#pragma once

// Sums of products of tiles, over channels, pixels or neighbours.

#include "maps.h"

namespace {

// out[t][m] = first(t, m) + sum_c x[t][c] * y[m][c], of TILES tiles t, for `blocks` of m. y: (blocks, d, BLOCK), `y_step`
// from a block to the next one. x and out of tiles are `x_step` and `out_step` apart. All sums of two tiles would not fit
// into 16 registers: half of them do.
template <class T, int TILES, class First>
INLINE void products(
    const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t d, int64_t blocks, float *out,
    int64_t out_step, First first) {
  constexpr int64_t L = lanes<T>(), SUMS = TILES > 1 && L < WIDEST ? BLOCK / 2 : BLOCK;
  for (int64_t block = 0; block < blocks; ++block, y += y_step)
    for (int64_t from = 0; from < BLOCK; from += SUMS) {
      const int64_t m = block * BLOCK + from;
      T sum[TILES][SUMS];
#pragma GCC unroll 16
      for (int64_t t = 0; t < TILES; ++t)
#pragma GCC unroll 16
        for (int64_t i = 0; i < SUMS; ++i) sum[t][i] = first(t, m + i);
      for (int64_t c = 0; c < d; ++c) {
        T own[TILES];
#pragma GCC unroll 16
        for (int64_t t = 0; t < TILES; ++t) own[t] = load<T>(x + t * x_step + c * L);
#pragma GCC unroll 16
        for (int64_t i = 0; i < SUMS; ++i) {
          const float other = y[c * BLOCK + from + i];
#pragma GCC unroll 16
          for (int64_t t = 0; t < TILES; ++t) sum[t][i] += other * own[t];
        }
      }
#pragma GCC unroll 16
      for (int64_t t = 0; t < TILES; ++t)
#pragma GCC unroll 16
        for (int64_t i = 0; i < SUMS; ++i) store(out + t * out_step + (m + i) * L, sum[t][i]);
    }
}

template <class T>
INLINE void products(const float *x, const float *y, int64_t d, int64_t blocks, float *out) {
  products<T, 1>(x, 0, y, d * BLOCK, d, blocks, out, 0, [](int64_t, int64_t) INLINE_LAMBDA { return T{}; });
}

// As add_outer, for ROWS of m and VECTORS of c.
template <class T, int TILES, int ROWS, int VECTORS>
INLINE void add_outer_rows(
    const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t width, float *out) {
  constexpr int64_t L = lanes<T>();
  T sum[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int64_t i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
    for (int64_t v = 0; v < VECTORS; ++v) sum[i][v] = load<T>(out + i * width + v * L);
  for (int64_t t = 0; t < TILES; ++t)
    for (int64_t n = 0; n < L; ++n) {
      T own[VECTORS];
#pragma GCC unroll 16
      for (int64_t v = 0; v < VECTORS; ++v) own[v] = load<T>(y + t * y_step + n * width + v * L);
#pragma GCC unroll 16
      for (int64_t i = 0; i < ROWS; ++i) {
        const float other = x[t * x_step + i * L + n];
#pragma GCC unroll 16
        for (int64_t v = 0; v < VECTORS; ++v) sum[i][v] += other * own[v];
      }
    }
#pragma GCC unroll 16
  for (int64_t i = 0; i < ROWS; ++i)
#pragma GCC unroll 16
    for (int64_t v = 0; v < VECTORS; ++v) store(out + i * width + v * L, sum[i][v]);
}

template <class T, int TILES, int VECTORS>
INLINE void add_outer_vectors(
    const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t M, int64_t width, float *out) {
  constexpr int64_t L = lanes<T>(), ROWS = BLOCK / VECTORS;
  int64_t m = 0;
  for (; m + ROWS <= M; m += ROWS)
    add_outer_rows<T, TILES, ROWS, VECTORS>(x + m * L, x_step, y, y_step, width, out + m * width);
  for (; m < M; ++m) add_outer_rows<T, TILES, 1, VECTORS>(x + m * L, x_step, y, y_step, width, out + m * width);
}

// out[m][c] += sum_n x[m][n] * y[n][c], over the pixels n of TILES tiles, for c < d. y of a tile: (lanes, width); out:
// (M, width).
template <class T, int TILES>
INLINE void add_outer(
    const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t M, int64_t d, int64_t width, float *out) {
  constexpr int64_t L = lanes<T>();
  int64_t c = 0;
  for (; c + 2 * L < d; c += 3 * L) add_outer_vectors<T, TILES, 3>(x, x_step, y + c, y_step, M, width, out + c);
  for (; c + L < d; c += 2 * L) add_outer_vectors<T, TILES, 2>(x, x_step, y + c, y_step, M, width, out + c);
  for (; c < d; c += L) add_outer_vectors<T, TILES, 1>(x, x_step, y + c, y_step, M, width, out + c);
}

// out[t] = sum_c x[c] * row[c][t], for neighbours t in a packed row.
template <class T, int TAPS>
INLINE void products_of_taps(const float *x, const float *row, int64_t pitch, int64_t d, float *out) {
  T sum[TAPS] = {};
  for (int64_t c = 0; c < d; ++c, row += pitch) {
    const T own = load<T>(x + c * lanes<T>());
    for (int64_t t = 0; t < TAPS; ++t) sum[t] += own * load<T>(row + t);
  }
  for (int64_t t = 0; t < TAPS; ++t) store(out + t * lanes<T>(), sum[t]);
}

template <class T>
INLINE void products_of_row(const Maps &a, const float *x, const float *row, float *out) {
  int64_t t = 0;
  for (; t + 3 <= a.k; t += 3) products_of_taps<T, 3>(x, row + t, a.pitch, a.d, out + t * lanes<T>());
  for (; t < a.k; ++t) products_of_taps<T, 1>(x, row + t, a.pitch, a.d, out + t * lanes<T>());
}

// out[c] += sum_t weights[t] * row[c][t], for neighbours t in a packed row. Weights are `step` apart, and neighbours
// `direction`.
template <class T, int TAPS>
INLINE void sums_of_taps(
    const float *weights, int64_t step, const float *row, int64_t direction, int64_t pitch, int64_t d, float *out) {
  T own[TAPS];
  for (int64_t t = 0; t < TAPS; ++t) own[t] = load<T>(weights + t * step);
  for (int64_t c = 0; c < d; ++c, row += pitch) {
    T sum = load<T>(out + c * lanes<T>());
    for (int64_t t = 0; t < TAPS; ++t) sum += own[t] * load<T>(row + t * direction);
    store(out + c * lanes<T>(), sum);
  }
}

template <class T>
INLINE void sums_of_row(
    const Maps &a, const float *weights, int64_t step, const float *row, int64_t direction, float *out) {
  int64_t t = 0;
  for (; t + 3 <= a.k; t += 3)
    sums_of_taps<T, 3>(weights + t * step, step, row + t * direction, direction, a.pitch, a.d, out);
  for (; t < a.k; ++t)
    sums_of_taps<T, 1>(weights + t * step, step, row + t * direction, direction, a.pitch, a.d, out);
}

}  // namespace
