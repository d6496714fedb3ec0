// The sum over neighbourhoods on the CPU, in float32, and its gradients:
//
//     out[n, c] = sum_j (weights[n, head(c), j] * mul[b(n), j, c] + add[j, c]) * value[n + j, c]
//
// weights: (B, H, W, heads, k * k); value: (B, H, W, heads * d), whose pixels are `stride` apart; mul: (1 or B, k * k,
// heads * d) or null, its images `mul_stride` apart; add: (k * k, heads * d) or null. All other maps are contiguous.
//
// mmattn/ops/elsa_cpu.py calls it.

#include <algorithm>
#include <vector>

#include "vector.h"

namespace {

// Passed by value: of a reference, the compiler would read all members again after each store of a number.
struct Sum {
  const float *weights, *value, *mul, *add;
  int64_t B, H, W, heads, d, k, dilation, stride, mul_stride;
};

struct Gradients {
  const float *out;
  float *weights, *value;
};

// The taps [first, last) of an axis whose neighbour, (tap - k / 2) * step from p, is in the map.
struct Range {
  int64_t first = 0, last;
  Range(int64_t p, int64_t size, int64_t k, int64_t step) : last(k) {
    const auto outside = [&](int64_t tap) { return p + (tap - k / 2) * step < 0 || p + (tap - k / 2) * step >= size; };
    while (outside(first)) ++first;  // the middle is inside
    while (outside(last - 1)) --last;
  }
};

INLINE float total(float x) { return x; }
INLINE float total(Vector x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// The sum at the pixels of a row, for N * sizeof(T) / 4 channels from `c` of a head. With sign 1, `map` is the value
// map. With sign -1 it is the gradient of the output, summed over the queries that a pixel is a neighbour of, which
// gives the gradient of the value.
template <class T, int N, bool MUL, bool ADD>
INLINE void sum_row(
    const Sum s, const float *map, int64_t stride, int sign, float *out, int64_t b, int64_t y, int64_t head,
    int64_t c) {
  constexpr int L = sizeof(T) / sizeof(float);
  const int64_t C = s.heads * s.d, taps = s.k * s.k, middle = s.k / 2, step = sign * s.dilation;
  const Range rows(y, s.H, s.k, step);
  for (int64_t x = 0; x < s.W; ++x) {
    const int64_t pixel = (b * s.H + y) * s.W + x;
    const Range columns(x, s.W, s.k, step);
    T sum[N] = {};
    for (int64_t i = rows.first; i < rows.last; ++i) {
      int64_t tap = i * s.k + columns.first, neighbour = pixel + ((i - middle) * s.W + columns.first - middle) * step;
      const float *weight = s.weights + ((sign > 0 ? pixel : neighbour) * s.heads + head) * taps + tap;
      const float *v = map + neighbour * stride + c;
      const float *mul = s.mul + b * s.mul_stride + tap * C + c, *add = s.add + tap * C + c;
      for (int64_t j = columns.first; j < columns.last; ++j) {
        for (int n = 0; n < N; ++n) {
          T w = T{} + *weight;
          if (MUL) w *= load<T>(mul + n * L);
          if (ADD) w += load<T>(add + n * L);
          sum[n] += w * load<T>(v + n * L);
        }
        weight += sign > 0 ? 1 : step * s.heads * taps + 1;
        v += step * stride;
        if (MUL) mul += C;
        if (ADD) add += C;
      }
    }
    for (int n = 0; n < N; ++n) store<T>(out + pixel * C + c + n * L, sum[n]);
  }
}

// The gradients of weights, and of mul and add summed over a row.
template <class T, int N, bool MUL, bool ADD>
INLINE void weights_row(
    const Sum s, const Gradients g, float *grad_mul, float *grad_add, int64_t b, int64_t y, int64_t head, int64_t c) {
  constexpr int L = sizeof(T) / sizeof(float);
  const int64_t C = s.heads * s.d, taps = s.k * s.k, middle = s.k / 2;
  const Range rows(y, s.H, s.k, s.dilation);
  for (int64_t x = 0; x < s.W; ++x) {
    const int64_t pixel = (b * s.H + y) * s.W + x;
    const Range columns(x, s.W, s.k, s.dilation);
    T grad[N];
    for (int n = 0; n < N; ++n) grad[n] = load<T>(g.out + pixel * C + c + n * L);
    for (int64_t i = rows.first; i < rows.last; ++i) {
      int64_t tap = i * s.k + columns.first, place = tap * C + c;
      const float *weight = s.weights + (pixel * s.heads + head) * taps + tap;
      float *grad_weight = g.weights + (pixel * s.heads + head) * taps + tap;
      const float *v = s.value + (pixel + ((i - middle) * s.W + columns.first - middle) * s.dilation) * s.stride + c;
      const float *mul = s.mul + b * s.mul_stride + place;
      for (int64_t j = columns.first; j < columns.last; ++j) {
        T product = {};
        for (int n = 0; n < N; ++n) {
          T p = grad[n] * load<T>(v + n * L);
          if (ADD) store<T>(grad_add + place + n * L, load<T>(grad_add + place + n * L) + p);
          if (MUL) {
            store<T>(grad_mul + place + n * L, load<T>(grad_mul + place + n * L) + p * *weight);
            p *= load<T>(mul + n * L);
          }
          product += p;
        }
        *grad_weight++ += total(product);
        ++weight;
        v += s.dilation * s.stride;
        place += C;
        if (MUL) mul += C;
      }
    }
  }
}

template <class T, int N, bool MUL, bool ADD>
INLINE void forward_channels(
    const Sum s, float *out, int64_t b, int64_t y, int64_t head, int64_t c) {
  sum_row<T, N, MUL, ADD>(s, s.value, s.stride, 1, out, b, y, head, c);
}

template <class T, int N, bool MUL, bool ADD>
INLINE void backward_channels(
    const Sum s, const Gradients g, float *grad_mul, float *grad_add, int64_t b, int64_t y, int64_t head, int64_t c) {
  weights_row<T, N, MUL, ADD>(s, g, grad_mul, grad_add, b, y, head, c);
  sum_row<T, N, MUL, ADD>(s, g.out, s.heads * s.d, -1, g.value, b, y, head, c);
}

// FUNCTION over all channels of a row, as many at a time as fit.
#define ALL_CHANNELS(FUNCTION, MUL, ADD, ...)                                                 \
  for (int64_t head = 0; head < s.heads; ++head) {                                            \
    int64_t c = head * s.d;                                                                   \
    const int64_t end = c + s.d;                                                              \
    for (; c + 32 <= end; c += 32) FUNCTION<Vector, 4, MUL, ADD>(__VA_ARGS__, b, y, head, c); \
    for (; c + 8 <= end; c += 8) FUNCTION<Vector, 1, MUL, ADD>(__VA_ARGS__, b, y, head, c);   \
    for (; c < end; ++c) FUNCTION<float, 1, MUL, ADD>(__VA_ARGS__, b, y, head, c);            \
  }
#define BY_GHOSTS(FUNCTION, ...)                         \
  if (s.mul && s.add)                                    \
    ALL_CHANNELS(FUNCTION, true, true, __VA_ARGS__)      \
  else if (s.mul)                                        \
    ALL_CHANNELS(FUNCTION, true, false, __VA_ARGS__)     \
  else if (s.add)                                        \
    ALL_CHANNELS(FUNCTION, false, true, __VA_ARGS__)     \
  else                                                   \
    ALL_CHANNELS(FUNCTION, false, false, __VA_ARGS__)

// A row, compiled for one set of instructions, into which everything above is inlined.
#define ROWS(NAME, TARGET)                                                                                      \
  TARGET void forward_##NAME(const Sum s, float *out, int64_t b, int64_t y) {                                   \
    BY_GHOSTS(forward_channels, s, out)                                                                         \
  }                                                                                                             \
  TARGET void backward_##NAME(const Sum s, const Gradients g, float *mul, float *add, int64_t b, int64_t y) {   \
    BY_GHOSTS(backward_channels, s, g, mul, add)                                                                \
  }

ROWS(plain, )
ROWS(avx2, AVX2)
BEST_OF(forward)
BEST_OF(backward)

Sum describe(
    const float *weights, const float *value, const float *mul, const float *add, const int64_t *numbers) {
  Sum s{weights, value, mul, add};
  std::memcpy(&s.B, numbers, 9 * sizeof(int64_t));
  return s;
}

}  // namespace

extern "C" {

// numbers: B, H, W, heads, d, k, dilation, stride, mul_stride.
void neighbourhood_sum(
    const float *weights, const float *value, const float *mul, const float *add, float *out, const int64_t *numbers,
    int threads) {
  const Sum s = describe(weights, value, mul, add, numbers);
#pragma omp parallel for num_threads(threads)
  for (int64_t row = 0; row < s.B * s.H; ++row) forward(s, out, row / s.H, row % s.H);
}

// grad_weights is zero on entry. grad_mul is (1 or B, k * k, heads * d), like mul. Sums over pixels are in float32
// along a row and in float64 over rows.
void neighbourhood_sum_backward(
    const float *weights, const float *value, const float *mul, const float *add, const float *grad,
    float *grad_weights, float *grad_value, float *grad_mul, float *grad_add, const int64_t *numbers, int threads) {
  const Sum s = describe(weights, value, mul, add, numbers);
  const Gradients g{grad, grad_weights, grad_value};
  const int64_t rows = s.B * s.H, size = s.k * s.k * s.heads * s.d;
  const int64_t muls = mul ? (s.mul_stride ? s.B : 1) * size : 0, adds = add ? size : 0;
  std::vector<double> totals(threads * (muls + adds));  // of each thread, so that sums do not depend on their timing
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    double *total_mul = totals.data() + thread * (muls + adds), *total_add = total_mul + muls;
    std::vector<float> row_mul(mul ? size : 0), row_add(adds);
    for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; ++row) {
      std::fill(row_mul.begin(), row_mul.end(), 0.f);
      std::fill(row_add.begin(), row_add.end(), 0.f);
      backward(s, g, row_mul.data(), row_add.data(), row / s.H, row % s.H);
      double *image_mul = total_mul + (s.mul_stride ? row / s.H * size : 0);
      for (size_t i = 0; i < row_mul.size(); ++i) image_mul[i] += row_mul[i];
      for (size_t i = 0; i < row_add.size(); ++i) total_add[i] += row_add[i];
    }
  }
  for (int64_t i = 0; i < muls + adds; ++i) {
    double sum = 0;
    for (int thread = 0; thread < threads; ++thread) sum += totals[thread * (muls + adds) + i];
    (i < muls ? grad_mul[i] : grad_add[i - muls]) = sum;
  }
}

}  // extern "C"
