// A grouped convolution of a map of tokens on the CPU, in float32, and its gradients:
//
//     out[n, c] = bias[c] + sum_ji weight[c, i, j] * x[n + j, first(c) + i]
//
// over the k x k neighbours j of a pixel n and the `width` channels i of the group of c, which begins at first(c); x is
// zero outside the map. x: (B, H, W, C), whose pixels are `stride` apart; weight: (C, width, k, k); bias: (C) or null;
// width is a multiple of 4. All other maps are contiguous.
//
// A block of channels, and of rows of an image or of several images, is packed: each channel is a plane of rows, with
// zeros between and around them. Then the neighbours of a vector of pixels are a vector, too, at the same distance for
// all pixels.
//
// __init__.py calls it.

#include <algorithm>
#include <numeric>
#include <vector>

#include "../vector.h"

namespace {

constexpr int64_t BLOCK = 8;      // pixels and channels that are transposed at a time
constexpr int64_t FEW = 4;        // channels whose sums are in registers
constexpr int64_t CHANNELS = 16;  // of a block, or one group if that is wider: a line of the cache
constexpr int64_t PIXELS = 4096;  // of a block, about: its planes fit into the second cache
constexpr int64_t SUMMED = 256;   // vectors of pixels that are summed in float32

typedef float NarrowVector __attribute__((vector_size(16)));  // 4 numbers: wider ones would not stay in registers

int64_t quotient(int64_t size, int64_t part) { return (size + part - 1) / part; }  // rounded up

struct Convolution {
  const float *x, *weight, *bias;
  int64_t B, H, W, C, width, k, dilation, stride;
};

// How maps are divided into blocks, and how planes are laid out for vectors of L numbers.
struct Layout {
  int64_t rows, columns;  // taps beside the middle one, on each side, that reach a pixel of the map
  int64_t above, left;    // margins that they need
  int64_t channels, channel_blocks;
  int64_t height, row_blocks;  // rows of a block; blocks of an image
  int64_t images, blocks;      // images of a block, one unless it holds all their rows; blocks of all images
  int64_t parts;               // of the blocks, for threads
  int64_t pitch, image, plane;         // numbers from row to row, from image to image and from channel to channel
  std::vector<int64_t> starts;         // of vectors that hold all pixels of a block
  std::vector<int64_t> taps, offsets;  // the taps that reach a pixel, and how far they are from it, margins included

  Layout(const Convolution &c, int64_t L, int64_t threads)
      : rows(std::min(c.k / 2, (c.H - 1) / c.dilation)), columns(std::min(c.k / 2, (c.W - 1) / c.dilation)),
        above(rows * c.dilation), left(columns * c.dilation) {
    channels = std::max<int64_t>(CHANNELS / c.width, 1) * c.width;
    channel_blocks = quotient(c.C, channels);
    parts = threads / std::gcd(threads, channel_blocks);  // so that threads can have the same number of them
    height = std::max<int64_t>({PIXELS / c.W, 2 * above, 1});
    height = quotient(c.H, std::min(std::max(quotient(c.H, height), quotient(parts, c.B)), c.H));
    row_blocks = quotient(c.H, height);
    images = row_blocks > 1 ? 1 : std::max<int64_t>(std::min(PIXELS / (c.H * c.W), c.B / parts), 1);
    images = quotient(c.B, quotient(c.B, images));
    blocks = quotient(c.B, images) * row_blocks;
    parts = std::min(parts, blocks);
    pitch = c.W + left;
    image = (height + 2 * above) * pitch + left + L;
    plane = images * image;
    for (int64_t first = 0; first < plane; first += image)
      if (quotient(c.W, L) * L <= pitch) {  // vectors begin with the rows
        for (int64_t y = 0; y < height; ++y)
          for (int64_t x = 0; x < c.W; x += L) starts.push_back(first + y * pitch + x);
      } else {  // fewer vectors run over the ends of rows
        for (int64_t n = 0; n < height * pitch - left; n += L) starts.push_back(first + n);
      }
    for (int64_t i = -rows; i <= rows; ++i)
      for (int64_t j = -columns; j <= columns; ++j) {
        taps.push_back((c.k / 2 + i) * c.k + c.k / 2 + j);
        offsets.push_back((above + i * c.dilation) * pitch + left + j * c.dilation);
      }
  }
};

// A block: its first channel, image and row, and how many of them there are.
struct Block {
  int64_t channel, channels, b, images, y, height, vectors;
  Block(const Convolution &c, const Layout &l, int64_t channel_block, int64_t block)
      : channel(channel_block * l.channels), channels(std::min(l.channels, c.C - channel)),
        b(block / l.row_blocks * l.images), images(std::min(l.images, c.B - b)), y(block % l.row_blocks * l.height),
        height(std::min(l.height, c.H - y)), vectors(l.starts.size() / l.images * images) {}
};

// A row of pixels, `stride` apart, from or to planes.
template <bool PACK, class P, class Q>
INLINE void transpose_row(P *pixels, int64_t stride, Q *planes, int64_t plane, int64_t channels, int64_t W) {
  for (int64_t x = 0; x < W; x += BLOCK)
    for (int64_t c = 0; c < channels; c += BLOCK) {
      P *pixel = pixels + x * stride + c;
      Q *row = planes + c * plane + x;
      if (x + BLOCK > W || c + BLOCK > channels) {
        for (int64_t n = 0; n < std::min(BLOCK, W - x); ++n)
          for (int64_t i = 0; i < std::min(BLOCK, channels - c); ++i)
            if constexpr (PACK)
              row[i * plane + n] = pixel[n * stride + i];
            else
              pixel[n * stride + i] = row[i * plane + n];
        continue;
      }
      Vector v[BLOCK];
      for (int64_t n = 0; n < BLOCK; ++n) v[n] = load<Vector>(PACK ? pixel + n * stride : row + n * plane);
      transpose(v);
      for (int64_t n = 0; n < BLOCK; ++n)
        if constexpr (PACK)
          store(row + n * plane, v[n]);
        else
          store(pixel + n * stride, v[n]);
    }
}

// A block of a map, whose pixels are `stride` apart, to planes, with `margin` rows above and below it; zeros outside of
// the map.
INLINE void pack(
    const Convolution &c, const Layout &l, const Block &block, const float *map, int64_t stride, int64_t margin,
    float *planes) {
  for (int64_t b = 0; b < block.images; ++b)
    for (int64_t i = 0; i < l.height + 2 * margin; ++i) {
      const int64_t y = block.y + i - margin;
      float *row = planes + b * l.image + i * l.pitch;
      if (y >= 0 && y < c.H) {
        const float *pixels = map + ((block.b + b) * c.H + y) * c.W * stride + block.channel;
        transpose_row<true>(pixels, stride, row, l.plane, block.channels, c.W);
      } else {
        for (int64_t n = 0; n < block.channels; ++n) std::fill_n(row + n * l.plane, c.W, 0.f);
      }
    }
}

INLINE void unpack(const Convolution &c, const Layout &l, const Block &block, const float *planes, float *map) {
  for (int64_t b = 0; b < block.images; ++b)
    for (int64_t y = 0; y < block.height; ++y) {
      float *pixels = map + ((block.b + b) * c.H + block.y + y) * c.W * c.C + block.channel;
      transpose_row<false>(pixels, c.C, planes + b * l.image + y * l.pitch, l.plane, block.channels, c.W);
    }
}

// The weights of a block of channels, as (channels / FEW, taps, width, FEW). If `mirrored`, those of the gradient of x:
// inputs are exchanged with outputs, and taps with those on the other side of the middle.
INLINE void pack_weights(
    const Convolution &c, const Layout &l, const Block &block, bool mirrored, float *weights) {
  const int64_t taps = l.taps.size(), all = c.k * c.k;
  for (int64_t o = 0; o < block.channels; ++o)
    for (int64_t i = 0; i < c.width; ++i) {
      const int64_t first = block.channel + o / c.width * c.width, inside = o % c.width;
      const float *from = c.weight + (mirrored ? (first + i) * c.width + inside : (first + inside) * c.width + i) * all;
      float *to = weights + (o / FEW * taps * c.width + i) * FEW + o % FEW;
      for (int64_t j = 0; j < taps; ++j) to[j * c.width * FEW] = from[l.taps[mirrored ? taps - 1 - j : j]];
    }
}

// What one thread works on.
struct Buffers {
  std::vector<float> weights, planes, sums, pixels;
  std::vector<int64_t> offsets;  // of the taps, and of the channels of a group within them
  Buffers(const Convolution &c, const Layout &l, bool backward)
      : weights(l.channels * c.width * l.taps.size()), planes(l.channels * l.plane), sums(l.channels * l.plane),
        pixels(backward ? l.channels * l.plane : 0) {
    for (const int64_t offset : l.offsets)
      for (int64_t i = 0; i < c.width; ++i) offsets.push_back(i * l.plane + offset);
  }
};

// out[c] = bias[c] + sum_j weights[j][c] * x[offsets[j]], for FEW channels c and N vectors of pixels.
template <class T, int N>
INLINE void convolve(
    const float *x, const int64_t *starts, const std::vector<int64_t> &offsets, const float *weights, const float *bias,
    float *out, int64_t plane) {
  T sum[FEW][N];
  for (int64_t c = 0; c < FEW; ++c)
    for (int64_t n = 0; n < N; ++n) sum[c][n] = T{} + (bias ? bias[c] : 0.f);
  for (const int64_t offset : offsets) {
    T pixels[N];
    for (int64_t n = 0; n < N; ++n) pixels[n] = load<T>(x + starts[n] + offset);
    for (int64_t c = 0; c < FEW; ++c)
      for (int64_t n = 0; n < N; ++n) sum[c][n] += weights[c] * pixels[n];
    weights += FEW;
  }
  for (int64_t c = 0; c < FEW; ++c)
    for (int64_t n = 0; n < N; ++n) store(out + c * plane + starts[n], sum[c][n]);
}

// The convolution of a block that is in u.planes.
template <class T, int N>
INLINE void convolve_block(
    const Convolution &c, const Layout &l, const Block &block, Buffers &u, const float *bias, float *out) {
  for (int64_t o = 0; o < block.channels; o += FEW) {
    const float *x = u.planes.data() + o / c.width * c.width * l.plane;
    const float *weights = u.weights.data() + o * u.offsets.size();
    const float *own = bias ? bias + block.channel + o : nullptr;
    float *sums = u.sums.data() + o * l.plane;
    int64_t n = 0;
    for (; n + N <= block.vectors; n += N) convolve<T, N>(x, &l.starts[n], u.offsets, weights, own, sums, l.plane);
    for (; n < block.vectors; ++n) convolve<T, 1>(x, &l.starts[n], u.offsets, weights, own, sums, l.plane);
  }
  unpack(c, l, block, u.sums.data(), out);
}

INLINE Vector halved(NarrowVector x) { return Vector{x[0], x[1], x[2], x[3]}; }

// totals[n] += the sum of the numbers in x[n], for 8 vectors.
template <class T>
INLINE void add_totals(const T *x, double *totals) {
  Vector y[8];
  for (int n = 0; n < 8; ++n) y[n] = halved(x[n]);
  transpose(y);
  const Vector sum = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
  for (int n = 0; n < 8; ++n) totals[n] += sum[n];
}

// totals[i][c] += sum_n x[i][n] * grad[c][n], for N channels i, FEW channels c and all pixels n of a block.
template <class T, int N>
INLINE void products(
    const float *x, const float *grad, int64_t plane, const int64_t *starts, int64_t vectors, double *totals) {
  for (int64_t first = 0; first < vectors; first += SUMMED) {
    T sum[N][FEW] = {};
    for (int64_t n = first; n < std::min(first + SUMMED, vectors); ++n) {
      T g[FEW];
      for (int64_t c = 0; c < FEW; ++c) g[c] = load<T>(grad + c * plane + starts[n]);
      for (int64_t i = 0; i < N; ++i) {
        const T pixels = load<T>(x + i * plane + starts[n]);
        for (int64_t c = 0; c < FEW; ++c) sum[i][c] += pixels * g[c];
      }
    }
    for (int64_t i = 0; i < N * FEW; i += 8) add_totals(&sum[0][0] + i, totals + i);
  }
}

template <class T, int N>
INLINE void forward_part(const Convolution &c, const Layout &l, float *out, int64_t channel_block, int64_t part) {
  Buffers u(c, l, false);
  pack_weights(c, l, Block(c, l, channel_block, 0), false, u.weights.data());
  for (int64_t n = l.blocks * part / l.parts; n < l.blocks * (part + 1) / l.parts; ++n) {
    const Block block(c, l, channel_block, n);
    pack(c, l, block, c.x, c.stride, l.above, u.planes.data() + l.left);
    convolve_block<T, N>(c, l, block, u, c.bias, out);
  }
}

// grad_weight: of this part, zero on entry.
template <class T, int N, int M>
INLINE void backward_part(
    const Convolution &c, const Layout &l, const float *grad, float *grad_x, float *grad_weight, int64_t channel_block,
    int64_t part) {
  Buffers u(c, l, true);
  const Block any(c, l, channel_block, 0);
  const int64_t taps = l.taps.size();
  std::vector<double> totals(any.channels * c.width * taps);  // (channels / FEW, taps, width, FEW)
  pack_weights(c, l, any, true, u.weights.data());
  for (int64_t n = l.blocks * part / l.parts; n < l.blocks * (part + 1) / l.parts; ++n) {
    const Block block(c, l, channel_block, n);
    pack(c, l, block, grad, c.C, l.above, u.planes.data() + l.left);
    convolve_block<T, N>(c, l, block, u, nullptr, grad_x);
    // Each pixel of x is multiplied with the gradients of the pixels whose neighbour it is.
    pack(c, l, block, c.x, c.stride, 0, u.pixels.data());
    double *total = totals.data();
    for (int64_t o = 0; o < block.channels; o += FEW)
      for (int64_t j = 0; j < taps; ++j)
        for (int64_t i = 0; i < c.width; i += M, total += M * FEW)
          products<T, M>(
              u.pixels.data() + (o / c.width * c.width + i) * l.plane,
              u.planes.data() + o * l.plane + l.offsets[taps - 1 - j], l.plane, l.starts.data(), block.vectors, total);
  }
  for (int64_t o = 0; o < any.channels; ++o)
    for (int64_t i = 0; i < c.width; ++i)
      for (int64_t j = 0; j < taps; ++j)
        grad_weight[((any.channel + o) * c.width + i) * c.k * c.k + l.taps[j]] =
            totals[((o / FEW * taps + j) * c.width + i) * FEW + o % FEW];
}

// A part, compiled for one set of instructions, into which everything above is inlined. The sums of N vectors of
// pixels, and the products with M channels of x, are as many as the registers hold.
#define PARTS(NAME, TARGET, T, N, M)                                                                                  \
  TARGET void forward_##NAME(const Convolution &c, const Layout &l, float *out, int64_t channel_block, int64_t part) { \
    forward_part<T, N>(c, l, out, channel_block, part);                                                               \
  }                                                                                                                   \
  TARGET void backward_##NAME(const Convolution &c, const Layout &l, const float *grad, float *grad_x,                \
                              float *grad_weight, int64_t channel_block, int64_t part) {                              \
    backward_part<T, N, M>(c, l, grad, grad_x, grad_weight, channel_block, part);                                     \
  }

PARTS(plain, , NarrowVector, 2, 2)
PARTS(avx2, AVX2, Vector, 3, 2)
PARTS(avx512, AVX512, WideVector, 4, 4)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)

const int64_t LANES = HAS_AVX512 ? 16 : HAS_AVX2 ? 8 : 4;

Convolution describe(const float *x, const float *weight, const float *bias, const int64_t *numbers) {
  Convolution c{x, weight, bias};
  std::memcpy(&c.B, numbers, 8 * sizeof(int64_t));
  return c;
}

}  // namespace

extern "C" {

// numbers: B, H, W, C, width, k, dilation, stride.
void grouped_conv(
    const float *x, const float *weight, const float *bias, float *out, const int64_t *numbers, int threads) {
  const Convolution c = describe(x, weight, bias, numbers);
  const Layout l(c, LANES, threads);
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < l.channel_blocks * l.parts; ++i) forward(c, l, out, i / l.parts, i % l.parts);
}

// grad_weight is zero on entry. Sums over pixels are in float32 over SUMMED vectors, and in float64 over these.
void grouped_conv_backward(
    const float *x, const float *weight, const float *grad, float *grad_x, float *grad_weight, const int64_t *numbers,
    int threads) {
  const Convolution c = describe(x, weight, nullptr, numbers);
  const Layout l(c, LANES, threads);
  const int64_t size = c.C * c.width * c.k * c.k;
  std::vector<float> others((l.parts - 1) * size);  // of the other parts, so that sums do not depend on their timing
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < l.channel_blocks * l.parts; ++i) {
    const int64_t part = i % l.parts;
    backward(c, l, grad, grad_x, part ? others.data() + (part - 1) * size : grad_weight, i / l.parts, part);
  }
  for (int64_t part = 1; part < l.parts; ++part)
    for (int64_t i = 0; i < size; ++i) grad_weight[i] += others[(part - 1) * size + i];
}

}  // extern "C"
