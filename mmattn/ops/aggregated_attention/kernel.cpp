// Aggregated attention on the CPU, in float32, and its gradients: the equations of reference.py.
//
// query: (B, H, W, heads, d); key_value: (B, H, W, 2, heads, d); pooled: (B, h, w, 2, heads, d). Pixels of these maps are
// `..._stride` apart. scale: (heads), the factor of the queries besides the logarithm of the number of keys. embedding:
// (heads, d); bias, token_bias: (heads, k * k); tokens: (heads, d, k * k); out: (B, H, W, heads, d). k is odd.
//
// The bias of pooled token (i, j) for pixel (y, x) is
//
//     by_row[y, i, columns[x, j]]
//
// by_row: (heads, H, h, places). columns: (X, J), whole numbers. If that is not (W, w), the bias is interpolated from X
// and J columns, bilinearly.
//
// A vector holds neighbouring pixels of a row, a tile. Only the weights of a tile are in memory. The maps of a head are
// packed row by row, channel after channel, with zeros around them.
//
// cpp.py calls it.

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
constexpr int64_t ROW_TASKS = 24;    // at least so many tasks share the gradients, if there are rows enough

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
  const float *query, *key_value, *pooled, *scale, *embedding, *bias, *by_row, *tokens, *token_bias;
  int64_t B, H, W, heads, d, h, w, k, places, X, J, query_stride, stride, pooled_stride;
  int64_t M, taps, reach;
  int64_t across, pitch;      // pixels of a row in whole vectors, and with what is around them
  int64_t width;              // channels in whole vectors
  std::vector<int> place;     // (J, X)
  std::vector<Between> x, j;  // of W and of w
  bool whole;                 // nothing is interpolated
  // so it is, and the places of neighbouring pixels are neighbours, too: `bias_at` is the place of each pooled token in
  // the rows of by_row, for pixel 0
  bool neighbours;
  std::vector<int64_t> bias_at;
  std::vector<float> lengths;  // (1 + k, across): the logarithm of the number of keys, by that of rows of neighbours
  std::vector<float> outside;  // (k, across): of the columns of neighbours, -inf outside of the map, else 0

  Maps(const float *query, const float *key_value, const float *pooled, const float *scale, const float *embedding,
       const float *bias, const float *by_row, const float *columns, const float *tokens, const float *token_bias,
       const int64_t *numbers)
      : query(query), key_value(key_value), pooled(pooled), scale(scale), embedding(embedding), bias(bias),
        by_row(by_row), tokens(tokens), token_bias(token_bias) {
    std::memcpy(&B, numbers, 14 * sizeof(int64_t));
    M = h * w;
    taps = k * k;
    reach = k / 2;
    across = padded(W, WIDEST);
    pitch = across + 2 * reach;
    width = padded(d, WIDEST);
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
        const int64_t inside = std::min(n + reach, W - 1) - std::max<int64_t>(n - reach, 0) + 1;
        lengths.push_back(std::log(double(rows * std::max<int64_t>(inside, 0) + M)));
      }
    for (int64_t i = -reach; i < k - reach; ++i)
      for (int64_t n = 0; n < across; ++n) outside.push_back(n + i < 0 || n + i >= W ? -INFINITE : 0.f);
  }
  int64_t pixel(int64_t image, int64_t y, int64_t x) const { return (image * H + y) * W + x; }
  bool has(int64_t y) const { return y >= 0 && y < H; }
};

// The gradient of the result, and those that one task alone writes.
struct Gradients {
  const float *out;
  float *query, *by_row;
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

// What one thread works on. A tile of n numbers a pixel is (n, lanes).
struct Buffers {
  // of a head: pooled keys, values and learnable tokens (M, d) for sums over channels, (M / BLOCK, d, BLOCK), and
  // `..._along` for those over tokens, (d / BLOCK, M, BLOCK)
  Numbers keys, values, tokens, keys_along, values_along, tokens_along, inverse;
  Numbers map_keys, map_values;  // k rows of the map, (d, pitch) each
  Numbers query, unit, scaled, near, added, far, out, columns;
  // of the backward pass; `rows_of_...` are k rows as map_keys
  Numbers grad, grad_near, grad_far, grad_scaled, along, rows_of_scaled, rows_of_grad, rows_of_logits, rows_of_weights;

  Buffers(const Maps &a, bool backward) {
    const int64_t M = padded(a.M, BLOCK), taps = padded(a.taps, BLOCK), d = padded(a.d, BLOCK), rows = a.k * a.pitch;
    keys.resize(M * a.d);
    values_along.resize(a.M * d);
    tokens.resize(taps * a.d);
    inverse.resize(a.M);
    map_keys.resize(a.d * rows);
    map_values.resize(a.d * rows);
    for (auto *tile : {&query, &unit, &scaled, &out}) tile->resize(d * WIDEST);
    for (auto *tile : {&near, &added}) tile->resize(taps * WIDEST);
    far.resize(M * WIDEST);
    columns.resize(a.J * WIDEST);
    if (!backward) return;
    keys_along.resize(a.M * d);
    values.resize(M * a.d);
    tokens_along.resize(a.taps * d);
    for (auto *tile : {&grad, &grad_scaled}) tile->resize(d * WIDEST);
    along.resize(a.width * WIDEST);
    grad_near.resize(taps * WIDEST);
    grad_far.resize(M * WIDEST);
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
  if (!a.has(y)) return;
  float *keys = slot(a, u.map_keys, y, a.d), *values = slot(a, u.map_values, y, a.d);
  for (int64_t x = 0; x < a.W; x += lanes<T>()) {
    const int64_t count = std::min(lanes<T>(), a.W - x);
    const float *key = a.key_value + a.pixel(image, y, x) * a.stride + head * a.d;
    float *tile = u.query.data();
    read_tile<T>(key, a.stride, count, a.d, tile);
    const T inverse = inverse_norms<T>(tile, a.d);
    for (int64_t c = 0; c < a.d; ++c) store(tile + c * lanes<T>(), load<T>(tile + c * lanes<T>()) * inverse);
    put_tile<T>(a, tile, a.d, x, count, keys);
    read_tile<T>(key + a.heads * a.d, a.stride, count, a.d, tile);
    put_tile<T>(a, tile, a.d, x, count, values);
  }
}

// The bias of a tile, from a place on. Pixels beyond the row of the map have any: they have no gradient.
template <class T>
INLINE T neighbouring_bias(const Maps &a, const float *by_row, int64_t at) {
  constexpr int64_t L = lanes<T>();
  const int64_t size = a.h * a.places;
  if (at + L <= size) return load<T>(by_row + at);
  float rest[L] = {};
  for (int64_t n = 0; at + n < size; ++n) rest[n] = by_row[at + n];
  return load<T>(rest);
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

// Adds the gradient of by_row, from that of the bias, (M, lanes), zero for pixels beyond the row.
template <class T>
INLINE void add_bias_gradient(
    const Maps &a, const float *grad, int64_t x, int64_t count, float *columns, float *by_row) {
  constexpr int64_t L = lanes<T>();
  if (a.neighbours) {
    // Places of one column after another overlap, so that each sum would wait for the last one.
    for (int64_t j = 0; j < a.w; ++j)
      for (int64_t i = 0; i < a.h; ++i) {
        const float *from = grad + (i * a.w + j) * L;
        float *to = by_row + a.bias_at[i * a.w + j] + x;
        if (to + L <= by_row + a.h * a.places)
          store(to, load<T>(to) + load<T>(from));
        else
          for (int64_t n = 0; n < count; ++n) to[n] += from[n];
      }
    return;
  }
  for (int64_t i = 0; i < a.h; ++i, by_row += a.places) {
    if (!a.whole) std::fill_n(columns, a.J * L, 0.f);
    for (int64_t j = 0; !a.whole && j < a.w; ++j) {
      const Between &at = a.j[j];
      const T own = load<T>(grad + j * L);
      float *first = columns + at.first * L, *second = columns + at.second * L;
      store(first, load<T>(first) + (1 - at.share) * own);
      store(second, load<T>(second) + at.share * own);
    }
    const float *from = a.whole ? grad : columns;
    for (int64_t j = 0; j < a.J; ++j, from += L) {
      const int *place = a.place.data() + j * a.X;
      for (int64_t n = 0; n < count; ++n) {
        const Between &at = a.x[x + n];
        by_row[place[at.first]] += (1 - at.share) * from[n];
        if (!a.whole) by_row[place[at.second]] += at.share * from[n];
      }
    }
    grad += a.w * L;
  }
}

// out[m] = first(m) + sum_c x[c] * y[m][c], of a tile, for `blocks` of m; y: (blocks, d, BLOCK).
template <class T, class First>
INLINE void products(const float *x, const float *y, int64_t d, int64_t blocks, float *out, First first) {
  constexpr int64_t L = lanes<T>();
  for (int64_t block = 0; block < blocks; ++block, out += BLOCK * L) {
    T sum[BLOCK];
    for (int64_t i = 0; i < BLOCK; ++i) sum[i] = first(block * BLOCK + i);
    for (int64_t c = 0; c < d; ++c, y += BLOCK) {
      const T own = load<T>(x + c * L);
      for (int64_t i = 0; i < BLOCK; ++i) sum[i] += y[i] * own;
    }
    for (int64_t i = 0; i < BLOCK; ++i) store(out + i * L, sum[i]);
  }
}

template <class T>
INLINE void products(const float *x, const float *y, int64_t d, int64_t blocks, float *out) {
  products<T>(x, y, d, blocks, out, [](int64_t) INLINE_LAMBDA { return T{}; });
}

// out[m][c] += sum_n x[m][n] * own[n][c], over the pixels of a tile, for ROWS of m. The sums do not wait for each other.
template <class T, int ROWS>
INLINE void add_outer_rows(const float *x, const T *own, int64_t width, float *out) {
  constexpr int64_t L = lanes<T>();
  T sum[ROWS];
#pragma GCC unroll 16
  for (int64_t i = 0; i < ROWS; ++i) sum[i] = load<T>(out + i * width);
#pragma GCC unroll 16
  for (int64_t n = 0; n < L; ++n)
#pragma GCC unroll 16
    for (int64_t i = 0; i < ROWS; ++i) sum[i] += x[i * L + n] * own[n];
#pragma GCC unroll 16
  for (int64_t i = 0; i < ROWS; ++i) store(out + i * width, sum[i]);
}

// out[m][c] += sum_n x[m][n] * y[n][c]; y: (lanes, width).
template <class T>
INLINE void add_outer(const float *x, const float *y, int64_t M, int64_t width, float *out) {
  constexpr int64_t L = lanes<T>(), ROWS = L / 2;  // with y, three quarters of the registers
  for (int64_t c = 0; c < width; c += L) {
    T own[L];
#pragma GCC unroll 16
    for (int64_t n = 0; n < L; ++n) own[n] = load<T>(y + n * width + c);
    int64_t m = 0;
    for (; m + ROWS <= M; m += ROWS) add_outer_rows<T, ROWS>(x + m * L, own, width, out + m * width + c);
    for (; m < M; ++m) add_outer_rows<T, 1>(x + m * L, own, width, out + m * width + c);
  }
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

// Queries of norm 1 of a tile, and scaled ones. Returns 1 / norm of the queries; `length` is the factor of the scaled.
template <class T>
INLINE T tile_queries(
    const Maps &a, int64_t image, int64_t head, int64_t y, int64_t x, int64_t count, Buffers &u, T *length) {
  read_tile<T>(a.query + a.pixel(image, y, x) * a.query_stride + head * a.d, a.query_stride, count, a.d, u.unit.data());
  const T inverse = inverse_norms<T>(u.unit.data(), a.d);
  const int64_t rows = std::min(y + a.reach, a.H - 1) - std::max<int64_t>(y - a.reach, 0) + 1;
  *length = load<T>(a.lengths.data() + rows * a.across + x) * a.scale[head];
  for (int64_t c = 0; c < a.d; ++c) {
    const T unit = load<T>(u.unit.data() + c * lanes<T>()) * inverse;
    store(u.unit.data() + c * lanes<T>(), unit);
    store(u.scaled.data() + c * lanes<T>(), (unit + a.embedding[head * a.d + c]) * *length);
  }
  return inverse;
}

// The logits of a tile, and the weights that are added to those of the neighbours.
template <class T>
INLINE void tile_logits(const Maps &a, int64_t head, int64_t y, int64_t x, int64_t count, Buffers &u) {
  constexpr int64_t L = lanes<T>();
  const float *token_bias = a.token_bias + head * a.taps;
  products<T>(u.unit.data(), u.tokens.data(), a.d, blocks(a.taps), u.added.data(), [&](int64_t t) INLINE_LAMBDA {
    return T{} + (t < a.taps ? token_bias[t] : 0);
  });
  for (int64_t i = 0; i < a.k; ++i) {
    float *near = u.near.data() + i * a.k * L;
    if (!a.has(y + i - a.reach)) {
      std::fill_n(near, a.k * L, -INFINITE);
      continue;
    }
    products_of_row<T>(a, u.scaled.data(), slot(a, u.map_keys, y + i - a.reach, a.d) + x, near);
    for (int64_t t = 0; t < a.k; ++t) {
      const T beyond = load<T>(a.outside.data() + t * a.across + x);
      store(near + t * L, load<T>(near + t * L) + a.bias[(head * a.k + i) * a.k + t] + beyond);
    }
  }
  const float *by_row = a.by_row + (head * a.H + y) * a.h * a.places;
  const auto far = [&](auto bias) INLINE_LAMBDA {
    products<T>(u.scaled.data(), u.keys.data(), a.d, blocks(a.M), u.far.data(), bias);
  };
  if (a.neighbours) {
    far([&](int64_t m) INLINE_LAMBDA { return neighbouring_bias<T>(a, by_row, a.bias_at[m] + x); });
  } else {
    read_bias<T>(a, by_row, x, u.columns.data(), u.far.data());
    far([&](int64_t m) INLINE_LAMBDA { return load<T>(u.far.data() + m * L); });
  }
}

template <class T>
INLINE T larger(T x, T y) {
  return y > x ? y : x;
}

// The largest of `count` vectors. Four at a time do not wait for each other.
template <class T>
INLINE T largest(const float *x, int64_t count) {
  constexpr int64_t L = lanes<T>();
  T most[4] = {load<T>(x), load<T>(x), load<T>(x), load<T>(x)};
  int64_t n = 0;
  for (; n + 4 <= count; n += 4)
    for (int64_t i = 0; i < 4; ++i) most[i] = larger(most[i], load<T>(x + (n + i) * L));
  for (; n < count; ++n) most[0] = larger(most[0], load<T>(x + n * L));
  return larger(larger(most[0], most[1]), larger(most[2], most[3]));
}

// Logits of a tile to exponentials, in place. Returns 1 / their sum, which makes weights of them.
template <class T>
INLINE T softmax(const Maps &a, float *near, float *far) {
  constexpr int64_t L = lanes<T>();
  const T most = larger(largest<T>(near, a.taps), largest<T>(far, a.M));
  T sum = {};
  const auto exponentials = [&](float *logits, int64_t count) INLINE_LAMBDA {
    for (int64_t m = 0; m < count; ++m) {
      const T weight = exponential(load<T>(logits + m * L) - most);
      sum += weight;
      store(logits + m * L, weight);
    }
  };
  exponentials(near, a.taps);
  exponentials(far, a.M);
  return 1 / sum;
}

template <class T>
INLINE void forward_rows(
    const Maps &a, int64_t image, int64_t head, int64_t first, int64_t last, Buffers &u, float *out) {
  constexpr int64_t L = lanes<T>();
  pack_head(a, image, head, false, u);
  for (int64_t y = first - a.reach; y < first + a.reach; ++y) pack_row<T>(a, image, head, y, u);
  for (int64_t y = first; y < last; ++y) {
    pack_row<T>(a, image, head, y + a.reach, u);
    for (int64_t x = 0; x < a.W; x += L) {
      const int64_t count = std::min(L, a.W - x);
      T length;
      tile_queries(a, image, head, y, x, count, u, &length);
      tile_logits<T>(a, head, y, x, count, u);
      const T inverse = softmax<T>(a, u.near.data(), u.far.data());
      products<T>(u.far.data(), u.values_along.data(), a.M, blocks(a.d), u.out.data());
      for (int64_t c = 0; c < a.d; ++c) store(u.out.data() + c * L, load<T>(u.out.data() + c * L) * inverse);
      for (int64_t t = 0; t < a.taps; ++t)
        store(u.near.data() + t * L, load<T>(u.near.data() + t * L) * inverse + load<T>(u.added.data() + t * L));
      for (int64_t i = 0; i < a.k; ++i)
        if (a.has(y + i - a.reach))
          sums_of_row<T>(
              a, u.near.data() + i * a.k * L, L, slot(a, u.map_values, y + i - a.reach, a.d) + x, 1, u.out.data());
      write_tile<T>(u.out.data(), a.heads * a.d, count, a.d, out + (a.pixel(image, y, x) * a.heads + head) * a.d);
    }
  }
}

// What a backward task of some rows of a head has of the gradients that others add to.
struct Shares {
  float *pooled;  // (B, 2, M, width), of keys of norm 1
  float *map;     // (B, rows, W, 2, d), of keys of norm 1, of the rows and `reach` more above and below
  int64_t rows;   // from the map of an image to that of the next one
  // of scale and embedding, (1 + d, WIDEST); of bias and token_bias, (2 * k * k, WIDEST); and of tokens, (k * k, width)
  float *sums, *tokens;
};

// The gradients of the keys and values of row y of the map, from the queries of rows [first, last) that they are
// neighbours of.
template <class T>
INLINE void map_gradients(const Maps &a, int64_t y, int64_t first, int64_t last, Buffers &u, float *out) {
  constexpr int64_t L = lanes<T>();
  for (int64_t x = 0; x < a.W; x += L)
    for (int64_t part = 0; part < 2; ++part) {
      auto &factors = part ? u.rows_of_weights : u.rows_of_logits, &maps = part ? u.rows_of_grad : u.rows_of_scaled;
      std::fill(u.out.begin(), u.out.end(), 0.f);
      for (int64_t i = 0; i < a.k; ++i) {
        const int64_t of = y - i + a.reach;
        if (of < first || of >= last) continue;
        // the first neighbour is k - 1 pixels further on
        const float *factor = slot(a, factors, of, a.taps) + i * a.k * a.pitch + x + a.k - 1;
        sums_of_row<T>(a, factor, a.pitch - 1, slot(a, maps, of, a.d) + x + a.k - 1, -1, u.out.data());
      }
      write_tile<T>(u.out.data(), 2 * a.d, std::min(L, a.W - x), a.d, out + (2 * x + part) * a.d);
    }
}

template <class T>
INLINE void backward_rows(
    const Maps &a, const Gradients &g, int64_t head, int64_t first, int64_t last, Buffers &u, Shares &s) {
  constexpr int64_t L = lanes<T>();
  const auto add = [&](float *to, T x) INLINE_LAMBDA { store(to, load<T>(to) + x); };
  for (int64_t image = 0; image < a.B; ++image) {
    pack_head(a, image, head, true, u);
    for (int64_t y = first - a.reach; y < first + a.reach; ++y) pack_row<T>(a, image, head, y, u);
    float *of_keys = s.pooled + image * 2 * a.M * a.width, *of_values = of_keys + a.M * a.width;
    float *of_map = s.map + image * s.rows * a.W * 2 * a.d;  // of row first - reach
    for (int64_t y = first; y < last; ++y) {
      pack_row<T>(a, image, head, y + a.reach, u);
      for (int64_t x = 0; x < a.W; x += L) {
        const int64_t count = std::min(L, a.W - x), place = (a.pixel(image, y, x) * a.heads + head) * a.d;
        T length;
        const T norm = tile_queries(a, image, head, y, x, count, u, &length);
        tile_logits<T>(a, head, y, x, count, u);
        const T inverse = softmax<T>(a, u.near.data(), u.far.data());
        read_tile<T>(g.out + place, a.heads * a.d, count, a.d, u.grad.data());
        for (int64_t c = 0; count < L && c < a.d; ++c) std::fill_n(u.grad.data() + c * L + count, L - count, 0.f);

        // the gradients of the weights, and of the logits
        std::fill(u.grad_near.begin(), u.grad_near.end(), 0.f);
        for (int64_t i = 0; i < a.k; ++i)
          if (a.has(y + i - a.reach))
            products_of_row<T>(
                a, u.grad.data(), slot(a, u.map_values, y + i - a.reach, a.d) + x, u.grad_near.data() + i * a.k * L);
        products<T>(u.grad.data(), u.values.data(), a.d, blocks(a.M), u.grad_far.data());
        T mean = {};
        for (int64_t m = 0; m < a.M; ++m) {
          const T weight = load<T>(u.far.data() + m * L) * inverse;
          store(u.far.data() + m * L, weight);
          mean += weight * load<T>(u.grad_far.data() + m * L);
        }
        for (int64_t t = 0; t < a.taps; ++t) {
          const T weight = load<T>(u.near.data() + t * L) * inverse;
          store(u.near.data() + t * L, weight);
          mean += weight * load<T>(u.grad_near.data() + t * L);
        }
        for (int64_t m = 0; m < a.M; ++m) {
          float *grad = u.grad_far.data() + m * L;
          store(grad, load<T>(u.far.data() + m * L) * (load<T>(grad) - mean));
        }

        // of the scaled queries, and of what is in them
        products<T>(u.grad_far.data(), u.keys_along.data(), a.M, blocks(a.d), u.grad_scaled.data());
        products<T>(u.grad_near.data(), u.tokens_along.data(), a.taps, blocks(a.d), u.out.data());
        write_tile<T>(u.unit.data(), a.width, L, a.d, u.along.data());
        add_outer<T>(u.grad_near.data(), u.along.data(), a.taps, a.width, s.tokens);
        for (int64_t t = 0; t < a.taps; ++t) {
          float *near = u.near.data() + t * L, *grad = u.grad_near.data() + t * L, *of_bias = s.sums + (1 + a.d) * WIDEST;
          const T weight = load<T>(near), of_weight = load<T>(grad), of_logit = weight * (of_weight - mean);
          add(of_bias + t * WIDEST, of_logit);
          add(of_bias + (a.taps + t) * WIDEST, of_weight);
          store(grad, of_logit);
          store(near, weight + load<T>(u.added.data() + t * L));
        }
        for (int64_t i = 0; i < a.k; ++i)
          if (a.has(y + i - a.reach))
            sums_of_row<T>(
                a, u.grad_near.data() + i * a.k * L, L, slot(a, u.map_keys, y + i - a.reach, a.d) + x, 1,
                u.grad_scaled.data());
        T of_length = {};
        for (int64_t c = 0; c < a.d; ++c) {
          const T grad = load<T>(u.grad_scaled.data() + c * L);
          of_length += grad * load<T>(u.scaled.data() + c * L);
          add(s.sums + (1 + c) * WIDEST, grad * length);
          add(u.out.data() + c * L, grad * length);
        }
        add(s.sums, of_length);
        through_norm<T>(u.out.data(), u.unit.data(), norm, a.d);
        write_tile<T>(u.out.data(), a.heads * a.d, count, a.d, g.query + place);

        // of keys, values and biases
        write_tile<T>(u.scaled.data(), a.width, L, a.d, u.along.data());
        add_outer<T>(u.grad_far.data(), u.along.data(), a.M, a.width, of_keys);
        write_tile<T>(u.grad.data(), a.width, L, a.d, u.along.data());
        add_outer<T>(u.far.data(), u.along.data(), a.M, a.width, of_values);
        add_bias_gradient<T>(
            a, u.grad_far.data(), x, count, u.columns.data(), g.by_row + (head * a.H + y) * a.h * a.places);
        put_tile<T>(a, u.scaled.data(), a.d, x, count, slot(a, u.rows_of_scaled, y, a.d));
        put_tile<T>(a, u.grad.data(), a.d, x, count, slot(a, u.rows_of_grad, y, a.d));
        put_tile<T>(a, u.grad_near.data(), a.taps, x, count, slot(a, u.rows_of_logits, y, a.taps));
        put_tile<T>(a, u.near.data(), a.taps, x, count, slot(a, u.rows_of_weights, y, a.taps));
      }
      // Rows of the map whose last query this is; at the end, those that others add to.
      const int64_t until = y + 1 < last ? y - a.reach + 1 : last + a.reach;
      for (int64_t row = y - a.reach; row < until; ++row)
        if (a.has(row))
          map_gradients<T>(
              a, row, std::max(first, y + 1 - a.k), y + 1, u, of_map + (row - first + a.reach) * a.W * 2 * a.d);
    }
  }
}

#define ROWS(NAME, TARGET, T)                                                                                  \
  TARGET void forward_##NAME(                                                                                  \
      const Maps &a, int64_t image, int64_t head, int64_t first, int64_t last, Buffers &u, float *out) {       \
    forward_rows<T>(a, image, head, first, last, u, out);                                                      \
  }                                                                                                            \
  TARGET void backward_##NAME(                                                                                 \
      const Maps &a, const Gradients &g, int64_t head, int64_t first, int64_t last, Buffers &u, Shares &s) {   \
    backward_rows<T>(a, g, head, first, last, u, s);                                                           \
  }

ROWS(plain, , Vector)
ROWS(avx2, AVX2, Vector)
ROWS(avx512, AVX512, WideVector)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)

}  // namespace

extern "C" {

// numbers: B, H, W, heads, d, h, w, k, places, X, J, query_stride, stride, pooled_stride.
void aggregated_attention(
    const float *query, const float *key_value, const float *pooled, const float *scale, const float *embedding,
    const float *bias, const float *by_row, const float *columns, const float *tokens, const float *token_bias,
    float *out, const int64_t *numbers, int threads) {
  const Maps a(query, key_value, pooled, scale, embedding, bias, by_row, columns, tokens, token_bias, numbers);
  const int64_t groups = a.B * a.heads, tasks = threads > 1 ? 4 * threads : 1;
  const int64_t chunks = std::max<int64_t>(1, std::min((tasks + groups - 1) / groups, a.H));
#pragma omp parallel num_threads(threads)
  {
    Buffers buffers(a, false);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < groups * chunks; ++task) {
      const int64_t group = task / chunks, chunk = task % chunks;
      forward(a, group / a.heads, group % a.heads, a.H * chunk / chunks, a.H * (chunk + 1) / chunks, buffers, out);
    }
  }
}

// grad_by_row is zero on entry. The number of tasks, and so the order of sums, does not depend on that of threads.
void aggregated_attention_backward(
    const float *query, const float *key_value, const float *pooled, const float *scale, const float *embedding,
    const float *bias, const float *by_row, const float *columns, const float *tokens, const float *token_bias,
    const float *grad, float *grad_query, float *grad_key_value, float *grad_pooled, float *grad_scale,
    float *grad_embedding, float *grad_bias, float *grad_by_row, float *grad_tokens, float *grad_token_bias,
    const int64_t *numbers, int threads) {
  const Maps a(query, key_value, pooled, scale, embedding, bias, by_row, columns, tokens, token_bias, numbers);
  const Gradients g{grad, grad_query, grad_by_row};
  const int64_t chunks = std::max<int64_t>(1, std::min((ROW_TASKS + a.heads - 1) / a.heads, a.H));
  const int64_t tasks = a.heads * chunks, C = a.heads * a.d;
  const int64_t of_pooled = a.B * 2 * a.M * a.width, of_tokens = a.taps * a.width;
  const int64_t of_sums = (1 + a.d + 2 * a.taps) * WIDEST;
  const int64_t rows = a.H + 2 * a.reach * chunks;  // of all tasks of a head
  std::vector<float> pooled_shares(tasks * of_pooled), sums(tasks * of_sums), token_sums(tasks * of_tokens);
  std::vector<float> map_shares(a.heads * a.B * rows * a.W * 2 * a.d);
  // the place of a row of the map in the shares of a task
  const auto share = [&](int64_t head, int64_t chunk, int64_t image, int64_t row) {
    return map_shares.data() + (((head * a.B + image) * rows) + row + a.reach * (2 * chunk + 1)) * a.W * 2 * a.d;
  };
#pragma omp parallel num_threads(threads)
  {
    Buffers buffers(a, true);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t head = task / chunks, chunk = task % chunks, first = a.H * chunk / chunks;
      Shares s{
          pooled_shares.data() + task * of_pooled, share(head, chunk, 0, first - a.reach), rows,
          sums.data() + task * of_sums, token_sums.data() + task * of_tokens};
      backward(a, g, head, first, a.H * (chunk + 1) / chunks, buffers, s);
    }
    std::vector<float> total(a.width);
#pragma omp for
    for (int64_t i = 0; i < a.B * a.M; ++i)
      for (int64_t at = 0; at < 2 * a.heads; ++at) {
        const int64_t part = at / a.heads, head = at % a.heads, image = i / a.M;
        const float *shares = pooled_shares.data() + head * chunks * of_pooled;
        shares += ((2 * image + part) * a.M + i % a.M) * a.width;
        std::fill(total.begin(), total.end(), 0.f);
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
          for (int64_t c = 0; c < a.d; ++c) total[c] += shares[chunk * of_pooled + c];
        float *out = grad_pooled + i * 2 * C + at * a.d;
        if (part)
          std::copy_n(total.data(), a.d, out);
        else
          through_norm(total.data(), pooled + i * a.pooled_stride + head * a.d, a.d, out);
      }
#pragma omp for
    for (int64_t i = 0; i < a.B * a.H; ++i)
      for (int64_t head = 0; head < a.heads; ++head) {
        const int64_t image = i / a.H, y = i % a.H;
        float *sum = nullptr;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          if (y < a.H * chunk / chunks - a.reach || y >= a.H * (chunk + 1) / chunks + a.reach) continue;
          float *more = share(head, chunk, image, y);
          for (int64_t n = 0; sum && n < a.W * 2 * a.d; ++n) sum[n] += more[n];
          sum = sum ? sum : more;
        }
        for (int64_t x = 0; x < a.W; ++x) {
          float *out = grad_key_value + (i * a.W + x) * 2 * C + head * a.d;
          const float *own = sum + x * 2 * a.d;
          through_norm(own, key_value + (i * a.W + x) * a.stride + head * a.d, a.d, out);
          std::copy_n(own + a.d, a.d, out + C);
        }
      }
  }
  for (int64_t head = 0; head < a.heads; ++head) {
    const auto total = [&](int64_t at) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk)
        for (int64_t n = 0; n < WIDEST; ++n) sum += sums[(head * chunks + chunk) * of_sums + at * WIDEST + n];
      return sum;
    };
    grad_scale[head] = scale[head] ? total(0) / scale[head] : 0;
    for (int64_t c = 0; c < a.d; ++c) grad_embedding[head * a.d + c] = total(1 + c);
    for (int64_t t = 0; t < a.taps; ++t) {
      grad_bias[head * a.taps + t] = total(1 + a.d + t);
      grad_token_bias[head * a.taps + t] = total(1 + a.d + a.taps + t);
      for (int64_t c = 0; c < a.d; ++c) {
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
          sum += token_sums[(head * chunks + chunk) * of_tokens + t * a.width + c];
        grad_tokens[(head * a.d + c) * a.taps + t] = sum;
      }
    }
  }
}

}  // extern "C"
