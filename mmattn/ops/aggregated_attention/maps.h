#pragma once

// What both passes read and write: the maps, the memory of a thread, and how pixels come into vectors.
//
// A vector holds neighbouring pixels of a row, a tile. The maps of a head are packed row by row, channel after channel,
// with zeros around them.

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "../vector.h"

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float LEAST_NORM = 1e-6f;  // as in reference.py
constexpr int64_t WIDEST = 16;       // numbers of a vector
constexpr int64_t BLOCK = 12;        // sums at a time
constexpr int64_t CHUNK = 8 * BLOCK;  // pooled tokens whose weights for two tiles stay in the nearest cache

int64_t padded(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }
int64_t blocks(int64_t size) { return (size + BLOCK - 1) / BLOCK; }

// Where a point of an axis of `size` lies on one of `length`: at first + share, in torch's bilinear interpolation.
struct Between {
  int64_t first, second;
  float share;
  Between(int64_t n, int64_t size, int64_t length) {
    const double place = std::min(std::max((n + 0.5) * length / size - 0.5, 0.), length - 1.);
    first = place;
    second = std::min(first + 1, length - 1);
    share = place - first;
  }
};

struct Maps {
  const float *query, *key_value, *pooled, *scale, *embedding, *bias, *table, *tokens, *token_bias;
  int64_t B, H, W, heads, d, h, w, k, R, places, X, J, query_stride, stride, pooled_stride;
  int64_t M, taps, reach;
  int64_t across, pitch;      // pixels of a row in whole vectors, and with what is around them
  int64_t width;              // channels in whole vectors
  std::vector<int> row;       // (H, h)
  std::vector<int> place;     // (J, X)
  std::vector<Between> x, j;  // of W and of w
  bool whole;                 // nothing is interpolated
  // so it is, and the places of neighbouring pixels are neighbours, too: `bias_at` is the place of each pooled token in
  // h rows of the table, for pixel 0
  bool neighbours;
  std::vector<int64_t> bias_at;
  std::vector<float> lengths;  // (1 + k, across): the logarithm of the number of keys, by that of rows of neighbours
  std::vector<float> outside;  // (k, across): of the columns of neighbours, -inf outside of the map, else 0

  Maps(const float *query, const float *key_value, const float *pooled, const float *scale, const float *embedding,
       const float *bias, const float *table, const float *rows, const float *columns, const float *tokens,
       const float *token_bias, const int64_t *numbers)
      : query(query), key_value(key_value), pooled(pooled), scale(scale), embedding(embedding), bias(bias),
        table(table), tokens(tokens), token_bias(token_bias) {
    std::memcpy(&B, numbers, 15 * sizeof(int64_t));
    M = h * w;
    taps = k * k;
    reach = k / 2;
    across = padded(W, WIDEST);
    pitch = across + 2 * reach;
    width = padded(d, WIDEST);
    row.assign(rows, rows + H * h);
    for (int64_t i = 0; i < J; ++i)
      for (int64_t n = 0; n < X; ++n) place.push_back(columns[n * J + i]);
    for (int64_t n = 0; n < across; ++n) x.push_back(Between(std::min(n, W - 1), W, X));
    for (int64_t i = 0; i < w; ++i) j.push_back(Between(i, w, J));
    whole = W == X && w == J;
    neighbours = whole;
    for (int64_t i = 0; i < J; ++i)
      for (int64_t n = 1; n < X; ++n) neighbours &= place[i * X + n] == place[i * X + n - 1] + 1;
    for (int64_t m = 0; neighbours && m < padded(M, BLOCK); ++m)
      bias_at.push_back(m < M ? m / w * places + place[m % w * X] : 0);
    for (int64_t rows = 0; rows <= k; ++rows)
      for (int64_t n = 0; n < across; ++n) {
        const int64_t inside = std::min(n + (k + 1) / 2, W) - std::max<int64_t>(n - reach, 0);
        lengths.push_back(std::log(double(rows * std::max<int64_t>(inside, 0) + M)));
      }
    for (int64_t i = -reach; i < k - reach; ++i)
      for (int64_t n = 0; n < across; ++n) outside.push_back(n + i < 0 || n + i >= W ? -INFINITE : 0.f);
  }
  int64_t pixel(int64_t image, int64_t y, int64_t x) const { return (image * H + y) * W + x; }
  bool has(int64_t y) const { return y >= 0 && y < H; }
};

// Allocates at whole lines of the cache, so that vectors do not lie in two of them.
template <class Number>
struct Lines {
  typedef Number value_type;
  Number *allocate(size_t n) { return static_cast<Number *>(::operator new(n * sizeof(Number), std::align_val_t(64))); }
  void deallocate(Number *p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const Lines &) const { return true; }
  bool operator!=(const Lines &) const { return false; }
};
typedef std::vector<float, Lines<float>> Numbers;

// Numbers of two tiles: `size` numbers a pixel, (size, lanes) each.
struct Tiles : Numbers {
  int64_t step = 0;  // from a tile to the next one
  void resize(int64_t size) {
    step = size * WIDEST;
    Numbers::resize(2 * step);
  }
  float *of(int64_t tile) { return data() + tile * step; }
};

// What one thread works on.
struct Buffers {
  // of a head: pooled keys, values and learnable tokens (M, d) for sums over channels, (M / BLOCK, d, BLOCK), and
  // `..._along` for those over tokens, (d / BLOCK, M, BLOCK)
  Numbers keys, values, tokens, keys_along, values_along, tokens_along, inverse;
  Numbers map_keys, map_values;  // k rows of the map, (d, pitch) each
  Numbers tile, columns, by_row;  // by_row: the h rows of the table of a row of the map, and a vector more
  Tiles unit, scaled, near, added, far, out;
  // of the backward pass; `..._along` are (lanes, width), `rows_of_...` are k rows as map_keys
  Tiles grad, grad_near, grad_far, grad_scaled, grad_unit, scaled_along, grad_along;
  Numbers unit_along, grad_by_row, rows_of_scaled, rows_of_grad, rows_of_logits, rows_of_weights;

  Buffers(const Maps &a, bool backward) {
    const int64_t M = padded(a.M, BLOCK), taps = padded(a.taps, BLOCK), d = padded(a.d, BLOCK), rows = a.k * a.pitch;
    keys.resize(M * a.d);
    values_along.resize(a.M * d);
    tokens.resize(taps * a.d);
    inverse.resize(a.M);
    map_keys.resize(a.d * rows);
    map_values.resize(a.d * rows);
    tile.resize(d * WIDEST);
    columns.resize(a.J * WIDEST);
    by_row.resize(a.h * a.places + WIDEST);
    for (auto *tiles : {&unit, &scaled, &out}) tiles->resize(d);
    for (auto *tiles : {&near, &added}) tiles->resize(taps);
    far.resize(M);
    if (!backward) return;
    keys_along.resize(a.M * d);
    values.resize(M * a.d);
    tokens_along.resize(a.taps * d);
    for (auto *tiles : {&grad, &grad_scaled, &grad_unit}) tiles->resize(d);
    for (auto *tiles : {&scaled_along, &grad_along}) tiles->resize(a.width);
    unit_along.resize(a.width * WIDEST);
    grad_by_row.resize(by_row.size());
    grad_near.resize(taps);
    grad_far.resize(M);
    for (auto *map : {&rows_of_scaled, &rows_of_grad}) map->resize(a.d * rows);
    for (auto *map : {&rows_of_logits, &rows_of_weights}) map->resize(a.taps * rows);
  }
};

// `count` pixels of a head, `stride` apart, to (d, lanes). Those beyond are the last one.
template <class T>
INLINE void read_tile(const float *pixels, int64_t stride, int64_t count, int64_t d, float *out) {
  constexpr int64_t L = lanes<T>();
  for (int64_t first = 0; first < L; first += 8) {
    const float *from[8];
    for (int64_t n = 0; n < 8; ++n) from[n] = pixels + std::min(first + n, count - 1) * stride;
    int64_t c = 0;
    for (; c + 8 <= d; c += 8) {
      Vector tile[8];
      for (int64_t n = 0; n < 8; ++n) tile[n] = load<Vector>(from[n] + c);
      transpose(tile);
      for (int64_t n = 0; n < 8; ++n) store(out + (c + n) * L + first, tile[n]);
    }
    for (; c < d; ++c)
      for (int64_t n = 0; n < 8; ++n) out[c * L + first + n] = from[n][c];
  }
}

// The other way, for `count` pixels.
template <class T>
INLINE void write_tile(const float *tile, int64_t stride, int64_t count, int64_t d, float *pixels) {
  constexpr int64_t L = lanes<T>();
  for (int64_t first = 0; first < count; first += 8) {
    const int64_t there = std::min<int64_t>(8, count - first);
    int64_t c = 0;
    for (; c + 8 <= d; c += 8) {
      Vector part[8];
      for (int64_t n = 0; n < 8; ++n) part[n] = load<Vector>(tile + (c + n) * L + first);
      transpose(part);
      for (int64_t n = 0; n < there; ++n) store(pixels + (first + n) * stride + c, part[n]);
    }
    for (; c < d; ++c)
      for (int64_t n = 0; n < there; ++n) pixels[(first + n) * stride + c] = tile[c * L + first + n];
  }
}

INLINE float inverse_of(float norm) { return norm < LEAST_NORM ? 0 : 1 / norm; }

// 1 / norm of the pixels of a tile.
template <class T>
INLINE T inverse_norms(const float *tile, int64_t d) {
  T sum = {};
  for (int64_t c = 0; c < d; ++c) sum += load<T>(tile + c * lanes<T>()) * load<T>(tile + c * lanes<T>());
  float all[lanes<T>()];
  store(all, sum);
  for (float &one : all) one = inverse_of(std::sqrt(one));
  return load<T>(all);
}

// x * inverse is a vector of norm 1. Its gradient to that of x, in place.
template <class T>
INLINE void through_norm(float *grad, const float *unit, T inverse, int64_t d) {
  constexpr int64_t L = lanes<T>();
  T product = {};
  for (int64_t c = 0; c < d; ++c) product += load<T>(grad + c * L) * load<T>(unit + c * L);
  for (int64_t c = 0; c < d; ++c)
    store(grad + c * L, inverse * (load<T>(grad + c * L) - product * load<T>(unit + c * L)));
}

INLINE float inverse_norm(const float *x, int64_t d) {
  float sum = 0;
  for (int64_t c = 0; c < d; ++c) sum += x[c] * x[c];
  return inverse_of(std::sqrt(sum));
}

// The same for one vector; out may be grad.
INLINE void through_norm(const float *grad, const float *x, int64_t d, float *out) {
  const float inverse = inverse_norm(x, d);
  float product = 0;
  for (int64_t c = 0; c < d; ++c) product += grad[c] * x[c];
  product *= inverse * inverse;
  for (int64_t c = 0; c < d; ++c) out[c] = inverse * (grad[c] - product * x[c]);
}

// (count, d), `stride` and `step` apart, to (count / BLOCK, d, BLOCK) and to (d / BLOCK, count, BLOCK).
INLINE void pack(
    const float *x, int64_t stride, int64_t step, const float *factors, int64_t count, int64_t d, float *out,
    float *along) {
  for (int64_t m = 0; m < count; ++m) {
    const float factor = factors ? factors[m] : 1.f;
    for (int64_t c = 0; c < d; ++c) {
      const float number = x[m * stride + c * step] * factor;
      if (out) out[(m / BLOCK * d + c) * BLOCK + m % BLOCK] = number;
      if (along) along[(c / BLOCK * count + m) * BLOCK + c % BLOCK] = number;
    }
  }
}

INLINE void pack_head(const Maps &a, int64_t image, int64_t head, bool backward, Buffers &u) {
  const float *key = a.pooled + image * a.M * a.pooled_stride + head * a.d, *value = key + a.heads * a.d;
  for (int64_t m = 0; m < a.M; ++m) u.inverse[m] = inverse_norm(key + m * a.pooled_stride, a.d);
  float *keys = backward ? u.keys_along.data() : nullptr, *values = backward ? u.values.data() : nullptr;
  pack(key, a.pooled_stride, 1, u.inverse.data(), a.M, a.d, u.keys.data(), keys);
  pack(value, a.pooled_stride, 1, nullptr, a.M, a.d, values, u.values_along.data());
  float *tokens = backward ? u.tokens_along.data() : nullptr;
  pack(a.tokens + head * a.d * a.taps, 1, a.taps, nullptr, a.taps, a.d, u.tokens.data(), tokens);
}

INLINE float *slot(const Maps &a, Numbers &rows, int64_t y, int64_t size) {
  return rows.data() + y % a.k * size * a.pitch;
}

// Writes a tile to packed rows, and zeros beyond the map.
template <class T>
INLINE void put_tile(const Maps &a, const float *tile, int64_t size, int64_t x, int64_t count, float *row) {
  for (int64_t c = 0; c < size; ++c, row += a.pitch) {
    float *to = row + a.reach + x;
    store(to, load<T>(tile + c * lanes<T>()));
    if (count < lanes<T>()) std::fill(to + count, row + a.pitch, 0.f);
  }
}

// Keys of norm 1 and values of a row of the map, if it has that row.
template <class T>
INLINE void pack_row(const Maps &a, int64_t image, int64_t head, int64_t y, Buffers &u) {
  if (!a.k || !a.has(y)) return;
  float *keys = slot(a, u.map_keys, y, a.d), *values = slot(a, u.map_values, y, a.d);
  for (int64_t x = 0; x < a.W; x += lanes<T>()) {
    const int64_t count = std::min(lanes<T>(), a.W - x);
    const float *key = a.key_value + a.pixel(image, y, x) * a.stride + head * a.d;
    float *tile = u.tile.data();
    read_tile<T>(key, a.stride, count, a.d, tile);
    const T inverse = inverse_norms<T>(tile, a.d);
    for (int64_t c = 0; c < a.d; ++c) store(tile + c * lanes<T>(), load<T>(tile + c * lanes<T>()) * inverse);
    put_tile<T>(a, tile, a.d, x, count, keys);
    read_tile<T>(key + a.heads * a.d, a.stride, count, a.d, tile);
    put_tile<T>(a, tile, a.d, x, count, values);
  }
}

}  // namespace
