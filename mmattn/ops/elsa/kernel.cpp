// The sum over neighbourhoods on the CPU, in float32, and its gradients:
//
//     out[n, c] = sum_j (weights[n, head(c), j] * mul[b(n), j, c] + add[j, c]) * value[n + j, c]
//
// weights: (B, H, W, heads, k * k); value: (B, H, W, heads * d), whose pixels are `stride` apart; mul: (1 or B, k * k,
// heads * d) or null, its images `mul_stride` apart; add: (k * k, heads * d) or null. All other maps are contiguous.
//
// cpp.py calls it.

#include <algorithm>
#include <vector>

#include "../vector.h"

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
INLINE float total(WideVector x) { return total(halved(x)); }

// Adds the totals of x to four numbers that are `step` apart.
template <class T>
INLINE void add_totals(const T *x, float *to, int64_t step) {
  const Vector a = halved(x[0]), b = halved(x[1]), c = halved(x[2]), d = halved(x[3]);
  const Vector ab = SHUFFLE(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + SHUFFLE(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  const Vector cd = SHUFFLE(c, d, 0, 8, 2, 10, 4, 12, 6, 14) + SHUFFLE(c, d, 1, 9, 3, 11, 5, 13, 7, 15);
  const Vector sums = SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  for (int i = 0; i < 4; ++i) to[i * step] += sums[i] + sums[i + 4];
}

// FUNCTION at all pixels x of a row, for the taps of `columns`: at PIXELS of them at a time, of which all neighbours are
// in the row and which share the ghosts once these are loaded, else at one.
#define ALL_PIXELS(FUNCTION, STEP, ...)                                                                           \
  {                                                                                                               \
    const int64_t reach = s.k / 2 * s.dilation;                                                                   \
    int64_t x = 0;                                                                                                \
    while (x < s.W)                                                                                               \
      if (x >= reach && x + PIXELS + reach <= s.W) {                                                              \
        FUNCTION<T, N, PIXELS, MUL, ADD>(__VA_ARGS__, rows, Range(x, s.W, s.k, STEP), b, y, x, head, c);          \
        x += PIXELS;                                                                                              \
      } else {                                                                                                    \
        FUNCTION<T, N, 1, MUL, ADD>(__VA_ARGS__, rows, Range(x, s.W, s.k, STEP), b, y, x, head, c);               \
        ++x;                                                                                                      \
      }                                                                                                           \
  }

// The sum at P pixels of a row, for N vectors of channels from `c` of a head. With sign 1, `map` is the value map. With
// sign -1 it is the gradient of the output, summed over the queries that a pixel is a neighbour of, which gives the
// gradient of the value.
template <class T, int N, int P, bool MUL, bool ADD>
INLINE void sum_pixels(
    const Sum s, const float *map, int64_t stride, int sign, float *out, Range rows, Range columns, int64_t b,
    int64_t y, int64_t x, int64_t head, int64_t c) {
  constexpr int64_t L = lanes<T>();
  const int64_t C = s.heads * s.d, taps = s.k * s.k, middle = s.k / 2, step = sign * s.dilation;
  const int64_t pixel = (b * s.H + y) * s.W + x, next = s.heads * taps;
  T sum[P][N] = {};
  for (int64_t i = rows.first; i < rows.last; ++i) {
    int64_t tap = i * s.k + columns.first, neighbour = pixel + ((i - middle) * s.W + columns.first - middle) * step;
    const float *weight = s.weights + ((sign > 0 ? pixel : neighbour) * s.heads + head) * taps + tap;
    const float *v = map + neighbour * stride + c;
    const float *mul = s.mul + b * s.mul_stride + tap * C + c, *add = s.add + tap * C + c;
    for (int64_t j = columns.first; j < columns.last; ++j) {
      for (int64_t n = 0; n < N; ++n) {
        const T m = MUL ? load<T>(mul + n * L) : T{}, a = ADD ? load<T>(add + n * L) : T{};
        for (int64_t p = 0; p < P; ++p) {
          T w = T{} + weight[p * next];
          if (MUL) w *= m;
          if (ADD) w += a;
          sum[p][n] += w * load<T>(v + p * stride + n * L);
        }
      }
      weight += sign > 0 ? 1 : step * next + 1;
      v += step * stride;
      if (MUL) mul += C;
      if (ADD) add += C;
    }
  }
  for (int64_t p = 0; p < P; ++p)
    for (int64_t n = 0; n < N; ++n) store<T>(out + (pixel + p) * C + c + n * L, sum[p][n]);
}

// The gradients of the weights of P pixels, and their parts of those of mul and add.
template <class T, int N, int P, bool MUL, bool ADD>
INLINE void weights_pixels(
    const Sum s, const Gradients g, float *grad_mul, float *grad_add, Range rows, Range columns, int64_t b, int64_t y,
    int64_t x, int64_t head, int64_t c) {
  constexpr int64_t L = lanes<T>();
  const int64_t C = s.heads * s.d, taps = s.k * s.k, middle = s.k / 2;
  const int64_t pixel = (b * s.H + y) * s.W + x, next = s.heads * taps;
  T grad[P][N];
  for (int64_t p = 0; p < P; ++p)
    for (int64_t n = 0; n < N; ++n) grad[p][n] = load<T>(g.out + (pixel + p) * C + c + n * L);
  for (int64_t i = rows.first; i < rows.last; ++i) {
    int64_t tap = i * s.k + columns.first, place = tap * C + c;
    const float *weight = s.weights + (pixel * s.heads + head) * taps + tap;
    float *grad_weight = g.weights + (pixel * s.heads + head) * taps + tap;
    const float *v = s.value + (pixel + ((i - middle) * s.W + columns.first - middle) * s.dilation) * s.stride + c;
    const float *mul = s.mul + b * s.mul_stride + place;
    for (int64_t j = columns.first; j < columns.last; ++j) {
      T product[P] = {};
      for (int64_t n = 0; n < N; ++n) {
        const T m = MUL ? load<T>(mul + n * L) : T{};
        T of_mul = {}, of_add = {};
        for (int64_t p = 0; p < P; ++p) {
          const T share = grad[p][n] * load<T>(v + p * s.stride + n * L);
          if (ADD) of_add += share;
          if (MUL) of_mul += share * weight[p * next];
          product[p] += MUL ? share * m : share;
        }
        float *to_mul = grad_mul + place + n * L, *to_add = grad_add + place + n * L;
        if (MUL) store<T>(to_mul, load<T>(to_mul) + of_mul);
        if (ADD) store<T>(to_add, load<T>(to_add) + of_add);
      }
      if constexpr (P == 4)
        add_totals(product, grad_weight, next);
      else
        for (int64_t p = 0; p < P; ++p) grad_weight[p * next] += total(product[p]);
      ++grad_weight;
      ++weight;
      v += s.dilation * s.stride;
      place += C;
      if (MUL) mul += C;
    }
  }
}

template <class T, int N, int PIXELS, bool MUL, bool ADD>
INLINE void forward_channels(
    const Sum s, float *out, int64_t b, int64_t y, int64_t head, int64_t c) {
  const Range rows(y, s.H, s.k, s.dilation);
  ALL_PIXELS(sum_pixels, s.dilation, s, s.value, s.stride, 1, out)
}

template <class T, int N, int PIXELS, bool MUL, bool ADD>
INLINE void backward_channels(
    const Sum s, const Gradients g, float *grad_mul, float *grad_add, int64_t b, int64_t y, int64_t head, int64_t c) {
  {
    const Range rows(y, s.H, s.k, s.dilation);
    ALL_PIXELS(weights_pixels, s.dilation, s, g, grad_mul, grad_add)
  }
  const Range rows(y, s.H, s.k, -s.dilation);
  ALL_PIXELS(sum_pixels, -s.dilation, s, g.out, s.heads * s.d, -1, g.value)
}

// FUNCTION over all channels of a row, as many at a time as fit.
#define ALL_CHANNELS(FUNCTION, MUL, ADD, ...)                                                           \
  for (int64_t head = 0; head < s.heads; ++head) {                                                      \
    int64_t c = head * s.d;                                                                             \
    const int64_t end = c + s.d;                                                                        \
    for (; c + 32 <= end; c += 32)                                                                      \
      FUNCTION<T, 32 / lanes<T>(), lanes<T>() / 4, MUL, ADD>(__VA_ARGS__, b, y, head, c);               \
    for (; c + 8 <= end; c += 8) FUNCTION<Vector, 1, 1, MUL, ADD>(__VA_ARGS__, b, y, head, c);          \
    for (; c < end; ++c) FUNCTION<float, 1, 1, MUL, ADD>(__VA_ARGS__, b, y, head, c);                   \
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

// A row, compiled for one set of instructions and its vectors, into which everything above is inlined.
#define ROWS(NAME, TARGET, VECTOR)                                                                              \
  TARGET void forward_##NAME(const Sum s, float *out, int64_t b, int64_t y) {                                   \
    using T = VECTOR;                                                                                           \
    BY_GHOSTS(forward_channels, s, out)                                                                         \
  }                                                                                                             \
  TARGET void backward_##NAME(const Sum s, const Gradients g, float *mul, float *add, int64_t b, int64_t y) {   \
    using T = VECTOR;                                                                                           \
    BY_GHOSTS(backward_channels, s, g, mul, add)                                                                \
  }

ROWS(plain, , Vector)
ROWS(avx2, AVX2, Vector)
ROWS(avx512, AVX512, WideVector)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)

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
