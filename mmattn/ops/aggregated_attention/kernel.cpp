// Aggregated attention on the CPU, in float32, and its gradients: the equations of reference.py.
//
// query: (B, H, W, heads, d); key_value: (B, H, W, 2, heads, d); pooled: (B, h, w, 2, heads, d). Pixels of these maps are
// `..._stride` apart. scale: (heads), the factor of the queries besides the logarithm of the number of keys. embedding:
// (heads, d); bias, token_bias: (heads, k * k); tokens: (heads, d, k * k); out: (B, H, W, heads, d). k is odd,
// or 0: then there are no neighbours.
//
// The bias of pooled token (i, j) for pixel (y, x) is
//
//     table[rows[y, i], columns[x, j]]
//
// table: (heads, R, places). rows: (H, h) and columns: (X, J), whole numbers. If the latter is not (W, w), the bias is
// interpolated from X and J columns, bilinearly.
//
// A vector holds neighbouring pixels of a row, a tile. Two tiles of a row are computed at a time, so that each pooled
// token is read once for both. Only their weights are in memory. The maps of a head are packed row by row, channel after
// channel, with zeros around them.
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
constexpr int64_t CHUNK = 8 * BLOCK;  // pooled tokens whose weights for two tiles stay in the nearest cache
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

// The gradient of the result, and those that one task alone writes.
struct Gradients {
  const float *out;
  float *query;
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

// Adds the gradient of by_row where places are neighbours, from that of the bias, (M, lanes) of each of TILES tiles, zero
// for pixels beyond the row.
template <class T, int TILES>
INLINE void add_bias_gradient(const Maps &a, const Tiles &grad, int64_t x, float *by_row) {
  constexpr int64_t L = lanes<T>();
  // Places of one column after another overlap, so that each sum would wait for the last one.
  for (int64_t j = 0; j < a.w; ++j)
    for (int64_t i = 0; i < a.h; ++i) {
      float *to = by_row + a.bias_at[i * a.w + j] + x;
      const float *from = grad.data() + (i * a.w + j) * L;
      for (int64_t t = 0; t < TILES; ++t) store(to + t * L, load<T>(to + t * L) + load<T>(from + t * grad.step));
    }
}

// The same where they are not, of a tile.
template <class T>
INLINE void scatter_bias_gradient(
    const Maps &a, const float *grad, int64_t x, int64_t count, float *columns, float *by_row) {
  constexpr int64_t L = lanes<T>();
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

// The rows of the table for a row of the map.
INLINE void read_rows(const Maps &a, int64_t head, int64_t y, Buffers &u) {
  for (int64_t i = 0; i < a.h; ++i)
    std::copy_n(a.table + (head * a.R + a.row[y * a.h + i]) * a.places, a.places, u.by_row.data() + i * a.places);
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

// What a backward task of some rows of a head has of the gradients that others add to.
struct Shares {
  float *pooled;  // (B, 2, M, width), of keys of norm 1
  float *map;     // (B, rows, W, 2, d), of keys of norm 1, of the rows and `reach` more above and below
  int64_t rows;   // from the map of an image to that of the next one
  float *table;   // rows of the table, from `table_first` on
  int64_t table_first;
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
      std::fill_n(u.out.data(), u.out.step, 0.f);
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

template <class T, int TILES>
INLINE void backward_tiles(
    const Maps &a, const Gradients &g, int64_t image, int64_t head, int64_t y, int64_t x, Buffers &u, Shares &s) {
  constexpr int64_t L = lanes<T>();
  const auto add = [&](float *to, T x) INLINE_LAMBDA { store(to, load<T>(to) + x); };
  float *of_keys = s.pooled + image * 2 * a.M * a.width, *of_values = of_keys + a.M * a.width;
  Place at[TILES];
  T length[TILES], norm[TILES], most[TILES], sum[TILES] = {}, inverse[TILES], mean[TILES] = {};
  for (int64_t t = 0; t < TILES; ++t) {
    at[t] = {image, head, y, x + t * L, std::min(L, a.W - x - t * L), t};
    norm[t] = tile_queries(a, at[t], u, &length[t]);
    near_logits<T>(a, at[t], u);
    most[t] = largest<T>(u.near.of(t), a.taps);
    float *grad = u.grad.of(t), *grad_near = u.grad_near.of(t);
    read_tile<T>(g.out + (a.pixel(image, y, at[t].x) * a.heads + head) * a.d, a.heads * a.d, at[t].count, a.d, grad);
    for (int64_t c = 0; at[t].count < L && c < a.d; ++c)
      std::fill_n(grad + c * L + at[t].count, L - at[t].count, 0.f);
    std::fill_n(grad_near, u.grad_near.step, 0.f);
    for (int64_t i = 0; i < a.k; ++i)
      if (a.has(y + i - a.reach))
        products_of_row<T>(a, grad, slot(a, u.map_values, y + i - a.reach, a.d) + at[t].x, grad_near + i * a.k * L);
    write_tile<T>(u.scaled.of(t), a.width, L, a.d, u.scaled_along.of(t));
    write_tile<T>(grad, a.width, L, a.d, u.grad_along.of(t));
    std::fill_n(u.grad_scaled.of(t), u.grad_scaled.step, 0.f);
  }

  // the gradients of the weights
  far_logits<T, TILES>(a, x, u, most);
  const auto weights = [&](int64_t t, float *logits, int64_t count, const float *grad) INLINE_LAMBDA {
    exponentials<T>(logits, count, most[t], &sum[t], [&](int64_t m, T weight) INLINE_LAMBDA {
      mean[t] += weight * load<T>(grad + m * L);
    });
  };
  for (int64_t t = 0; t < TILES; ++t) weights(t, u.near.of(t), a.taps, u.grad_near.of(t));
  for (int64_t first = 0; first < a.M; first += CHUNK) {
    const int64_t count = std::min(CHUNK, a.M - first);
    products<T, TILES>(
        u.grad.data(), u.grad.step, u.values.data() + first * a.d, a.d * BLOCK, a.d, blocks(count),
        u.grad_far.data() + first * L, u.grad_far.step, [](int64_t, int64_t) INLINE_LAMBDA { return T{}; });
    for (int64_t t = 0; t < TILES; ++t) weights(t, u.far.of(t) + first * L, count, u.grad_far.of(t) + first * L);
  }
  for (int64_t t = 0; t < TILES; ++t) {
    inverse[t] = 1 / sum[t];
    mean[t] *= inverse[t];
  }

  // of the logits, of keys and values of pooled tokens, and of the bias by position
  for (int64_t first = 0; first < a.M; first += CHUNK) {
    const int64_t count = std::min(CHUNK, a.M - first);
    for (int64_t t = 0; t < TILES; ++t) {
      float *far = u.far.of(t) + first * L, *grad = u.grad_far.of(t) + first * L;
      for (int64_t m = 0; m < count; ++m) {
        const T weight = load<T>(far + m * L) * inverse[t];
        store(far + m * L, weight);
        store(grad + m * L, weight * (load<T>(grad + m * L) - mean[t]));
      }
    }
    const auto add_outer_of = [&](const Tiles &x, const Tiles &y, float *of) INLINE_LAMBDA {
      add_outer<T, TILES>(
          x.data() + first * L, x.step, y.data(), y.step, count, a.d, a.width, of + first * a.width);
    };
    add_outer_of(u.grad_far, u.scaled_along, of_keys);
    add_outer_of(u.far, u.grad_along, of_values);
    add_sums<T, TILES>(a, u.grad_far, u.keys_along, first, count, u.grad_scaled);
  }
  if (a.neighbours) add_bias_gradient<T, TILES>(a, u.grad_far, x, u.grad_by_row.data());

  for (int64_t t = 0; t < TILES; ++t) {
    float *near = u.near.of(t), *grad_near = u.grad_near.of(t), *grad_unit = u.grad_unit.of(t);
    if (!a.neighbours)
      scatter_bias_gradient<T>(
          a, u.grad_far.of(t), at[t].x, at[t].count, u.columns.data(), u.grad_by_row.data());

    // of learnable tokens and of the logits of neighbours
    for (int64_t n = 0; n < a.taps; ++n) store(near + n * L, load<T>(near + n * L) * inverse[t]);
    products<T>(grad_near, u.tokens_along.data(), a.taps, blocks(a.d), grad_unit);
    write_tile<T>(u.unit.of(t), a.width, L, a.d, u.unit_along.data());
    add_outer<T, 1>(grad_near, 0, u.unit_along.data(), 0, a.taps, a.d, a.width, s.tokens);
    for (int64_t n = 0; n < a.taps; ++n) {
      float *of_bias = s.sums + (1 + a.d) * WIDEST;
      const T weight = load<T>(near + n * L), of_weight = load<T>(grad_near + n * L);
      const T of_logit = weight * (of_weight - mean[t]);
      add(of_bias + n * WIDEST, of_logit);
      add(of_bias + (a.taps + n) * WIDEST, of_weight);
      store(grad_near + n * L, of_logit);
      store(near + n * L, weight + load<T>(u.added.of(t) + n * L));
    }

    // of the scaled queries, and of what is in them
    float *scaled = u.scaled.of(t), *grad_scaled = u.grad_scaled.of(t);
    for (int64_t i = 0; i < a.k; ++i)
      if (a.has(y + i - a.reach))
        sums_of_row<T>(
            a, grad_near + i * a.k * L, L, slot(a, u.map_keys, y + i - a.reach, a.d) + at[t].x, 1, grad_scaled);
    T of_length = {};
    for (int64_t c = 0; c < a.d; ++c) {
      const T grad = load<T>(grad_scaled + c * L);
      of_length += grad * load<T>(scaled + c * L);
      add(s.sums + (1 + c) * WIDEST, grad * length[t]);
      add(grad_unit + c * L, grad * length[t]);
    }
    add(s.sums, of_length);
    through_norm<T>(grad_unit, u.unit.of(t), norm[t], a.d);
    write_tile<T>(
        grad_unit, a.heads * a.d, at[t].count, a.d, g.query + (a.pixel(image, y, at[t].x) * a.heads + head) * a.d);

    // for those of the keys and values of neighbours
    if (!a.k) continue;
    put_tile<T>(a, scaled, a.d, at[t].x, at[t].count, slot(a, u.rows_of_scaled, y, a.d));
    put_tile<T>(a, u.grad.of(t), a.d, at[t].x, at[t].count, slot(a, u.rows_of_grad, y, a.d));
    put_tile<T>(a, grad_near, a.taps, at[t].x, at[t].count, slot(a, u.rows_of_logits, y, a.taps));
    put_tile<T>(a, near, a.taps, at[t].x, at[t].count, slot(a, u.rows_of_weights, y, a.taps));
  }
}

template <class T>
INLINE void backward_rows(
    const Maps &a, const Gradients &g, int64_t head, int64_t first, int64_t last, Buffers &u, Shares &s) {
  constexpr int64_t L = lanes<T>();
  for (int64_t image = 0; image < a.B; ++image) {
    pack_head(a, image, head, true, u);
    for (int64_t y = first - a.reach; y < first + a.reach; ++y) pack_row<T>(a, image, head, y, u);
    float *of_map = s.map + image * s.rows * a.W * 2 * a.d;  // of row first - reach
    for (int64_t y = first; y < last; ++y) {
      pack_row<T>(a, image, head, y + a.reach, u);
      read_rows(a, head, y, u);
      std::fill(u.grad_by_row.begin(), u.grad_by_row.end(), 0.f);
      for (int64_t x = 0; x < a.W; x += 2 * L)
        if (x + L < a.W)
          backward_tiles<T, 2>(a, g, image, head, y, x, u, s);
        else
          backward_tiles<T, 1>(a, g, image, head, y, x, u, s);
      for (int64_t i = 0; i < a.h; ++i) {
        float *row = s.table + (a.row[y * a.h + i] - s.table_first) * a.places;
        for (int64_t n = 0; n < a.places; ++n) row[n] += u.grad_by_row[i * a.places + n];
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

// numbers: B, H, W, heads, d, h, w, k, R, places, X, J, query_stride, stride, pooled_stride.
void aggregated_attention(
    const float *query, const float *key_value, const float *pooled, const float *scale, const float *embedding,
    const float *bias, const float *table, const float *rows, const float *columns, const float *tokens,
    const float *token_bias, float *out, const int64_t *numbers, int threads) {
  const Maps a(query, key_value, pooled, scale, embedding, bias, table, rows, columns, tokens, token_bias, numbers);
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

// grad_table is zero on entry. The number of tasks, and so the order of sums, does not depend on that of threads.
void aggregated_attention_backward(
    const float *query, const float *key_value, const float *pooled, const float *scale, const float *embedding,
    const float *bias, const float *table, const float *rows, const float *columns, const float *tokens,
    const float *token_bias, const float *grad, float *grad_query, float *grad_key_value, float *grad_pooled,
    float *grad_scale, float *grad_embedding, float *grad_bias, float *grad_table, float *grad_tokens,
    float *grad_token_bias,
    const int64_t *numbers, int threads) {
  const Maps a(query, key_value, pooled, scale, embedding, bias, table, rows, columns, tokens, token_bias, numbers);
  const Gradients g{grad, grad_query};
  const int64_t chunks = std::max<int64_t>(1, std::min((ROW_TASKS + a.heads - 1) / a.heads, a.H));
  const int64_t tasks = a.heads * chunks, C = a.heads * a.d;
  const int64_t of_pooled = a.B * 2 * a.M * a.width, of_tokens = a.taps * a.width;
  const int64_t of_sums = (1 + a.d + 2 * a.taps) * WIDEST;
  const int64_t map_rows = a.H + 2 * a.reach * chunks;  // of all tasks of a head
  std::vector<float> pooled_shares(tasks * of_pooled), sums(tasks * of_sums), token_sums(tasks * of_tokens);
  std::vector<float> map_shares(a.heads * a.B * map_rows * a.W * 2 * a.d);
  // the place of a row of the map in the shares of a task
  const auto share = [&](int64_t head, int64_t chunk, int64_t image, int64_t row) {
    return map_shares.data() + (((head * a.B + image) * map_rows) + row + a.reach * (2 * chunk + 1)) * a.W * 2 * a.d;
  };
  // each task has those rows of the table that it adds to: the first, and where they begin in the shares of a head
  std::vector<int64_t> table_first, table_begin{0};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const auto begin = a.row.begin() + a.H * chunk / chunks * a.h, end = a.row.begin() + a.H * (chunk + 1) / chunks * a.h;
    table_first.push_back(*std::min_element(begin, end));
    table_begin.push_back(table_begin.back() + *std::max_element(begin, end) + 1 - table_first.back());
  }
  std::vector<float> table_shares(a.heads * table_begin.back() * a.places);
  const auto table_share = [&](int64_t head, int64_t chunk) {
    return table_shares.data() + (head * table_begin.back() + table_begin[chunk]) * a.places;
  };
#pragma omp parallel num_threads(threads)
  {
    Buffers buffers(a, true);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t head = task / chunks, chunk = task % chunks, first = a.H * chunk / chunks;
      Shares s{
          pooled_shares.data() + task * of_pooled, share(head, chunk, 0, first - a.reach), map_rows,
          table_share(head, chunk), table_first[chunk], sums.data() + task * of_sums, token_sums.data() + task * of_tokens};
      backward(a, g, head, first, a.H * (chunk + 1) / chunks, buffers, s);
    }
#pragma omp for
    for (int64_t at = 0; at < a.heads * a.R; ++at)
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t head = at / a.R, row = at % a.R - table_first[chunk];
        if (row < 0 || row >= table_begin[chunk + 1] - table_begin[chunk]) continue;
        const float *more = table_share(head, chunk) + row * a.places;
        for (int64_t n = 0; n < a.places; ++n) grad_table[at * a.places + n] += more[n];
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
