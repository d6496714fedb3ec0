#pragma once

// The forward pass, for two tiles of a row and for rows of the map. The backward pass begins with the same logits.

#include "sums.h"

namespace {

// Where a tile lies, and which one of the two it is.
struct Place {
  int64_t image, head, y, x, count, tile;
};

// Queries of norm 1 of a tile, and scaled ones. Returns 1 / norm of the queries; `length` is the factor of the scaled.
template <class T>
INLINE T tile_queries(const Maps &a, const Place &at, Buffers &u, T *length) {
  constexpr int64_t L = lanes<T>();
  float *unit = u.unit.of(at.tile), *scaled = u.scaled.of(at.tile);
  const float *query = a.query + a.pixel(at.image, at.y, at.x) * a.query_stride + at.head * a.d;
  read_tile<T>(query, a.query_stride, at.count, a.d, unit);
  const T inverse = inverse_norms<T>(unit, a.d);
  const int64_t rows = std::min(at.y + (a.k + 1) / 2, a.H) - std::max<int64_t>(at.y - a.reach, 0);
  *length = load<T>(a.lengths.data() + rows * a.across + at.x) * a.scale[at.head];
  for (int64_t c = 0; c < a.d; ++c) {
    const T own = load<T>(unit + c * L) * inverse;
    store(unit + c * L, own);
    store(scaled + c * L, (own + a.embedding[at.head * a.d + c]) * *length);
  }
  return inverse;
}

// The bias of a tile from x on, (M, lanes). Pixels beyond the row have that of the last one.
template <class T>
INLINE void read_bias(const Maps &a, const float *by_row, int64_t x, float *columns, float *out) {
  constexpr int64_t L = lanes<T>();
  for (int64_t i = 0; i < a.h; ++i, by_row += a.places) {
    float *to = a.whole ? out : columns;
    for (int64_t j = 0; j < a.J; ++j, to += L) {
      const int *place = a.place.data() + j * a.X;
      for (int64_t n = 0; n < L; ++n) {
        const Between &at = a.x[x + n];
        const float first = by_row[place[at.first]];
        to[n] = a.whole ? first : first + at.share * (by_row[place[at.second]] - first);
      }
    }
    for (int64_t j = 0; !a.whole && j < a.w; ++j) {
      const Between &at = a.j[j];
      const T first = load<T>(columns + at.first * L);
      store(out + j * L, first + at.share * (load<T>(columns + at.second * L) - first));
    }
    out += a.w * L;
  }
}

// The rows of the table for a row of the map.
INLINE void read_rows(const Maps &a, int64_t head, int64_t y, Buffers &u) {
  for (int64_t i = 0; i < a.h; ++i)
    std::copy_n(a.table + (head * a.R + a.row[y * a.h + i]) * a.places, a.places, u.by_row.data() + i * a.places);
}

// The logits of the neighbours of a tile, and the weights that are added to theirs.
template <class T>
INLINE void near_logits(const Maps &a, const Place &at, Buffers &u) {
  constexpr int64_t L = lanes<T>();
  float *added = u.added.of(at.tile);
  products<T>(u.unit.of(at.tile), u.tokens.data(), a.d, blocks(a.taps), added);
  for (int64_t t = 0; t < a.taps; ++t)
    store(added + t * L, load<T>(added + t * L) + a.token_bias[at.head * a.taps + t]);
  for (int64_t i = 0; i < a.k; ++i) {
    float *near = u.near.of(at.tile) + i * a.k * L;
    if (!a.has(at.y + i - a.reach)) {
      std::fill_n(near, a.k * L, -INFINITE);
      continue;
    }
    products_of_row<T>(a, u.scaled.of(at.tile), slot(a, u.map_keys, at.y + i - a.reach, a.d) + at.x, near);
    for (int64_t t = 0; t < a.k; ++t) {
      const T beyond = load<T>(a.outside.data() + t * a.across + at.x);
      store(near + t * L, load<T>(near + t * L) + a.bias[(at.head * a.k + i) * a.k + t] + beyond);
    }
  }
}

template <class T>
INLINE T larger(T x, T y) {
  return y > x ? y : x;
}

// The largest of `count` vectors; of none, minus infinity. Four at a time do not wait for each other.
template <class T>
INLINE T largest(const float *x, int64_t count) {
  constexpr int64_t L = lanes<T>();
  T most[4] = {T{} - INFINITE, T{} - INFINITE, T{} - INFINITE, T{} - INFINITE};
  int64_t n = 0;
  for (; n + 4 <= count; n += 4)
    for (int64_t i = 0; i < 4; ++i) most[i] = larger(most[i], load<T>(x + (n + i) * L));
  for (; n < count; ++n) most[0] = larger(most[0], load<T>(x + n * L));
  return larger(larger(most[0], most[1]), larger(most[2], most[3]));
}

// Logits to exponentials of their difference to `most`, in place. Adds them to `sum`, and gives them to `each`.
template <class T, class Each>
INLINE void exponentials(float *logits, int64_t count, T most, T *sum, Each each) {
  for (int64_t m = 0; m < count; ++m) {
    const T weight = exponential(load<T>(logits + m * lanes<T>()) - most);
    *sum += weight;
    store(logits + m * lanes<T>(), weight);
    each(m, weight);
  }
}

template <class T>
INLINE void exponentials(float *logits, int64_t count, T most, T *sum) {
  exponentials<T>(logits, count, most, sum, [](int64_t, T) INLINE_LAMBDA {});
}

// The logits of the pooled tokens, of TILES tiles from x on. `most` becomes the largest of it and of the logits.
template <class T, int TILES>
INLINE void far_logits(const Maps &a, int64_t x, Buffers &u, T *most) {
  constexpr int64_t L = lanes<T>();
  const float *by_row = u.by_row.data();
  for (int64_t t = 0; !a.neighbours && t < TILES; ++t) read_bias<T>(a, by_row, x + t * L, u.columns.data(), u.far.of(t));
  for (int64_t first = 0; first < a.M; first += CHUNK) {
    const int64_t count = std::min(CHUNK, a.M - first);
    const auto logits = [&](auto bias) INLINE_LAMBDA {
      products<T, TILES>(
          u.scaled.data(), u.scaled.step, u.keys.data() + first * a.d, a.d * BLOCK, a.d, blocks(count),
          u.far.data() + first * L, u.far.step, bias);
    };
    if (a.neighbours)
      logits([&](int64_t t, int64_t m) INLINE_LAMBDA {
        return load<T>(by_row + a.bias_at[first + m] + x + t * L);
      });
    else
      logits([&](int64_t t, int64_t m) INLINE_LAMBDA { return load<T>(u.far.of(t) + (first + m) * L); });
    for (int64_t t = 0; t < TILES; ++t) most[t] = larger(most[t], largest<T>(u.far.of(t) + first * L, count));
  }
}

// to[t][c] += sum_m x[t][m] * along[c][m], over `count` pooled tokens from `first` on.
template <class T, int TILES>
INLINE void add_sums(const Maps &a, const Tiles &x, const Numbers &along, int64_t first, int64_t count, Tiles &to) {
  constexpr int64_t L = lanes<T>();
  products<T, TILES>(
      x.data() + first * L, x.step, along.data() + first * BLOCK, a.M * BLOCK, count, blocks(a.d), to.data(), to.step,
      [&](int64_t t, int64_t c) INLINE_LAMBDA { return load<T>(to.of(t) + c * L); });
}

template <class T, int TILES>
INLINE void forward_tiles(
    const Maps &a, int64_t image, int64_t head, int64_t y, int64_t x, Buffers &u, float *out) {
  constexpr int64_t L = lanes<T>();
  Place at[TILES];
  T most[TILES], sum[TILES] = {}, length;
  for (int64_t t = 0; t < TILES; ++t) {
    at[t] = {image, head, y, x + t * L, std::min(L, a.W - x - t * L), t};
    tile_queries(a, at[t], u, &length);
    near_logits<T>(a, at[t], u);
    most[t] = largest<T>(u.near.of(t), a.taps);
    std::fill_n(u.out.of(t), u.out.step, 0.f);
  }
  far_logits<T, TILES>(a, x, u, most);
  for (int64_t t = 0; t < TILES; ++t) exponentials<T>(u.near.of(t), a.taps, most[t], &sum[t]);
  for (int64_t first = 0; first < a.M; first += CHUNK) {
    const int64_t count = std::min(CHUNK, a.M - first);
    for (int64_t t = 0; t < TILES; ++t) exponentials<T>(u.far.of(t) + first * L, count, most[t], &sum[t]);
    add_sums<T, TILES>(a, u.far, u.values_along, first, count, u.out);
  }
  for (int64_t t = 0; t < TILES; ++t) {
    const T inverse = 1 / sum[t];
    float *near = u.near.of(t), *added = u.added.of(t), *of = u.out.of(t);
    for (int64_t c = 0; c < a.d; ++c) store(of + c * L, load<T>(of + c * L) * inverse);
    for (int64_t n = 0; n < a.taps; ++n) store(near + n * L, load<T>(near + n * L) * inverse + load<T>(added + n * L));
    for (int64_t i = 0; i < a.k; ++i)
      if (a.has(y + i - a.reach))
        sums_of_row<T>(a, near + i * a.k * L, L, slot(a, u.map_values, y + i - a.reach, a.d) + at[t].x, 1, of);
    write_tile<T>(of, a.heads * a.d, at[t].count, a.d, out + (a.pixel(image, y, at[t].x) * a.heads + head) * a.d);
  }
}

template <class T>
INLINE void forward_rows(
    const Maps &a, int64_t image, int64_t head, int64_t first, int64_t last, Buffers &u, float *out) {
  constexpr int64_t L = lanes<T>();
  pack_head(a, image, head, false, u);
  for (int64_t y = first - a.reach; y < first + a.reach; ++y) pack_row<T>(a, image, head, y, u);
  for (int64_t y = first; y < last; ++y) {
    pack_row<T>(a, image, head, y + a.reach, u);
    read_rows(a, head, y, u);
    for (int64_t x = 0; x < a.W; x += 2 * L)
      if (x + L < a.W)
        forward_tiles<T, 2>(a, image, head, y, x, u, out);
      else
        forward_tiles<T, 1>(a, image, head, y, x, u, out);
  }
}

}  // namespace
