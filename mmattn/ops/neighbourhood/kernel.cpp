// Neighbourhood attention on the CPU, in float32, and its gradients:
//
//     out[n] = sum_j softmax_j(scale * query[n] . key[j] + bias[j - n]) * value[j]
//
// over the k x k neighbours j of a pixel n, every head and every image; scale is 1 / sqrt(d). query: (B, H, W, heads, d);
// key, value: (B, KH, KW, heads, d), whose upper left part are the pixels of the queries; windows are clamped at its
// border, and KH, KW >= k * dilation. The pixels of these maps are `..._stride` apart. bias: (heads, 2k - 1, 2k - 1) or
// null. All other maps are contiguous.
//
// A row of one head is packed, so that the pixels of one class modulo the dilation are next to each other, as (d, width)
// for the products of queries and keys, or as (width, d) for the sums with the weights of these.
//
// In products, a vector holds neighbouring queries. Their neighbours are then vectors, too, at offsets of -(k - 1) to
// k - 1. Only k offsets are used inside of a map; at the border, lanes have other windows than their neighbours, and a
// mask leaves out what is not in them. In sums, a vector holds channels, and a tile of pixels shares what it reads.
// What is left out is replaced or skipped, and not multiplied by zero, which would spread NaN and infinity.
//
// cpp.py calls it.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../vector.h"

namespace {

constexpr int64_t BLOCK = 8;     // pixels and channels that are transposed at a time
constexpr int64_t TILE = 8;      // pixels of a tile
constexpr int64_t CHANNELS = 2;  // vectors of channels at a time

int64_t padded(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

struct Attention {
  const float *query, *key, *value, *bias;
  int64_t B, H, W, heads, d, KH, KW, k, dilation, query_stride, key_stride, value_stride;
};

struct Gradients {
  const float *out;
  float *query, *key, *value;
};

// Of pixels of the class `residue` modulo the dilation on an axis.
int64_t count(int64_t size, int64_t residue, int64_t dilation) {
  return size > residue ? (size - residue - 1) / dilation + 1 : 0;
}

// The first neighbour of pixel t, both counted within a class of n pixels.
int64_t window(int64_t t, int64_t n, int64_t k) { return std::min(std::max<int64_t>(t - k / 2, 0), n - k); }

// A vector of queries in a packed row, and the offsets [first, last) of its neighbours.
struct Place {
  int64_t at, first, last;
  std::vector<float> mask;  // (last - first, L): 0, or -inf at what is no neighbour of a query; empty if all are
};

// Pixels of a packed row, and the positions [first, last) of what they sum over, relative to the first one.
struct Tile {
  int64_t at, first, last;
  bool inside;  // whether pixel n sums over n - k / 2 to n + k / 2
  std::vector<unsigned> users;  // of each position: bit n is set if pixel n sums over it
};

// How rows are packed, for vectors of L numbers.
struct Columns {
  int64_t L, d, margin, segment, width, middle, lines;  // lines: offsets in a sheet of scores, of which `middle` is 0
  std::vector<Place> places;
  std::vector<Tile> queries, keys;

  Columns(const Attention &a, int64_t L)
      : L(L), d(padded(a.d, CHANNELS * L)), margin(padded(a.k - 1, BLOCK)), middle(a.k + TILE), lines(2 * middle + 1) {
    segment = padded(count(a.KW, 0, a.dilation), std::max({L, BLOCK, TILE})) + 2 * margin;
    width = segment * a.dilation;
    for (int64_t residue = 0; residue < a.dilation; ++residue) {
      const int64_t n = count(a.KW, residue, a.dilation), here = count(a.W, residue, a.dilation);
      const auto start = [&](int64_t t) { return window(t, n, a.k); };
      for (int64_t t = 0; t < here; t += L) add_place(position(residue, t), t, std::min(t + L, here), start, a.k);
      std::vector<int64_t> lowest(n, n), highest(n, -1);  // queries that a key is a neighbour of
      for (int64_t t = 0; t < here; ++t)
        for (int64_t key = start(t); key < start(t) + a.k; ++key) {
          lowest[key] = std::min(lowest[key], t);
          highest[key] = t;
        }
      const auto first_query = [&](int64_t key) { return lowest[key]; };
      const auto last_query = [&](int64_t key) { return highest[key]; };
      const auto last_key = [&](int64_t t) { return start(t) + a.k - 1; };
      for (int64_t t = 0; t < here; t += TILE) add_tile(queries, position(residue, t), t, here, a.k, start, last_key);
      for (int64_t t = 0; t < n; t += TILE) add_tile(keys, position(residue, t), t, n, a.k, first_query, last_query);
    }
  }

  // The pixels from t on, of `end`; pixel i sums over the positions from first(i) to last(i), or over none.
  template <class F, class G>
  void add_tile(std::vector<Tile> &tiles, int64_t at, int64_t t, int64_t end, int64_t k, F first, G last) {
    Tile tile{at, end, -end, t + TILE <= end, {}};
    end = std::min(t + TILE, end);
    for (int64_t i = t; i < end; ++i) {
      tile.first = std::min(tile.first, first(i) - t);
      tile.last = std::max(tile.last, last(i) - t + 1);
      tile.inside &= first(i) == i - k / 2 && last(i) == i + k / 2;
    }
    if (tile.first >= tile.last) return;
    tile.users.resize(tile.last - tile.first);
    for (int64_t i = t; i < end; ++i)
      for (int64_t j = first(i); j <= last(i); ++j) tile.users[j - t - tile.first] |= 1u << (i - t);
    tiles.push_back(tile);
  }

  template <class F>
  void add_place(int64_t at, int64_t t, int64_t end, F start, int64_t k) {
    Place place{at, k, -k, {}};
    for (int64_t i = t; i < end; ++i) {
      place.first = std::min(place.first, start(i) - i);
      place.last = std::max(place.last, start(i) - i + k);
    }
    const bool whole = end == t + L && place.last - place.first == k;
    for (int64_t offset = place.first; !whole && offset < place.last; ++offset)
      for (int64_t i = t; i < t + L; ++i) {
        const bool inside = i < end && offset >= start(i) - i && offset < start(i) - i + k;
        place.mask.push_back(inside ? 0 : -std::numeric_limits<float>::infinity());
      }
    places.push_back(place);
  }

  int64_t position(int64_t residue, int64_t t) const { return residue * segment + margin + t; }
  int64_t sheet() const { return lines * width; }  // scores of a row of queries with a row of keys
};

// A row of pixels, `step` numbers apart, of d channels each, times `scale`, to (channels, width). Positions that are of
// no pixel are not written.
INLINE void pack_columns(
    const float *pixels, int64_t step, int64_t size, int64_t d, int64_t dilation, const Columns &columns, float scale,
    float *row) {
  for (int64_t residue = 0; residue < std::min(dilation, size); ++residue) {
    const int64_t n = count(size, residue, dilation);
    for (int64_t t = 0; t < n; t += BLOCK)
      for (int64_t c = 0; c < d; c += BLOCK) {
        const int64_t there = std::min(BLOCK, n - t), channels = std::min(BLOCK, d - c);
        const float *pixel = pixels + (residue + t * dilation) * step + c;
        float *to = row + c * columns.width + columns.position(residue, t);
        if (there < BLOCK || channels < BLOCK) {
          for (int64_t i = 0; i < there; ++i)
            for (int64_t j = 0; j < channels; ++j) to[j * columns.width + i] = pixel[i * dilation * step + j] * scale;
          continue;
        }
        Vector x[BLOCK];
        for (int64_t i = 0; i < BLOCK; ++i) x[i] = load<Vector>(pixel + i * dilation * step) * scale;
        transpose(x);
        for (int64_t i = 0; i < BLOCK; ++i) store(to + i * columns.width, x[i]);
      }
  }
}

// A row of pixels and its packed form (width, channels): calls function(pixel, packed) for each pixel.
template <class P, class Q, class F>
INLINE void each_pixel(
    P *pixels, int64_t step, int64_t size, int64_t dilation, const Columns &columns, Q *row, F function) {
  for (int64_t residue = 0; residue < std::min(dilation, size); ++residue) {
    Q *packed = row + columns.position(residue, 0) * columns.d;
    for (int64_t x = residue; x < size; x += dilation, packed += columns.d) function(pixels + x * step, packed);
  }
}

// What one thread works on. Rows of keys and values, and of their gradients, are in rings: row t of a class is at t % k.
struct Buffers {
  int64_t across, along;  // numbers of a row packed as (d, width), and as (width, d)
  std::vector<float> query, keys, values, scores, sums;
  std::vector<float> query_along, keys_along, grad, grad_along, values_across, grad_scores, grad_keys, grad_values;
  Buffers(const Attention &a, const Columns &columns, bool backward)
      : across(a.d * columns.width), along(columns.width * columns.d), query(across), keys(a.k * across),
        values(a.k * along), scores(a.k * columns.sheet()), sums(along) {
    if (!backward) return;
    query_along.resize(along);
    keys_along.resize(a.k * along);
    grad.resize(across);
    grad_along.resize(along);
    values_across.resize(a.k * across);
    grad_scores.resize(a.k * columns.sheet());
    grad_keys.resize(a.k * along);
    grad_values.resize(a.k * along);
  }
};

// Consecutive query rows [first, last) of one class of one head of one image. Rows are counted within the class.
struct Task {
  int64_t image, head, residue, first, last, keys;
  Task(const Attention &a, int64_t task, int64_t chunks) {
    const int64_t group = task / chunks, chunk = task % chunks;
    residue = group % a.dilation;
    head = group / a.dilation % a.heads;
    image = group / a.dilation / a.heads;
    const int64_t rows = count(a.H, residue, a.dilation);
    first = rows * chunk / chunks;
    last = rows * (chunk + 1) / chunks;
    keys = count(a.KH, residue, a.dilation);
  }
  // The place of the head in the first pixel of a row, for maps of `rows` x `size` pixels that are `stride` apart.
  int64_t start(const Attention &a, int64_t t, int64_t rows, int64_t size, int64_t stride) const {
    return (image * rows + residue + t * a.dilation) * size * stride + head * a.d;
  }
};

// `other` where a query has no neighbour.
template <class T>
INLINE T masked(T x, const float *mask, T other) { return mask ? load<T>(mask) < 0 ? other : x : x; }

// out[n] = bias[n] + sum_c x[c] * y[c][n], for N vectors at consecutive offsets; -inf where the mask is.
template <class T, int N>
INLINE void products(
    const float *x, const float *y, int64_t channels, int64_t width, const float *bias, const float *mask, float *out) {
  constexpr int L = sizeof(T) / sizeof(float);
  T sum[N];
  for (int n = 0; n < N; ++n) sum[n] = T{} + (bias ? bias[n] : 0);
  for (int64_t c = 0; c < channels; ++c) {
    const T own = load<T>(x + c * width);
    for (int n = 0; n < N; ++n) sum[n] += own * load<T>(y + c * width + n);
  }
  for (int n = 0; n < N; ++n) {
    const float *own = mask ? mask + n * L : nullptr;
    store(out + n * width, masked(sum[n], own, T{} - std::numeric_limits<float>::infinity()));
  }
}

// The products of all queries of a row with the neighbours in one row of keys.
template <class T>
INLINE void row_products(
    const Columns &columns, const float *x, const float *y, int64_t d, int64_t k, const float *bias, bool masked,
    float *out) {
  constexpr int L = sizeof(T) / sizeof(float);
  const int64_t width = columns.width;
  for (const Place &place : columns.places) {
    const float *mask = masked && !place.mask.empty() ? place.mask.data() : nullptr;
    for (int64_t offset = place.first; offset < place.last;) {
      const auto step = [&](auto n) INLINE_LAMBDA {
        products<T, decltype(n)::value>(
            x + place.at, y + place.at + offset, d, width, bias ? bias + k - 1 + offset : nullptr,
            mask ? mask + (offset - place.first) * L : nullptr, out + (columns.middle + offset) * width + place.at);
        offset += decltype(n)::value;
      };
      const int64_t rest = place.last - offset;
      if (rest >= 13)
        step(std::integral_constant<int, 13>());
      else if (rest >= 10)
        step(std::integral_constant<int, 10>());
      else if (rest >= 7)
        step(std::integral_constant<int, 7>());
      else if (rest >= 3)
        step(std::integral_constant<int, 3>());
      else
        step(std::integral_constant<int, 1>());
    }
  }
}

// sum[n] += sum_j weights[n * by_pixel + j * by_position] * y[j] for the pixels n of a part of a tile, of which the
// first one is `shift`. With K, pixel n sums over n - K / 2 to n + K / 2, else over the positions that it is a user of.
template <class T, int N, int K>
INLINE void tile_sum(
    const Tile &tile, int64_t shift, const float *weights, int64_t by_pixel, int64_t by_position, const float *y,
    int64_t d, T (&sum)[N][CHANNELS]) {
  constexpr int L = sizeof(T) / sizeof(float);
  const auto add = [&](int64_t j, auto is_in) INLINE_LAMBDA {
    T x[CHANNELS];
    for (int c = 0; c < CHANNELS; ++c) x[c] = load<T>(y + j * d + c * L);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      if (!is_in(n)) continue;
      const float weight = weights[n * by_pixel + j * by_position];
      for (int c = 0; c < CHANNELS; ++c) sum[n][c] += weight * x[c];
    }
  };
  if constexpr (K > 0) {
#pragma GCC unroll 32
    for (int j = 0; j < N + K - 1; ++j)
      add(shift + j - K / 2, [&](int n) INLINE_LAMBDA { return n <= j && j < n + K; });
  } else {
    for (int64_t j = tile.first; j < tile.last; ++j) {
      const unsigned users = tile.users[j - tile.first] >> shift;
      if (users & ((1u << N) - 1)) add(j, [&](int n) INLINE_LAMBDA { return users >> n & 1; });
    }
  }
}

// The sums of all tiles of a row, over `rows` rows; FROM_KEYS: for queries, over keys, or the other way round, and added
// to `out`. y_of(i): row i of what is summed, packed as (width, d).
template <class T, bool FROM_KEYS, class F>
INLINE void row_sums(
    const Columns &columns, const std::vector<Tile> &tiles, const float *weights, int64_t rows, int64_t k, F y_of,
    float *out) {
  constexpr int L = sizeof(T) / sizeof(float), N = L > 8 ? 8 : 4;
  const int64_t width = columns.width, d = columns.d;
  const int64_t by_pixel = FROM_KEYS ? 1 - width : width, by_position = FROM_KEYS ? width : 1 - width;
  for (int64_t c = 0; c < d; c += CHANNELS * L)
    for (const Tile &tile : tiles)
      for (int64_t shift = 0; shift < TILE; shift += N) {
        T sum[N][CHANNELS] = {};
        float *to = out + (tile.at + shift) * d + c;
        for (int n = 0; n < N && !FROM_KEYS; ++n)
          for (int i = 0; i < CHANNELS; ++i) sum[n][i] = load<T>(to + n * d + i * L);
        for (int64_t i = 0; i < rows; ++i) {
          const float *from = weights + (i * columns.lines + columns.middle) * width + tile.at + shift * by_pixel;
          const float *y = y_of(i) + tile.at * d + c;
          const auto add = [&](auto K) INLINE_LAMBDA {
            tile_sum<T, N, decltype(K)::value>(tile, shift, from, by_pixel, by_position, y, d, sum);
          };
          if (tile.inside && k == 7)
            add(std::integral_constant<int, 7>());
          else if (tile.inside && k == 5)
            add(std::integral_constant<int, 5>());
          else if (tile.inside && k == 3)
            add(std::integral_constant<int, 3>());
          else
            add(std::integral_constant<int, 0>());
        }
        for (int n = 0; n < N; ++n)
          for (int i = 0; i < CHANNELS; ++i) store(to + n * d + i * L, sum[n][i]);
      }
}

// The scores of a place, in any order, and their masks or null.
template <class F>
INLINE void each_score(const Columns &columns, const Place &place, int64_t k, float *scores, F function) {
  for (int64_t i = 0; i < k; ++i)
    for (int64_t offset = place.first; offset < place.last; ++offset) {
      const int64_t line = i * columns.lines + columns.middle + offset;
      const float *mask = place.mask.empty() ? nullptr : place.mask.data() + (offset - place.first) * columns.L;
      function(scores + line * columns.width + place.at, mask);
    }
}

template <class T>
INLINE void softmax(const Columns &columns, int64_t k, float *scores) {
  for (const Place &place : columns.places) {
    T largest = T{} - std::numeric_limits<float>::infinity(), sum = {};
    each_score(columns, place, k, scores, [&](float *score, const float *) INLINE_LAMBDA {
      const T x = load<T>(score);
      largest = x > largest ? x : largest;
    });
    each_score(columns, place, k, scores, [&](float *score, const float *) INLINE_LAMBDA {
      const T weight = exponential(load<T>(score) - largest);
      sum += weight;
      store(score, weight);
    });
    sum = 1 / sum;
    each_score(columns, place, k, scores, [&](float *score, const float *) INLINE_LAMBDA {
      store(score, load<T>(score) * sum);
    });
  }
}

// The gradients of the scores from those of the weights, in place.
template <class T>
INLINE void softmax_gradient(const Columns &columns, int64_t k, const float *weights, float *grad) {
  for (const Place &place : columns.places) {
    T sum = {};
    each_score(columns, place, k, grad, [&](float *of_weight, const float *mask) INLINE_LAMBDA {
      sum += masked(load<T>(weights + (of_weight - grad)) * load<T>(of_weight), mask, T{});
    });
    each_score(columns, place, k, grad, [&](float *of_weight, const float *mask) INLINE_LAMBDA {
      const T weight = load<T>(weights + (of_weight - grad));
      store(of_weight, masked(weight * (load<T>(of_weight) - sum), mask, T{}));
    });
  }
}

// A row of pixels to (width, d).
INLINE void pack_pixels(
    const float *pixels, int64_t step, int64_t size, const Attention &a, const Columns &columns, float scale,
    float *row) {
  each_pixel(pixels, step, size, a.dilation, columns, row, [&](const float *pixel, float *packed) INLINE_LAMBDA {
    for (int64_t c = 0; c < a.d; ++c) packed[c] = pixel[c] * scale;
  });
}

INLINE float scale_of(const Attention &a) { return 1 / std::sqrt((float)a.d); }

// The attention weights of a row of queries; rings hold its rows of keys and values up to `loaded`, which is moved on.
template <class T>
INLINE void row_weights(
    const Attention &a, const Columns &columns, const Task &task, Buffers &u, int64_t t, int64_t start,
    int64_t &loaded) {
  for (; loaded < start + a.k; ++loaded) {
    const int64_t place = loaded % a.k;
    const float *key = a.key + task.start(a, loaded, a.KH, a.KW, a.key_stride);
    const float *value = a.value + task.start(a, loaded, a.KH, a.KW, a.value_stride);
    pack_columns(key, a.key_stride, a.KW, a.d, a.dilation, columns, 1, u.keys.data() + place * u.across);
    pack_pixels(value, a.value_stride, a.KW, a, columns, 1, u.values.data() + place * u.along);
    if (u.grad.empty()) continue;
    pack_columns(value, a.value_stride, a.KW, a.d, a.dilation, columns, 1, u.values_across.data() + place * u.across);
    pack_pixels(key, a.key_stride, a.KW, a, columns, 1, u.keys_along.data() + place * u.along);
  }
  const float *query = a.query + task.start(a, t, a.H, a.W, a.query_stride);
  pack_columns(query, a.query_stride, a.W, a.d, a.dilation, columns, scale_of(a), u.query.data());
  const int64_t side = 2 * a.k - 1;
  for (int64_t i = 0; i < a.k; ++i) {
    const float *bias = a.bias ? a.bias + (task.head * side + start + i - t + a.k - 1) * side : nullptr;
    row_products<T>(
        columns, u.query.data(), u.keys.data() + (start + i) % a.k * u.across, a.d, a.k, bias, true,
        u.scores.data() + i * columns.sheet());
  }
  softmax<T>(columns, a.k, u.scores.data());
}

template <class T>
INLINE void forward_rows(const Attention &a, const Columns &columns, const Task &task, Buffers &u, float *out) {
  int64_t loaded = window(task.first, task.keys, a.k);
  const int64_t C = a.heads * a.d;
  for (int64_t t = task.first; t < task.last; ++t) {
    const int64_t start = window(t, task.keys, a.k);
    row_weights<T>(a, columns, task, u, t, start, loaded);
    const auto value = [&](int64_t i) { return u.values.data() + (start + i) % a.k * u.along; };
    row_sums<T, true>(columns, columns.queries, u.scores.data(), a.k, a.k, value, u.sums.data());
    each_pixel(
        out + task.start(a, t, a.H, a.W, C), C, a.W, a.dilation, columns, u.sums.data(),
        [&](float *pixel, const float *sum) INLINE_LAMBDA { std::copy_n(sum, a.d, pixel); });
  }
}

// Adds to the gradients of keys and values, and to `grad_bias` of the head, which may be null.
template <class T>
INLINE void backward_rows(
    const Attention &a, const Gradients &g, const Columns &columns, const Task &task, Buffers &u, double *grad_bias) {
  constexpr int L = sizeof(T) / sizeof(float);
  const int64_t C = a.heads * a.d, sheet = columns.sheet(), side = 2 * a.k - 1;
  int64_t loaded = window(task.first, task.keys, a.k), done = loaded;
  const auto finish = [&](int64_t end) INLINE_LAMBDA {  // rows of keys that no other query of the task has
    for (; done < end; ++done) {
      const int64_t place = task.start(a, done, a.KH, a.KW, C), row = done % a.k * u.along;
      const auto add = [&](float *pixel, float *sum) INLINE_LAMBDA {
        for (int64_t c = 0; c < a.d; ++c) pixel[c] += sum[c];
        std::fill_n(sum, a.d, 0.f);
      };
      each_pixel(g.key + place, C, a.KW, a.dilation, columns, u.grad_keys.data() + row, add);
      each_pixel(g.value + place, C, a.KW, a.dilation, columns, u.grad_values.data() + row, add);
    }
  };
  for (int64_t t = task.first; t < task.last; ++t) {
    const int64_t start = window(t, task.keys, a.k), place = task.start(a, t, a.H, a.W, C);
    const auto row = [&](int64_t i) { return (start + i) % a.k; };
    finish(start);
    row_weights<T>(a, columns, task, u, t, start, loaded);
    pack_columns(g.out + place, C, a.W, a.d, a.dilation, columns, 1, u.grad.data());
    for (int64_t i = 0; i < a.k; ++i)
      row_products<T>(
          columns, u.grad.data(), u.values_across.data() + row(i) * u.across, a.d, a.k, nullptr, false,
          u.grad_scores.data() + i * sheet);
    softmax_gradient<T>(columns, a.k, u.scores.data(), u.grad_scores.data());

    const auto key = [&](int64_t i) { return u.keys_along.data() + row(i) * u.along; };
    row_sums<T, true>(columns, columns.queries, u.grad_scores.data(), a.k, a.k, key, u.sums.data());
    each_pixel(
        g.query + place, C, a.W, a.dilation, columns, u.sums.data(),
        [&](float *pixel, const float *sum) INLINE_LAMBDA {
          for (int64_t c = 0; c < a.d; ++c) pixel[c] = sum[c] * scale_of(a);
        });
    const float *query = a.query + task.start(a, t, a.H, a.W, a.query_stride);
    pack_pixels(query, a.query_stride, a.W, a, columns, scale_of(a), u.query_along.data());
    pack_pixels(g.out + place, C, a.W, a, columns, 1, u.grad_along.data());
    for (int64_t i = 0; i < a.k; ++i) {
      const auto add = [&](const std::vector<float> &weights, const std::vector<float> &y, std::vector<float> &sums)
                           INLINE_LAMBDA {
        row_sums<T, false>(
            columns, columns.keys, weights.data() + i * sheet, 1, a.k, [&](int64_t) { return y.data(); },
            sums.data() + row(i) * u.along);
      };
      add(u.grad_scores, u.query_along, u.grad_keys);
      add(u.scores, u.grad_along, u.grad_values);
    }
    for (int64_t i = 0; grad_bias && i < a.k; ++i)
      for (int64_t n = 0; n < side; ++n) {
        const int64_t offset = n - a.k + 1;
        const float *line = u.grad_scores.data() + i * sheet + (columns.middle + offset) * columns.width;
        T sum = {};
        for (const Place &at : columns.places)
          if (offset >= at.first && offset < at.last) sum += load<T>(line + at.at);
        double total = 0;
        for (int j = 0; j < L; ++j) total += sum[j];
        grad_bias[(start + i - t + a.k - 1) * side + n] += total;
      }
  }
  finish(loaded);
}

// Everything above, compiled for one set of instructions.
#define ROWS(NAME, TARGET, VECTOR)                                                                            \
  TARGET void forward_##NAME(                                                                                 \
      const Attention &a, const Columns &columns, const Task &task, Buffers &u, float *out) {                 \
    forward_rows<VECTOR>(a, columns, task, u, out);                                                           \
  }                                                                                                           \
  TARGET void backward_##NAME(                                                                                \
      const Attention &a, const Gradients &g, const Columns &columns, const Task &task, Buffers &u,           \
      double *grad_bias) {                                                                                    \
    backward_rows<VECTOR>(a, g, columns, task, u, grad_bias);                                                 \
  }

ROWS(plain, , Vector)
ROWS(avx2, AVX2, Vector)
ROWS(avx512, AVX512, WideVector)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)
const int64_t LANES = HAS_AVX512 ? sizeof(WideVector) / sizeof(float) : sizeof(Vector) / sizeof(float);

Attention describe(
    const float *query, const float *key, const float *value, const float *bias, const int64_t *numbers) {
  Attention a{query, key, value, bias};
  std::memcpy(&a.B, numbers, 12 * sizeof(int64_t));
  return a;
}

// Into how many tasks the rows of a class are split: each has `rows` at least.
int64_t split(const Attention &a, int64_t tasks, int64_t rows) {
  const int64_t groups = a.B * a.heads * a.dilation;
  return std::max<int64_t>(1, std::min((tasks + groups - 1) / groups, a.H / a.dilation / rows));
}

}  // namespace

extern "C" {

// numbers: B, H, W, heads, d, KH, KW, k, dilation, query_stride, key_stride, value_stride.
void neighbourhood_attention(
    const float *query, const float *key, const float *value, const float *bias, float *out, const int64_t *numbers,
    int threads) {
  const Attention a = describe(query, key, value, bias, numbers);
  const Columns columns(a, LANES);
  const int64_t chunks = split(a, threads > 1 ? 4 * threads : 1, a.k);
  const int64_t tasks = a.B * a.heads * a.dilation * chunks;
#pragma omp parallel num_threads(threads)
  {
    Buffers buffers(a, columns, false);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) forward(a, columns, Task(a, task, chunks), buffers, out);
  }
}

// grad_key and grad_value are zero on entry. Rows of keys are written by the tasks of even number first, then by the
// others: two of a kind have no row in common. Sums for the bias are in float32 along a row and in float64 over rows.
void neighbourhood_attention_backward(
    const float *query, const float *key, const float *value, const float *bias, const float *grad, float *grad_query,
    float *grad_key, float *grad_value, float *grad_bias, const int64_t *numbers, int threads) {
  const Attention a = describe(query, key, value, bias, numbers);
  const Gradients g{grad, grad_query, grad_key, grad_value};
  const Columns columns(a, LANES);
  const int64_t chunks = split(a, threads > 1 ? 4 * threads : 1, 2 * a.k);
  const int64_t groups = a.B * a.heads * a.dilation, table = bias ? (2 * a.k - 1) * (2 * a.k - 1) : 0;
  std::vector<double> totals(groups * chunks * table);  // of each task, so that sums do not depend on their timing
#pragma omp parallel num_threads(threads)
  {
    Buffers buffers(a, columns, true);
    for (int64_t parity = 0; parity < 2; ++parity) {
      const int64_t half = (chunks - parity + 1) / 2;
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < groups * half; ++i) {
        const int64_t task = i / std::max<int64_t>(half, 1) * chunks + i % std::max<int64_t>(half, 1) * 2 + parity;
        backward(
            a, g, columns, Task(a, task, chunks), buffers, table ? totals.data() + task * table : nullptr);
      }
    }
  }
  for (int64_t head = 0; table && head < a.heads; ++head)
    for (int64_t i = 0; i < table; ++i) {
      double sum = 0;
      for (int64_t task = 0; task < groups * chunks; ++task)
        if (task / chunks / a.dilation % a.heads == head) sum += totals[task * table + i];
      grad_bias[head * table + i] = sum;
    }
}

}  // extern "C"
