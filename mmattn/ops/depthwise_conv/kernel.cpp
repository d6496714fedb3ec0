// The gradients of the filters and of the bias of a depth-wise convolution of a map of tokens on the CPU:
//
//     grad_weight[c, j] = sum_n grad[n, c] * x[n + j, c],    grad_bias[c] = sum_n grad[n, c]
//
// over the pixels n of all images, for the k x k neighbours j of a pixel; x is zero outside the map. grad, x: (B, H, W,
// C) in float32 or bfloat16, whose pixels are `..._stride` apart; grad_weight: (C, k, k) and grad_bias: (C) in float32;
// k is 3, 5 or 7.
//
// A vector holds channels. Some rows of both maps are packed for one vector of channels, those of x with zeros around
// them. The sums of as many rows of taps as the registers hold are computed at a time.
//
// __init__.py calls it.

#include <algorithm>
#include <memory>
#include <vector>

#include "../vector.h"

namespace {

constexpr int64_t CHANNELS = 64;  // of a task: neighbours in memory, to be read together
constexpr int64_t PIXELS = 512;   // of a tile, about: with these channels of both maps, it fits the second cache
constexpr int64_t SUMMED = 256;   // pixels, and up to a tile more, that are summed in float32
constexpr int64_t PART = 4096;    // pixels, about, whose sums are one task's

typedef float NarrowVector __attribute__((vector_size(16)));  // 4 numbers

// As many numbers of 16 bits and of 32 bits as in a vector T.
template <class T>
struct Integers;
template <>
struct Integers<NarrowVector> {
  typedef uint16_t Halves __attribute__((vector_size(8)));
  typedef uint32_t Words __attribute__((vector_size(16)));
};
template <>
struct Integers<Vector> {
  typedef uint16_t Halves __attribute__((vector_size(16)));
  typedef uint32_t Words __attribute__((vector_size(32)));
};
template <>
struct Integers<WideVector> {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  typedef uint32_t Words __attribute__((vector_size(64)));
};

int64_t quotient(int64_t size, int64_t part) { return (size + part - 1) / part; }  // rounded up

struct Convolution {
  const void *grad, *x;
  int64_t B, H, W, C, k, grad_stride, x_stride, half;
};

// How the work is divided. It does not depend on the number of threads, and so the roundings of sums do not.
struct Layout {
  int64_t height, row_tiles, tiles;  // rows of a tile; tiles of an image, and of all images
  int64_t parts, groups;             // of the tiles, and of the channels; a task is a part of a group
  int64_t sums;                      // of a channel
  Layout(const Convolution &c)
      : height(std::min(std::max<int64_t>(PIXELS / c.W, 1), c.H)), row_tiles(quotient(c.H, height)),
        tiles(c.B * row_tiles), parts(std::min(quotient(c.B * c.H * c.W, PART), tiles)),
        groups(quotient(c.C, CHANNELS)), sums(c.k * c.k + 1) {}
};

// Room for vectors, which std::vector does not align.
template <class T>
struct Buffer {
  std::unique_ptr<char[]> memory;
  T *data;
  Buffer(int64_t size) : memory(new char[(size + 1) * sizeof(T)]) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(memory.get());
    data = reinterpret_cast<T *>((first + sizeof(T) - 1) / sizeof(T) * sizeof(T));
  }
};

// Numbers as a vector of float32.
template <class T>
INLINE T widened(const float *p) { return load<T>(p); }

template <class T>
INLINE T widened(const uint16_t *p) {  // bfloat16 is the upper half of float32
  typename Integers<T>::Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  return (T)(__builtin_convertvector(halves, typename Integers<T>::Words) << 16);
}

// A row of W pixels, `stride` apart, to planes of a vector of channels each.
template <class T, class Number>
INLINE void pack_row(const Number *pixels, int64_t stride, int64_t channels, int64_t W, T *row, int64_t plane) {
  constexpr int64_t L = lanes<T>();
  const int64_t whole = channels / L * L;
  for (int64_t n = 0; n < W; ++n, pixels += stride) {
    T *to = row + n;
    for (int64_t i = 0; i < whole; i += L, to += plane) *to = widened<T>(pixels + i);
    if (whole == channels) continue;
    Number rest[L] = {};
    std::copy_n(pixels + whole, channels - whole, rest);
    *to = widened<T>(rest);
  }
}

// sums[r][j] += sum_n grad[n] * x[n + r, j], for R rows of K taps and all pixels n of a tile. If `BIAS`, the sum of
// grad is added to the one before them.
template <class T, int R, int K, bool BIAS>
INLINE void add_products(const T *grad, const T *x, int64_t height, int64_t W, T *sums) {
  const int64_t pitch = W + K - 1;
  T sum[R][K], bias = sums[-1];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < K; ++j) sum[r][j] = sums[r * K + j];
  for (int64_t y = 0; y < height; ++y, x += K - 1)
    for (int64_t n = 0; n < W; ++n, ++grad, ++x) {
      const T g = *grad;
      if (BIAS) bias += g;
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < K; ++j) sum[r][j] += g * x[r * pitch + j];
      // GCC would keep what it loaded for the next pixel, and have no registers for the sums.
      asm volatile("" ::: "memory");
    }
  if (BIAS) sums[-1] = bias;
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < K; ++j) sums[r * K + j] = sum[r][j];
}

// totals: (vectors of channels, 1 + k * k, L), zero on entry.
template <class T, class Number, int K>
INLINE void sum_task(const Convolution &c, const Layout &l, int64_t group, int64_t part, double *totals) {
  constexpr int64_t L = lanes<T>(), MARGIN = K / 2, REGISTERS = sizeof(T) == 64 ? 32 : 16;
  constexpr int ROWS = std::min<int64_t>(K, (REGISTERS - 3) / K), REST = K % ROWS;  // of taps at a time
  const int64_t pitch = c.W + 2 * MARGIN, plane = (l.height + 2 * MARGIN) * pitch, grad_plane = l.height * c.W;
  const int64_t first = group * CHANNELS, channels = std::min(CHANNELS, c.C - first), vectors = quotient(channels, L);
  const Buffer<T> planes(vectors * plane), grads(vectors * grad_plane), sums(vectors * l.sums);
  std::fill_n(planes.data, vectors * plane, T{});  // the margins
  std::fill_n(sums.data, vectors * l.sums, T{});
  const Number *x = static_cast<const Number *>(c.x) + first, *grad = static_cast<const Number *>(c.grad) + first;
  int64_t summed = 0;
  for (int64_t tile = l.tiles * part / l.parts, last = l.tiles * (part + 1) / l.parts; tile < last; ++tile) {
    const int64_t b = tile / l.row_tiles, y = tile % l.row_tiles * l.height, height = std::min(l.height, c.H - y);
    for (int64_t i = 0; i < height + 2 * MARGIN; ++i) {
      const int64_t row = y + i - MARGIN;
      T *to = planes.data + i * pitch + MARGIN;
      if (row >= 0 && row < c.H)
        pack_row(x + (b * c.H + row) * c.W * c.x_stride, c.x_stride, channels, c.W, to, plane);
      else
        for (int64_t v = 0; v < vectors; ++v) std::fill_n(to + v * plane, c.W, T{});
    }
    const Number *pixels = grad + (b * c.H + y) * c.W * c.grad_stride;
    pack_row(pixels, c.grad_stride, channels, height * c.W, grads.data, grad_plane);
    for (int64_t v = 0; v < vectors; ++v) {
      const T *own = planes.data + v * plane, *own_grads = grads.data + v * grad_plane;
      T *sum = sums.data + v * l.sums + 1;
      add_products<T, ROWS, K, true>(own_grads, own, height, c.W, sum);
      int64_t i = ROWS;
      for (; i + ROWS <= K; i += ROWS)
        add_products<T, ROWS, K, false>(own_grads, own + i * pitch, height, c.W, sum + i * K);
      if constexpr (REST) add_products<T, REST, K, false>(own_grads, own + i * pitch, height, c.W, sum + i * K);
    }
    summed += height * c.W;
    if (summed < SUMMED && tile + 1 < last) continue;
    for (int64_t i = 0; i < vectors * l.sums; ++i)
      for (int64_t n = 0; n < L; ++n) totals[i * L + n] += sums.data[i][n];
    std::fill_n(sums.data, vectors * l.sums, T{});
    summed = 0;
  }
}

template <class T, class Number>
INLINE void sum_by_size(const Convolution &c, const Layout &l, int64_t group, int64_t part, double *totals) {
  if (c.k == 3)
    sum_task<T, Number, 3>(c, l, group, part, totals);
  else if (c.k == 5)
    sum_task<T, Number, 5>(c, l, group, part, totals);
  else
    sum_task<T, Number, 7>(c, l, group, part, totals);
}

// A task, compiled for one set of instructions, into which everything above is inlined.
#define TASK(NAME, TARGET, T)                                                                                  \
  TARGET void task_##NAME(const Convolution &c, const Layout &l, int64_t group, int64_t part, double *totals) { \
    if (c.half)                                                                                                \
      sum_by_size<T, uint16_t>(c, l, group, part, totals);                                                     \
    else                                                                                                       \
      sum_by_size<T, float>(c, l, group, part, totals);                                                        \
  }

TASK(plain, , NarrowVector)
TASK(avx2, AVX2, Vector)
TASK(avx512, AVX512, WideVector)
BEST_OF_ALL(task)

const int64_t LANES = HAS_AVX512 ? 16 : HAS_AVX2 ? 8 : 4;

}  // namespace

extern "C" {

// numbers: B, H, W, C, k, grad_stride, x_stride, and 1 for bfloat16, 0 for float32.
void depthwise_conv_weight_backward(
    const void *grad, const void *x, float *grad_weight, float *grad_bias, const int64_t *numbers, int threads) {
  Convolution c{grad, x};
  std::memcpy(&c.B, numbers, 8 * sizeof(int64_t));
  const Layout l(c);
  const int64_t size = CHANNELS * l.sums;
  std::vector<double> totals(l.parts * l.groups * size);
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < l.parts * l.groups; ++i) task(c, l, i % l.groups, i / l.groups, totals.data() + i * size);
  for (int64_t channel = 0; channel < c.C; ++channel)
    for (int64_t j = 0; j < l.sums; ++j) {
      const int64_t own = channel % CHANNELS / LANES * LANES * l.sums + j * LANES + channel % LANES;
      double total = 0;
      for (int64_t part = 0; part < l.parts; ++part)
        total += totals[(part * l.groups + channel / CHANNELS) * size + own];
      (j ? grad_weight[channel * (l.sums - 1) + j - 1] : grad_bias[channel]) = total;
    }
}

}  // extern "C"
