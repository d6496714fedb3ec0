// Attention to neighbours and pooled tokens in one softmax on the CPU, in float32, and its gradients:
//
//     (near[n], weights) = softmax_{t, m}(local[n, t], query[n] . key[m] + bias[n, m]),  far[n] = sum_m weights[m] value[m]
//
// for every pixel n, head and image. The logits of the neighbours, `local`, are given, and -inf if there is none; their
// weights, `near`, are a result. query: (B, H, W, heads, d); key, value of the pooled tokens: (B, h, w, heads, d). Pixels
// of these maps are `..._stride` apart. local, near: (B, H, W, heads, taps); far: (B, H, W, heads, d).
//
//     bias[(y, x), (i, j)] = by_row[y, i, columns[x, j]]
//
// by_row: (heads, H, h, places). columns: (X, J), whole numbers. If that is not (W, w), the bias is interpolated from X
// and J columns, bilinearly.
//
// Only the weights of a tile of pixels are in memory. In products with keys, a vector holds pooled tokens; in the bias, it
// holds neighbouring pixels; elsewhere, channels.
//
// cpp.py calls it.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../vector.h"

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr int64_t WIDEST = 16;    // numbers of a vector
constexpr int64_t PIXELS = 8;     // of a tile
constexpr int64_t BLOCK = 2;      // vectors at a time
constexpr int64_t ROW_TASKS = 24; // at least so many tasks share the gradients, if there are rows enough

int64_t padded(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

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
  const float *query, *key, *value, *local, *by_row;
  int64_t B, H, W, heads, d, h, w, taps, places, X, J, query_stride, key_stride, value_stride;
  int64_t M, across, width;  // pooled tokens; numbers of a packed row of them, and of channels
  std::vector<int> place;     // (J, X)
  std::vector<Between> x, j;  // of W and of w
  bool whole;                 // nothing is interpolated
  bool neighbours;            // so it is, and the places of neighbouring pixels are neighbours, too

  Maps(const float *query, const float *key, const float *value, const float *local, const float *by_row,
       const float *columns, const int64_t *numbers)
      : query(query), key(key), value(value), local(local), by_row(by_row) {
    std::memcpy(&B, numbers, 14 * sizeof(int64_t));
    M = h * w;
    across = padded(M, BLOCK * WIDEST);
    width = padded(d, WIDEST);
    for (int64_t i = 0; i < J; ++i)
      for (int64_t n = 0; n < X; ++n) place.push_back(columns[n * J + i]);
    for (int64_t n = 0; n < padded(W, PIXELS); ++n) x.push_back(Between(std::min(n, W - 1), W, X));
    for (int64_t i = 0; i < w; ++i) j.push_back(Between(i, w, J));
    whole = W == X && w == J;
    neighbours = whole;
    for (int64_t i = 0; i < J; ++i)
      for (int64_t n = 1; n < X; ++n) neighbours &= place[i * X + n] == place[i * X + n - 1] + 1;
  }
  int64_t pixel(int64_t image, int64_t y, int64_t x) const { return (image * H + y) * W + x; }
};

struct Gradients {
  const float *near, *far;
  float *query, *key, *value, *local, *by_row;
};

// What one thread works on. Pooled tokens are packed as (d, across) and (M, width), a tile of pixels as (PIXELS, width).
struct Buffers {
  std::vector<float> keys, values, query, logits, sums, keys_along, values_across, grad, grad_logits, columns;
  Buffers(const Maps &a, bool backward)
      : keys(a.d * a.across), values(a.M * a.width), query(PIXELS * a.width), logits(PIXELS * a.across),
        sums(PIXELS * a.width), columns(a.J * PIXELS) {
    if (!backward) return;
    keys_along.resize(a.M * a.width);
    values_across.resize(a.d * a.across);
    grad.resize(PIXELS * a.width);
    grad_logits.resize(PIXELS * a.across);
  }
};

// The tokens of a head, `stride` apart, to (d, across).
INLINE void pack_across(const Maps &a, const float *tokens, int64_t stride, float *out) {
  for (int64_t m = 0; m < a.M; ++m)
    for (int64_t c = 0; c < a.d; ++c) out[c * a.across + m] = tokens[m * stride + c];
}

// Of `count` pixels or tokens of a head, `stride` apart, to (count, width).
INLINE void pack_along(const Maps &a, const float *pixels, int64_t stride, int64_t count, float *out) {
  for (int64_t n = 0; n < count; ++n) std::copy_n(pixels + n * stride, a.d, out + n * a.width);
}

INLINE void pack_head(const Maps &a, int64_t image, int64_t head, Buffers &u) {
  const float *key = a.key + image * a.M * a.key_stride + head * a.d;
  const float *value = a.value + image * a.M * a.value_stride + head * a.d;
  pack_across(a, key, a.key_stride, u.keys.data());
  pack_along(a, value, a.value_stride, a.M, u.values.data());
  if (u.grad.empty()) return;
  pack_along(a, key, a.key_stride, a.M, u.keys_along.data());
  pack_across(a, value, a.value_stride, u.values_across.data());
}

// The bias of a tile of pixels from x on, (PIXELS, across); -inf beyond the tokens. Pixels beyond the row have that of the
// last one.
INLINE void read_bias(const Maps &a, const float *by_row, int64_t x, int64_t count, float *columns, float *out) {
  for (int64_t i = 0; i < a.h; ++i, by_row += a.places) {
    for (int64_t j = 0; j < a.J; ++j) {
      const int *place = a.place.data() + j * a.X;
      if (a.neighbours && count == PIXELS) {
        store(columns + j * PIXELS, load<Vector>(by_row + place[x]));
        continue;
      }
      for (int64_t n = 0; n < PIXELS; ++n) {
        const Between &at = a.x[x + n];
        const float first = by_row[place[at.first]];
        columns[j * PIXELS + n] = a.whole ? first : first + at.share * (by_row[place[at.second]] - first);
      }
    }
    for (int64_t j = 0; j < a.w; j += PIXELS) {
      Vector tile[PIXELS] = {};
      const int64_t there = std::min(PIXELS, a.w - j);
      for (int64_t n = 0; n < there; ++n) {
        const Between &at = a.j[j + n];
        tile[n] = load<Vector>(columns + at.first * PIXELS);
        if (!a.whole) tile[n] += at.share * (load<Vector>(columns + at.second * PIXELS) - tile[n]);
      }
      transpose(tile);
      for (int64_t n = 0; n < PIXELS; ++n) {
        float *to = out + n * a.across + i * a.w + j;
        if (there == PIXELS)
          store(to, tile[n]);
        else
          for (int64_t m = 0; m < there; ++m) to[m] = tile[n][m];
      }
    }
  }
  for (int64_t n = 0; n < PIXELS; ++n) std::fill(out + n * a.across + a.M, out + (n + 1) * a.across, -INFINITE);
}

// Adds the gradient of by_row, from that of the bias, (PIXELS, across), zero for pixels beyond the row.
INLINE void add_bias_gradient(
    const Maps &a, const float *grad, int64_t x, int64_t count, float *columns, float *by_row) {
  for (int64_t i = 0; i < a.h; ++i, by_row += a.places) {
    std::fill_n(columns, a.J * PIXELS, 0.f);
    for (int64_t j = 0; j < a.w; j += PIXELS) {
      Vector tile[PIXELS] = {};
      const int64_t there = std::min(PIXELS, a.w - j);
      for (int64_t n = 0; n < PIXELS; ++n) {
        const float *from = grad + n * a.across + i * a.w + j;
        if (there == PIXELS)
          tile[n] = load<Vector>(from);
        else
          for (int64_t m = 0; m < there; ++m) tile[n][m] = from[m];
      }
      transpose(tile);
      for (int64_t n = 0; n < there; ++n) {
        const Between &at = a.j[j + n];
        float *first = columns + at.first * PIXELS, *second = columns + at.second * PIXELS;
        store(first, load<Vector>(first) + (1 - at.share) * tile[n]);
        store(second, load<Vector>(second) + at.share * tile[n]);
      }
    }
    for (int64_t j = 0; j < a.J; ++j) {
      const int *place = a.place.data() + j * a.X;
      if (a.neighbours && count == PIXELS) {
        store(by_row + place[x], load<Vector>(by_row + place[x]) + load<Vector>(columns + j * PIXELS));
        continue;
      }
      for (int64_t n = 0; n < count; ++n) {
        const Between &at = a.x[x + n];
        by_row[place[at.first]] += (1 - at.share) * columns[j * PIXELS + n];
        by_row[place[at.second]] += at.share * columns[j * PIXELS + n];
      }
    }
  }
}

// out[n][m] += sum_c x[n][c] * y[c][m], of a tile of pixels.
template <class T>
INLINE void products(const Maps &a, const float *x, const float *y, float *out) {
  constexpr int N = lanes<T>() > 8 ? PIXELS : PIXELS / 2;
  constexpr int64_t L = lanes<T>();
  for (int64_t m = 0; m < a.across; m += BLOCK * L)
    for (int64_t first = 0; first < PIXELS; first += N) {
      T sum[N][BLOCK];
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < BLOCK; ++i) sum[n][i] = load<T>(out + (first + n) * a.across + m + i * L);
      for (int64_t c = 0; c < a.d; ++c) {
        T own[BLOCK];
        for (int i = 0; i < BLOCK; ++i) own[i] = load<T>(y + c * a.across + m + i * L);
        for (int n = 0; n < N; ++n)
          for (int i = 0; i < BLOCK; ++i) sum[n][i] += x[(first + n) * a.width + c] * own[i];
      }
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < BLOCK; ++i) store(out + (first + n) * a.across + m + i * L, sum[n][i]);
    }
}

// out[n][c] = sum_m x[n][m] * y[m][c], of a tile of pixels.
template <class T>
INLINE void sums(const Maps &a, const float *x, const float *y, float *out) {
  constexpr int N = lanes<T>() > 8 ? PIXELS : PIXELS / 2;
  constexpr int64_t L = lanes<T>();
  const auto block = [&](int64_t first, int64_t c, auto vectors) INLINE_LAMBDA {
    constexpr int V = decltype(vectors)::value;
    T sum[N][V] = {};
    for (int64_t m = 0; m < a.M; ++m) {
      T own[V];
      for (int i = 0; i < V; ++i) own[i] = load<T>(y + m * a.width + c + i * L);
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < V; ++i) sum[n][i] += x[(first + n) * a.across + m] * own[i];
    }
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < V; ++i) store(out + (first + n) * a.width + c + i * L, sum[n][i]);
  };
  for (int64_t first = 0; first < PIXELS; first += N)
    for (int64_t c = 0; c < a.d;) {
      if (a.d - c > L) {
        block(first, c, std::integral_constant<int, 2>());
        c += 2 * L;
      } else {
        block(first, c, std::integral_constant<int, 1>());
        c += L;
      }
    }
}

// out[m][c] += sum_n x[n][m] * y[n][c], of a tile of pixels.
template <class T>
INLINE void add_outer(const Maps &a, const float *x, const float *y, float *out) {
  constexpr int64_t L = lanes<T>();
  for (int64_t c = 0; c < a.d; c += L) {
    T own[PIXELS];
    for (int n = 0; n < PIXELS; ++n) own[n] = load<T>(y + n * a.width + c);
    for (int64_t m = 0; m < a.M; ++m) {
      T sum = load<T>(out + m * a.width + c);
      for (int n = 0; n < PIXELS; ++n) sum += x[n * a.across + m] * own[n];
      store(out + m * a.width + c, sum);
    }
  }
}

template <class T>
INLINE float largest_of(T x) {
  float all[lanes<T>()];
  store(all, x);
  return *std::max_element(all, all + lanes<T>());
}

template <class T>
INLINE float sum_of(T x) {
  float all[lanes<T>()], sum = 0;
  store(all, x);
  for (float one : all) sum += one;
  return sum;
}

// The logits of `count` pixels from x on of a row.
template <class T>
INLINE void tile_logits(const Maps &a, int64_t image, int64_t head, int64_t y, int64_t x, int64_t count, Buffers &u) {
  const float *query = a.query + a.pixel(image, y, x) * a.query_stride + head * a.d;
  pack_along(a, query, a.query_stride, count, u.query.data());
  read_bias(a, a.by_row + (head * a.H + y) * a.h * a.places, x, count, u.columns.data(), u.logits.data());
  products<T>(a, u.query.data(), u.keys.data(), u.logits.data());
}

// Writes the exponentials of a pixel: to `near` those of its neighbours, and in place of its logits those of the pooled
// tokens. Returns 1 / their sum, which makes weights of them.
template <class T>
INLINE float softmax(const Maps &a, const float *local, float *logits, float *near) {
  T most = load<T>(logits);
  for (int64_t m = lanes<T>(); m < a.across; m += lanes<T>()) {
    const T other = load<T>(logits + m);
    most = other > most ? other : most;
  }
  float largest = largest_of(most), sum = 0;
  for (int64_t t = 0; t < a.taps; ++t) largest = std::max(largest, local[t]);
  for (int64_t t = 0; t < a.taps; ++t) sum += near[t] = std::exp(local[t] - largest);
  T pooled = {};
  for (int64_t m = 0; m < a.across; m += lanes<T>()) {
    const T weight = exponential(load<T>(logits + m) - largest);
    pooled += weight;
    store(logits + m, weight);
  }
  return 1 / (sum + sum_of(pooled));
}

template <class T>
INLINE void forward_rows(
    const Maps &a, int64_t image, int64_t head, int64_t first, int64_t last, Buffers &u, float *near, float *far) {
  pack_head(a, image, head, u);
  for (int64_t y = first; y < last; ++y)
    for (int64_t x = 0; x < a.W; x += PIXELS) {
      const int64_t count = std::min(PIXELS, a.W - x);
      tile_logits<T>(a, image, head, y, x, count, u);
      float inverse[PIXELS];
      for (int64_t n = 0; n < count; ++n) {
        const int64_t place = (a.pixel(image, y, x + n) * a.heads + head) * a.taps;
        inverse[n] = softmax<T>(a, a.local + place, u.logits.data() + n * a.across, near + place);
        for (int64_t t = 0; t < a.taps; ++t) near[place + t] *= inverse[n];
      }
      sums<T>(a, u.logits.data(), u.values.data(), u.sums.data());
      for (int64_t n = 0; n < count; ++n) {
        float *out = far + (a.pixel(image, y, x + n) * a.heads + head) * a.d;
        for (int64_t c = 0; c < a.d; ++c) out[c] = u.sums[n * a.width + c] * inverse[n];
      }
    }
}

// Adds to the gradients of the keys and values of all images, (B, M, width) each, and to those of by_row.
template <class T>
INLINE void backward_rows(
    const Maps &a, const Gradients &g, int64_t head, int64_t first, int64_t last, Buffers &u, float *of_keys,
    float *of_values) {
  for (int64_t image = 0; image < a.B; ++image) {
    pack_head(a, image, head, u);
    float *of_key = of_keys + image * a.M * a.width, *of_value = of_values + image * a.M * a.width;
    for (int64_t y = first; y < last; ++y)
      for (int64_t x = 0; x < a.W; x += PIXELS) {
        const int64_t count = std::min(PIXELS, a.W - x), place = a.pixel(image, y, x) * a.heads + head;
        tile_logits<T>(a, image, head, y, x, count, u);
        pack_along(a, g.far + place * a.d, a.heads * a.d, count, u.grad.data());
        std::fill(u.grad_logits.begin(), u.grad_logits.end(), 0.f);
        products<T>(a, u.grad.data(), u.values_across.data(), u.grad_logits.data());
        for (int64_t n = 0; n < PIXELS; ++n) {
          float *weights = u.logits.data() + n * a.across, *grad = u.grad_logits.data() + n * a.across;
          if (n >= count) {
            std::fill_n(weights, a.across, 0.f);
            std::fill_n(grad, a.across, 0.f);
            continue;
          }
          const int64_t own = (place + n * a.heads) * a.taps;
          float *local = g.local + own, mean = 0;  // of the gradients of the weights
          const float inverse = softmax<T>(a, a.local + own, weights, local);
          T products = {};
          for (int64_t m = 0; m < a.across; m += lanes<T>()) {
            const T weight = load<T>(weights + m) * inverse;
            store(weights + m, weight);
            products += weight * load<T>(grad + m);
          }
          for (int64_t t = 0; t < a.taps; ++t) mean += (local[t] *= inverse) * g.near[own + t];
          mean += sum_of(products);
          for (int64_t t = 0; t < a.taps; ++t) local[t] *= g.near[own + t] - mean;
          for (int64_t m = 0; m < a.across; m += lanes<T>())
            store(grad + m, load<T>(weights + m) * (load<T>(grad + m) - mean));
        }
        sums<T>(a, u.grad_logits.data(), u.keys_along.data(), u.sums.data());
        for (int64_t n = 0; n < count; ++n)
          std::copy_n(u.sums.data() + n * a.width, a.d, g.query + (place + n * a.heads) * a.d);
        add_outer<T>(a, u.grad_logits.data(), u.query.data(), of_key);
        add_outer<T>(a, u.logits.data(), u.grad.data(), of_value);
        float *by_row = g.by_row + (head * a.H + y) * a.h * a.places;
        add_bias_gradient(a, u.grad_logits.data(), x, count, u.columns.data(), by_row);
      }
  }
}

#define ROWS(NAME, TARGET, T)                                                                               \
  TARGET void forward_##NAME(                                                                               \
      const Maps &a, int64_t image, int64_t head, int64_t first, int64_t last, Buffers &u, float *near,     \
      float *far) {                                                                                         \
    forward_rows<T>(a, image, head, first, last, u, near, far);                                             \
  }                                                                                                         \
  TARGET void backward_##NAME(                                                                              \
      const Maps &a, const Gradients &g, int64_t head, int64_t first, int64_t last, Buffers &u,             \
      float *of_keys, float *of_values) {                                                                   \
    backward_rows<T>(a, g, head, first, last, u, of_keys, of_values);                                       \
  }

ROWS(plain, , Vector)
ROWS(avx2, AVX2, Vector)
ROWS(avx512, AVX512, WideVector)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)

}  // namespace

extern "C" {

// numbers: B, H, W, heads, d, h, w, taps, places, X, J, query_stride, key_stride, value_stride.
void aggregated_softmax(
    const float *query, const float *key, const float *value, const float *local, const float *by_row,
    const float *columns, float *near, float *far, const int64_t *numbers, int threads) {
  const Maps a(query, key, value, local, by_row, columns, numbers);
  const int64_t groups = a.B * a.heads, tasks = threads > 1 ? 4 * threads : 1;
  const int64_t chunks = std::max<int64_t>(1, std::min((tasks + groups - 1) / groups, a.H));
#pragma omp parallel num_threads(threads)
  {
    Buffers buffers(a, false);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < groups * chunks; ++task) {
      const int64_t group = task / chunks, chunk = task % chunks;
      forward(a, group / a.heads, group % a.heads, a.H * chunk / chunks, a.H * (chunk + 1) / chunks, buffers, near, far);
    }
  }
}

// grad_by_row is zero on entry. The number of tasks, and so the order of sums, does not depend on that of threads.
void aggregated_softmax_backward(
    const float *query, const float *key, const float *value, const float *local, const float *by_row,
    const float *columns, const float *grad_near, const float *grad_far, float *grad_query, float *grad_key, float *grad_value, float *grad_local,
    float *grad_by_row, const int64_t *numbers, int threads) {
  const Maps a(query, key, value, local, by_row, columns, numbers);
  const Gradients g{grad_near, grad_far, grad_query, grad_key, grad_value, grad_local, grad_by_row};
  const int64_t chunks = std::max<int64_t>(1, std::min((ROW_TASKS + a.heads - 1) / a.heads, a.H));
  const int64_t size = a.B * a.M * a.width;
  std::vector<float> of_keys(a.heads * chunks * size), of_values(a.heads * chunks * size);
#pragma omp parallel num_threads(threads)
  {
    Buffers buffers(a, true);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < a.heads * chunks; ++task) {
      const int64_t head = task / chunks, chunk = task % chunks;
      backward(
          a, g, head, a.H * chunk / chunks, a.H * (chunk + 1) / chunks, buffers, of_keys.data() + task * size,
          of_values.data() + task * size);
    }
#pragma omp for
    for (int64_t i = 0; i < a.B * a.M; ++i)
      for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t c = 0; c < a.d; ++c) {
          float key = 0, value = 0;
          for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t at = (head * chunks + chunk) * size + i * a.width + c;
            key += of_keys[at];
            value += of_values[at];
          }
          grad_key[(i * a.heads + head) * a.d + c] = key;
          grad_value[(i * a.heads + head) * a.d + c] = value;
        }
  }
}

}  // extern "C"
