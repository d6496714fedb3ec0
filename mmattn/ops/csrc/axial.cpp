// Attention along lines by relative position on the CPU, in float32, and its gradients:
//
//     out[i] = sum_j (query[i] . table[j - i + A - 1]) * value[j]
//
// for every line of A pixels, every head and every image. A line is a column (dim 1) or a row (dim 2) of a map. query:
// (B, H, W, heads, k), value: (B, H, W, heads, v), whose pixels are `query_stride` and `value_stride` apart; table:
// (2A - 1, k). All other maps are contiguous.
//
// mmattn/ops/axial_cpu.py calls it.

#include <algorithm>
#include <vector>

#include "vector.h"

namespace {

constexpr int64_t L = 8;      // numbers in a vector
constexpr int64_t BLOCK = 4;  // queries at a time, so that a value serves several once it is loaded

int64_t padded(int64_t size) { return (size + L - 1) / L * L; }

struct Axial {
  const float *query, *value;
  int64_t B, H, W, heads, k, v, dim, query_stride, value_stride, A, lines;  // lines: of all images and heads
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

// What one thread works on: one line, and the scores of one block of its queries. Rows are padded with zeros, so that
// loops run over whole vectors and whole blocks.
struct Buffers {
  int64_t k, v, width;  // padded channels; numbers in a row of scores
  std::vector<float> query, value, value_t, grad, grad_query, grad_value, grad_table, scores, grad_scores, sums;
  Buffers(const Axial &a, bool backward)
      : k(padded(a.k)), v(padded(a.v)), width(padded(a.A) + 3 * L), query((a.A + BLOCK) * k), value(a.A * v),
        scores(BLOCK * width), sums(BLOCK * std::max(k, v)) {
    if (!backward) return;
    value_t.resize(v * width);
    grad.resize((a.A + BLOCK) * v);
    grad_query.resize((a.A + BLOCK) * k);
    grad_value.resize(a.A * v);
    grad_table.resize((2 * a.A + 2 * BLOCK) * k);
    grad_scores.resize((BLOCK + 1) * width);
  }
};

// The table with BLOCK rows of zeros before and after it, and its transpose.
struct Table {
  int64_t width;  // numbers in a row of the transpose
  std::vector<float> rows, columns;
  Table(const Axial &a, const float *table, int64_t k)
      : width(2 * a.A + BLOCK + 3 * L), rows((2 * a.A + 2 * BLOCK) * k), columns(k * width) {
    copy_rows(table, a.k, 2 * a.A - 1, a.k, rows.data() + BLOCK * k, k);
    transpose(rows.data(), 2 * a.A + BLOCK, k, columns.data(), width);
  }
};

// rows[n][j] = sum_c x[n][c] * y[c][j + n * shift], for BLOCK rows x of `channels` numbers.
INLINE void products(
    const float *x, int64_t channels, const float *y, int64_t y_width, int64_t shift, float *rows, int64_t width,
    int64_t count) {
  for (int64_t j = 0; j < count; j += 2 * L) {
    Vector sum[BLOCK][2] = {};
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t n = 0; n < BLOCK; ++n) {
        const float *p = y + c * y_width + j + n * shift;
        sum[n][0] += x[n * channels + c] * load<Vector>(p);
        sum[n][1] += x[n * channels + c] * load<Vector>(p + L);
      }
    for (int64_t n = 0; n < BLOCK; ++n) {
      store(rows + n * width + j, sum[n][0]);
      store(rows + n * width + j + L, sum[n][1]);
    }
  }
}

// out[n] = sum_j rows[n][j] * y[j + n * shift], for BLOCK rows of `count` numbers; y has rows of `channels`.
template <int N>
INLINE void weighted_sum(
    const float *rows, int64_t width, int64_t count, const float *y, int64_t channels, int64_t shift, int64_t c,
    float *out) {
  Vector sum[BLOCK][N] = {};
  for (int64_t j = 0; j < count; ++j)
    for (int64_t n = 0; n < BLOCK; ++n)
      for (int64_t m = 0; m < N; ++m)
        sum[n][m] += rows[n * width + j] * load<Vector>(y + (j + n * shift) * channels + c + m * L);
  for (int64_t n = 0; n < BLOCK; ++n)
    for (int64_t m = 0; m < N; ++m) store(out + n * channels + c + m * L, sum[n][m]);
}

// out[j] += sum_n rows[n][j - n * shift] * x[n], for j from 0 to count - 1.
template <int N>
INLINE void outer_products(
    const float *rows, int64_t width, int64_t count, const float *x, int64_t channels, int64_t shift, int64_t c,
    float *out) {
  Vector row[BLOCK][N];
  for (int64_t n = 0; n < BLOCK; ++n)
    for (int64_t m = 0; m < N; ++m) row[n][m] = load<Vector>(x + n * channels + c + m * L);
  for (int64_t j = 0; j < count; ++j)
    for (int64_t m = 0; m < N; ++m) {
      float *p = out + j * channels + c + m * L;
      Vector sum = load<Vector>(p);
      for (int64_t n = 0; n < BLOCK; ++n) sum += rows[n * width + j - n * shift] * row[n][m];
      store(p, sum);
    }
}

#define BY_CHANNELS(FUNCTION, CHANNELS, ...)                              \
  {                                                                       \
    int64_t c = 0;                                                        \
    for (; c + 2 * L <= (CHANNELS); c += 2 * L) FUNCTION<2>(__VA_ARGS__); \
    if (c < (CHANNELS)) FUNCTION<1>(__VA_ARGS__);                         \
  }

INLINE void forward_line(const Axial a, const Table &table, Buffers &u, float *out, int64_t line) {
  const Line l(a, line);
  const int64_t k = u.k, v = u.v, width = u.width;
  copy_rows(a.query + l.first * a.query_stride + l.head * a.k, l.step * a.query_stride, a.A, a.k, u.query.data(), k);
  copy_rows(a.value + l.first * a.value_stride + l.head * a.v, l.step * a.value_stride, a.A, a.v, u.value.data(), v);
  for (int64_t i = 0; i < a.A; i += BLOCK) {
    const int64_t offset = a.A - 1 - i + BLOCK;  // of the first query to pixel 0, in the padded table
    products(u.query.data() + i * k, k, table.columns.data() + offset, table.width, -1, u.scores.data(), width, a.A);
    BY_CHANNELS(weighted_sum, v, u.scores.data(), width, a.A, u.value.data(), v, 0, c, u.sums.data())
    float *to = out + (l.first + i * l.step) * a.heads * a.v + l.head * a.v;
    copy_rows(u.sums.data(), v, std::min(BLOCK, a.A - i), a.v, to, l.step * a.heads * a.v);
  }
}

// Adds the table's gradient, padded as the table, to u.grad_table.
INLINE void backward_line(
    const Axial a, const Table &table, Buffers &u, const float *grad, float *grad_query, float *grad_value,
    int64_t line) {
  const Line l(a, line);
  const int64_t k = u.k, v = u.v, width = u.width;
  const int64_t queries = l.first * a.heads * a.k + l.head * a.k, values = l.first * a.heads * a.v + l.head * a.v;
  copy_rows(a.query + l.first * a.query_stride + l.head * a.k, l.step * a.query_stride, a.A, a.k, u.query.data(), k);
  copy_rows(a.value + l.first * a.value_stride + l.head * a.v, l.step * a.value_stride, a.A, a.v, u.value.data(), v);
  copy_rows(grad + values, l.step * a.heads * a.v, a.A, a.v, u.grad.data(), v);
  transpose(u.value.data(), a.A, v, u.value_t.data(), width);
  std::fill(u.grad_value.begin(), u.grad_value.end(), 0.f);
  float *grad_scores = u.grad_scores.data() + L;  // after zeros
  for (int64_t i = 0; i < a.A; i += BLOCK) {
    const int64_t offset = a.A - 1 - i + BLOCK;
    products(u.query.data() + i * k, k, table.columns.data() + offset, table.width, -1, u.scores.data(), width, a.A);
    BY_CHANNELS(outer_products, v, u.scores.data(), width, a.A, u.grad.data() + i * v, v, 0, c, u.grad_value.data())
    products(u.grad.data() + i * v, v, u.value_t.data(), width, 0, grad_scores, width, a.A);
    BY_CHANNELS(weighted_sum, k, grad_scores, width, a.A, table.rows.data() + offset * k, k, -1, c,
                u.grad_query.data() + i * k)
    // The last query of the block is the farthest: its first pixel is BLOCK - 1 rows before that of the first query.
    BY_CHANNELS(outer_products, k, grad_scores - (BLOCK - 1), width, a.A + BLOCK - 1, u.query.data() + i * k, k, -1, c,
                u.grad_table.data() + (offset - (BLOCK - 1)) * k)
  }
  copy_rows(u.grad_query.data(), k, a.A, a.k, grad_query + queries, l.step * a.heads * a.k);
  copy_rows(u.grad_value.data(), v, a.A, a.v, grad_value + values, l.step * a.heads * a.v);
}

// A line, compiled for one set of instructions, into which everything above is inlined.
#define LINES(NAME, TARGET)                                                                                        \
  TARGET void forward_##NAME(const Axial a, const Table &table, Buffers &u, float *out, int64_t line) {            \
    forward_line(a, table, u, out, line);                                                                          \
  }                                                                                                                \
  TARGET void backward_##NAME(const Axial a, const Table &table, Buffers &u, const float *grad, float *grad_query, \
                              float *grad_value, int64_t line) {                                                   \
    backward_line(a, table, u, grad, grad_query, grad_value, line);                                                \
  }

LINES(plain, )
LINES(avx2, AVX2)
BEST_OF(forward)
BEST_OF(backward)

Axial describe(const float *query, const float *value, const int64_t *numbers) {
  Axial a{query, value};
  std::memcpy(&a.B, numbers, 9 * sizeof(int64_t));
  a.A = a.dim == 1 ? a.H : a.W;
  a.lines = a.B * (a.dim == 1 ? a.W : a.H) * a.heads;
  return a;
}

}  // namespace

extern "C" {

// numbers: B, H, W, heads, k, v, dim, query_stride, value_stride.
void axial_sum(
    const float *query, const float *value, const float *table, float *out, const int64_t *numbers, int threads) {
  const Axial a = describe(query, value, numbers);
  const Table padded_table(a, table, padded(a.k));
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
  const int64_t k = padded(a.k), rows = 2 * a.A - 1;
  const Table padded_table(a, table, k);
  std::vector<double> totals(threads * rows * k);  // of each thread, so that sums do not depend on their timing
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    Buffers u(a, true);
    for (int64_t line = a.lines * thread / threads; line < a.lines * (thread + 1) / threads; ++line) {
      std::fill(u.grad_table.begin(), u.grad_table.end(), 0.f);
      backward(a, padded_table, u, grad, grad_query, grad_value, line);
      for (int64_t i = 0; i < rows * k; ++i) totals[thread * rows * k + i] += u.grad_table[BLOCK * k + i];
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
