// Attention along lines by relative position on the CPU, in float32, and its gradients:
//
//     out[i] = sum_j (query[i] . table[j - i + A - 1]) * value[j]
//
// over the pixels j that are at most `reach` from i, for every line of A pixels, every head and every image. A line is a
// column (dim 1) or a row (dim 2) of a map. query: (B, H, W, heads, k), value: (B, H, W, heads, v), whose pixels are
// `query_stride` and `value_stride` apart; table: (2A - 1, k). All other maps are contiguous.
//
// cpp.py calls it.

#include <algorithm>
#include <vector>

#include "../vector.h"

namespace {

int64_t padded(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

struct Axial {
  const float *query, *value;
  int64_t B, H, W, heads, k, v, dim, query_stride, value_stride, reach;
  int64_t A, lines;  // pixels of a line; lines of all images and heads
  int64_t lanes;     // numbers in a vector
  int64_t block;     // queries at a time, so that a value serves several once it is loaded
};

// The pixels of a line: the first one, and how far apart they are.
struct Line {
  int64_t first, step, head;
  Line(const Axial &a, int64_t line) : head(line % a.heads) {
    const int64_t count = a.dim == 1 ? a.W : a.H, b = line / a.heads / count, place = line / a.heads % count;
    first = b * a.H * a.W + (a.dim == 1 ? place : place * a.W);
    step = a.dim == 1 ? a.W : 1;
  }
};

// `count` rows of `channels` numbers, `from_step` apart, to rows that are `to_step` apart.
void copy_rows(const float *from, int64_t from_step, int64_t count, int64_t channels, float *to, int64_t to_step) {
  for (int64_t i = 0; i < count; ++i) std::copy_n(from + i * from_step, channels, to + i * to_step);
}

void transpose(const float *from, int64_t rows, int64_t columns, float *to, int64_t width) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < columns; ++c) to[c * width + i] = from[i * columns + c];
}

// What one thread works on: one line, and the scores of one block of its queries. Rows are padded, so that products are
// of whole vectors and whole blocks. What is no pair of a query and a pixel within its reach is skipped in sums, and not
// multiplied by zero, which would spread NaN and infinity.
struct Buffers {
  int64_t k, v, width;  // padded channels; numbers in a row of scores, with what skewed rows have before and after it
  std::vector<float> query, value, value_t, grad, grad_query, grad_value, grad_table, scores, grad_scores, sums;
  Buffers(const Axial &a, bool backward)
      : k(padded(a.k, a.lanes)), v(padded(a.v, a.lanes)), width(padded(a.A + a.block, a.lanes) + 2 * a.lanes),
        query((a.A + a.block) * k), value(a.A * v), scores((a.block + 1) * width), sums(a.block * std::max(k, v)) {
    if (!backward) return;
    value_t.resize(v * width);
    grad.resize((a.A + a.block) * v);
    grad_query.resize((a.A + a.block) * k);
    grad_value.resize(a.A * v);
    grad_table.resize((2 * a.A + 2 * a.block) * k);
    grad_scores.resize((a.block + 1) * width);
  }
};

// The table with a block of rows before and after it, and its transpose.
struct Table {
  int64_t width;  // numbers in a row of the transpose
  std::vector<float> rows, columns;
  Table(const Axial &a, const float *table, int64_t k)
      : width(2 * a.A + 2 * a.block + 2 * a.lanes), rows((2 * a.A + 2 * a.block) * k), columns(k * width) {
    copy_rows(table, a.k, 2 * a.A - 1, a.k, rows.data() + a.block * k, k);
    transpose(rows.data(), 2 * a.A + 2 * a.block, k, columns.data(), width);
  }
};

// The functions below work on BLOCK rows of scores, one for each query. Row n begins `skew * n` numbers later. With
// skew 1, the scores of one column belong to the same relative position.

// rows[n][j + skew * n] = sum_c x[n][c] * y[c][j], for N vectors of numbers j.
template <class T, int BLOCK, int N>
INLINE void products(
    const float *x, int64_t channels, const float *y, int64_t y_width, int64_t skew, float *rows, int64_t width) {
  constexpr int64_t L = lanes<T>();
  T sum[BLOCK][N] = {};
  for (int64_t c = 0; c < channels; ++c) {
    T column[N];
    for (int64_t m = 0; m < N; ++m) column[m] = load<T>(y + c * y_width + m * L);
    for (int64_t n = 0; n < BLOCK; ++n)
      for (int64_t m = 0; m < N; ++m) sum[n][m] += x[n * channels + c] * column[m];
  }
  for (int64_t n = 0; n < BLOCK; ++n)
    for (int64_t m = 0; m < N; ++m) store(rows + n * (width + skew) + m * L, sum[n][m]);
}

// The same for j from 0 to count - 1.
template <class T, int BLOCK>
INLINE void products(
    const float *x, int64_t channels, const float *y, int64_t y_width, int64_t skew, float *rows, int64_t width,
    int64_t count) {
  constexpr int64_t L = lanes<T>();
  int64_t j = 0;
  for (; j + L < count; j += 2 * L) products<T, BLOCK, 2>(x, channels, y + j, y_width, skew, rows + j, width);
  if (j < count) products<T, BLOCK, 1>(x, channels, y + j, y_width, skew, rows + j, width);
}

// The numbers j of rows that the block of queries from i on has pairs at: in rows n without skew, j is a pixel; with
// skew, a distance, plus BLOCK - 1.
template <int BLOCK, int skew>
struct Pairs {
  int64_t A, R, i, queries;
  int64_t first, last;       // numbers j in [first, last)
  int64_t all_from, all_to;  // of these, all BLOCK queries have pairs at [all_from, all_to)
  Pairs(const Axial &a, int64_t i, int64_t queries) : A(a.A), R(a.reach), i(i), queries(queries) {
    const int64_t middle = i + BLOCK - 1;  // j of the distance 0
    if (skew) {
      first = std::max<int64_t>(middle - R, BLOCK - queries);
      last = std::min(middle + R + 1, A + BLOCK - 1);
      all_from = BLOCK - 1;
      all_to = A;
    } else {
      first = std::max<int64_t>(i - R, 0);
      last = std::min(i + queries + R, A);
      all_from = middle - R;
      all_to = i + R + 1;
    }
    all_to = queries < BLOCK ? first : std::max(std::min(all_to, last), first);
    all_from = std::min(std::max(all_from, first), all_to);
  }
  // Calls function(j, is_in) for each j; is_in(n) tells whether query n has a pair at j.
  template <class F>
  INLINE void each(F function) const {
    const auto some = [&](int64_t from, int64_t to) INLINE_LAMBDA {
      for (int64_t j = from; j < to; ++j) {
        const int64_t low = skew ? BLOCK - 1 - j : j - R - i, high = skew ? A + BLOCK - 1 - j : j + R + 1 - i;
        const int64_t end = std::min(high, queries);
        function(j, [&](int64_t n) INLINE_LAMBDA { return n >= low && n < end; });
      }
    };
    some(first, all_from);
    for (int64_t j = all_from; j < all_to; ++j) function(j, [](int64_t) INLINE_LAMBDA { return true; });
    some(all_to, last);
  }
};

// out[n] = sum_j rows[n][j + skew * n] * y[j]; y has rows of `channels`.
template <class T, int BLOCK, int N, int skew>
INLINE void weighted_sum(
    const Pairs<BLOCK, skew> pairs, const float *rows, int64_t width, const float *y, int64_t channels, int64_t c,
    float *out) {
  constexpr int64_t L = lanes<T>();
  T sum[BLOCK][N] = {};
  pairs.each([&](int64_t j, auto is_in) INLINE_LAMBDA {
    T row[N];
    for (int64_t m = 0; m < N; ++m) row[m] = load<T>(y + j * channels + c + m * L);
#pragma GCC unroll 16
    for (int64_t n = 0; n < BLOCK; ++n) {
      if (!is_in(n)) continue;
      for (int64_t m = 0; m < N; ++m) sum[n][m] += rows[n * (width + skew) + j] * row[m];
    }
  });
  for (int64_t n = 0; n < BLOCK; ++n)
    for (int64_t m = 0; m < N; ++m) store(out + n * channels + c + m * L, sum[n][m]);
}

// out[j] += sum_n rows[n][j + skew * n] * x[n].
template <class T, int BLOCK, int N, int skew>
INLINE void outer_products(
    const Pairs<BLOCK, skew> pairs, const float *rows, int64_t width, const float *x, int64_t channels, int64_t c,
    float *out) {
  constexpr int64_t L = lanes<T>();
  T row[BLOCK][N];
  for (int64_t n = 0; n < BLOCK; ++n)
    for (int64_t m = 0; m < N; ++m) row[n][m] = load<T>(x + n * channels + c + m * L);
  pairs.each([&](int64_t j, auto is_in) INLINE_LAMBDA {
    for (int64_t m = 0; m < N; ++m) {
      float *p = out + j * channels + c + m * L;
      T sum = load<T>(p);
#pragma GCC unroll 16
      for (int64_t n = 0; n < BLOCK; ++n)
        if (is_in(n)) sum += rows[n * (width + skew) + j] * row[n][m];
      store(p, sum);
    }
  });
}

#define BY_CHANNELS(FUNCTION, CHANNELS, ...)                                                             \
  {                                                                                                      \
    int64_t c = 0;                                                                                       \
    for (; c + lanes<T>() < (CHANNELS); c += 2 * lanes<T>()) FUNCTION<T, BLOCK, 2>(__VA_ARGS__);         \
    if (c < (CHANNELS)) FUNCTION<T, BLOCK, 1>(__VA_ARGS__);                                              \
  }

// Skewed rows begin at the relative position of the last query of the block to pixel 0, BLOCK - 1 before that of the
// first query.
template <int BLOCK>
INLINE int64_t first_position(const Axial &a, int64_t i) { return a.A - 1 - i - (BLOCK - 1) + BLOCK; }

template <class T, int BLOCK>
INLINE void forward_line(const Axial a, const Table &table, Buffers &u, float *out, int64_t line) {
  const Line l(a, line);
  const int64_t k = u.k, v = u.v, width = u.width, skewed = a.A + BLOCK - 1;
  float *scores = u.scores.data() + BLOCK - 1;
  copy_rows(a.query + l.first * a.query_stride + l.head * a.k, l.step * a.query_stride, a.A, a.k, u.query.data(), k);
  copy_rows(a.value + l.first * a.value_stride + l.head * a.v, l.step * a.value_stride, a.A, a.v, u.value.data(), v);
  for (int64_t i = 0; i < a.A; i += BLOCK) {
    const float *positions = table.columns.data() + first_position<BLOCK>(a, i);
    products<T, BLOCK>(
        u.query.data() + i * k, k, positions, table.width, 1, scores - (BLOCK - 1), width, skewed);
    const Pairs<BLOCK, 0> by_pixel(a, i, BLOCK);  // sums of queries that are not in the line are not copied
    BY_CHANNELS(weighted_sum, v, by_pixel, scores, width, u.value.data(), v, c, u.sums.data())
    float *to = out + (l.first + i * l.step) * a.heads * a.v + l.head * a.v;
    copy_rows(u.sums.data(), v, std::min<int64_t>(BLOCK, a.A - i), a.v, to, l.step * a.heads * a.v);
  }
}

// Adds the table's gradient, padded as the table, to u.grad_table.
template <class T, int BLOCK>
INLINE void backward_line(
    const Axial a, const Table &table, Buffers &u, const float *grad, float *grad_query, float *grad_value,
    int64_t line) {
  const Line l(a, line);
  const int64_t k = u.k, v = u.v, width = u.width, skewed = a.A + BLOCK - 1;
  const int64_t queries = l.first * a.heads * a.k + l.head * a.k, values = l.first * a.heads * a.v + l.head * a.v;
  copy_rows(a.query + l.first * a.query_stride + l.head * a.k, l.step * a.query_stride, a.A, a.k, u.query.data(), k);
  copy_rows(a.value + l.first * a.value_stride + l.head * a.v, l.step * a.value_stride, a.A, a.v, u.value.data(), v);
  copy_rows(grad + values, l.step * a.heads * a.v, a.A, a.v, u.grad.data(), v);
  transpose(u.value.data(), a.A, v, u.value_t.data(), width);
  std::fill(u.grad_value.begin(), u.grad_value.end(), 0.f);
  float *scores = u.scores.data() + BLOCK - 1;
  float *grad_scores = u.grad_scores.data() + BLOCK - 1;
  for (int64_t i = 0; i < a.A; i += BLOCK) {
    const int64_t first = first_position<BLOCK>(a, i);
    const int64_t queries = std::min<int64_t>(BLOCK, a.A - i);
    const Pairs<BLOCK, 0> by_pixel(a, i, queries);
    const Pairs<BLOCK, 1> by_distance(a, i, queries);
    products<T, BLOCK>(
        u.query.data() + i * k, k, table.columns.data() + first, table.width, 1, scores - (BLOCK - 1), width, skewed);
    BY_CHANNELS(outer_products, v, by_pixel, scores, width, u.grad.data() + i * v, v, c, u.grad_value.data())
    products<T, BLOCK>(u.grad.data() + i * v, v, u.value_t.data(), width, 0, grad_scores, width, a.A);
    BY_CHANNELS(weighted_sum, k, by_distance, grad_scores - (BLOCK - 1), width, table.rows.data() + first * k, k, c,
                u.grad_query.data() + i * k)
    BY_CHANNELS(outer_products, k, by_distance, grad_scores - (BLOCK - 1), width, u.query.data() + i * k, k, c,
                u.grad_table.data() + first * k)
  }
  copy_rows(u.grad_query.data(), k, a.A, a.k, grad_query + queries, l.step * a.heads * a.k);
  copy_rows(u.grad_value.data(), v, a.A, a.v, grad_value + values, l.step * a.heads * a.v);
}

// A line, compiled for one set of instructions, into which everything above is inlined.
#define LINES(NAME, TARGET, T, BLOCK)                                                                              \
  TARGET void forward_##NAME(const Axial a, const Table &table, Buffers &u, float *out, int64_t line) {            \
    forward_line<T, BLOCK>(a, table, u, out, line);                                                                \
  }                                                                                                                \
  TARGET void backward_##NAME(const Axial a, const Table &table, Buffers &u, const float *grad, float *grad_query, \
                              float *grad_value, int64_t line) {                                                   \
    backward_line<T, BLOCK>(a, table, u, grad, grad_query, grad_value, line);                                      \
  }

constexpr int WIDE_BLOCK = 8, NARROW_BLOCK = 4;  // as many as the registers hold
LINES(plain, , Vector, NARROW_BLOCK)
LINES(avx2, AVX2, Vector, NARROW_BLOCK)
LINES(avx512, AVX512, WideVector, WIDE_BLOCK)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)

Axial describe(const float *query, const float *value, const int64_t *numbers) {
  Axial a{query, value};
  std::memcpy(&a.B, numbers, 10 * sizeof(int64_t));
  a.A = a.dim == 1 ? a.H : a.W;
  a.reach = std::min(a.reach, a.A - 1);
  a.lines = a.B * (a.dim == 1 ? a.W : a.H) * a.heads;
  a.lanes = HAS_AVX512 ? lanes<WideVector>() : lanes<Vector>();
  a.block = HAS_AVX512 ? WIDE_BLOCK : NARROW_BLOCK;
  return a;
}

}  // namespace

extern "C" {

// numbers: B, H, W, heads, k, v, dim, query_stride, value_stride, reach.
void axial_sum(
    const float *query, const float *value, const float *table, float *out, const int64_t *numbers, int threads) {
  const Axial a = describe(query, value, numbers);
  const Table padded_table(a, table, padded(a.k, a.lanes));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    Buffers u(a, false);
    for (int64_t line = a.lines * thread / threads; line < a.lines * (thread + 1) / threads; ++line)
      forward(a, padded_table, u, out, line);
  }
}

// Sums over lines, in the table's gradient, are in float64.
void axial_sum_backward(
    const float *query, const float *value, const float *table, const float *grad, float *grad_query, float *grad_value,
    float *grad_table, const int64_t *numbers, int threads) {
  const Axial a = describe(query, value, numbers);
  const int64_t k = padded(a.k, a.lanes), rows = 2 * a.A - 1;
  const Table padded_table(a, table, k);
  std::vector<double> totals(threads * rows * k);  // of each thread, so that sums do not depend on their timing
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    Buffers u(a, true);
    for (int64_t line = a.lines * thread / threads; line < a.lines * (thread + 1) / threads; ++line) {
      std::fill(u.grad_table.begin(), u.grad_table.end(), 0.f);
      backward(a, padded_table, u, grad, grad_query, grad_value, line);
      for (int64_t i = 0; i < rows * k; ++i) totals[thread * rows * k + i] += u.grad_table[a.block * k + i];
    }
  }
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t c = 0; c < a.k; ++c) {
      double sum = 0;
      for (int thread = 0; thread < threads; ++thread) sum += totals[(thread * rows + m) * k + c];
      grad_table[m * a.k + c] = sum;
    }
}

}  // extern "C"
