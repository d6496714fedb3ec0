// What follows the first layer of the MLP that makes the bias by position, on the CPU, in float32, and its gradients:
//
//     out[n, r, s] = sum_k weight[n, k] * max(rows[r, k] + columns[s, k], 0)
//
// rows: (R, K); columns: (S, K); weight: (heads, K); out: (heads, R, S). The hidden map, (R, S, K), is never in memory.
// Forward, a vector holds columns s; backward, it holds hidden channels k, of which a task has a vector.
//
// table.py calls it.

#include <algorithm>
#include <vector>

#include "../vector.h"

namespace {

constexpr int64_t WIDEST = 16;  // numbers of a vector
constexpr int64_t HEADS = 4;    // at a time
constexpr int64_t VECTORS = 4;  // of columns, at a time
constexpr int64_t COLUMNS = VECTORS * WIDEST;

int64_t padded(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

struct Pairs {
  const float *rows, *columns, *weight;
  int64_t R, S, K, heads;
};

// A row of the table. columns: (S / COLUMNS, K, COLUMNS); weight: (heads / HEADS, K, HEADS).
template <class T>
INLINE void forward_row(const Pairs p, const float *columns, const float *weight, int64_t r, float *out) {
  constexpr int64_t L = lanes<T>();
  const float *row = p.rows + r * p.K;
  for (int64_t s = 0; s < p.S; s += VECTORS * L)
    for (int64_t first = 0; first < p.heads; first += HEADS) {
      const float *column = columns + s / COLUMNS * p.K * COLUMNS + s % COLUMNS, *share = weight + first * p.K;
      T sum[HEADS][VECTORS] = {};
      for (int64_t k = 0; k < p.K; ++k, column += COLUMNS, share += HEADS) {
        T hidden[VECTORS];
        for (int64_t v = 0; v < VECTORS; ++v) {
          const T x = load<T>(column + v * L) + row[k];
          hidden[v] = x > 0 ? x : T{};
        }
        for (int64_t n = 0; n < HEADS; ++n)
          for (int64_t v = 0; v < VECTORS; ++v) sum[n][v] += share[n] * hidden[v];
      }
      for (int64_t n = first; n < std::min(first + HEADS, p.heads); ++n) {
        float found[VECTORS * L];
        for (int64_t v = 0; v < VECTORS; ++v) store(found + v * L, sum[n - first][v]);
        std::copy_n(found, std::min(VECTORS * L, p.S - s), out + (n * p.R + r) * p.S + s);
      }
    }
}

// A vector of hidden channels from k on: (count, K) to (count, lanes), and back.
template <class T>
INLINE void pack(const float *x, int64_t count, int64_t K, int64_t k, std::vector<float> &out) {
  constexpr int64_t L = lanes<T>();
  out.assign(count * L, 0.f);
  for (int64_t i = 0; i < count; ++i) std::copy_n(x + i * K + k, std::min(L, K - k), out.data() + i * L);
}

template <class T>
INLINE void unpack(const std::vector<float> &x, int64_t count, int64_t K, int64_t k, float *out) {
  constexpr int64_t L = lanes<T>();
  for (int64_t i = 0; i < count; ++i) std::copy_n(x.data() + i * L, std::min(L, K - k), out + i * K + k);
}

// grad: (heads, R, S). A vector of hidden channels of all gradients.
template <class T>
INLINE void backward_channels(
    const Pairs p, const float *grad, int64_t k, float *grad_rows, float *grad_columns, float *grad_weight) {
  constexpr int64_t L = lanes<T>();
  std::vector<float> rows, columns, weight;
  pack<T>(p.rows, p.R, p.K, k, rows);
  pack<T>(p.columns, p.S, p.K, k, columns);
  pack<T>(p.weight, p.heads, p.K, k, weight);
  std::vector<float> of_columns(p.S * L), of_weight(p.heads * L);
  for (int64_t r = 0; r < p.R; ++r) {
    const T row = load<T>(rows.data() + r * L);
    T of_row = {};
    for (int64_t s = 0; s < p.S; ++s) {
      const T hidden = row + load<T>(columns.data() + s * L);
      T sum = {};
      for (int64_t n = 0; n < p.heads; ++n) sum += grad[(n * p.R + r) * p.S + s] * load<T>(weight.data() + n * L);
      sum = hidden > 0 ? sum : T{};
      of_row += sum;
      store(of_columns.data() + s * L, load<T>(of_columns.data() + s * L) + sum);
    }
    store(rows.data() + r * L, of_row);
    for (int64_t first = 0; first < p.heads; first += HEADS) {
      const int64_t there = std::min(HEADS, p.heads - first);
      const float *own[HEADS];  // the last one again, if there are fewer
      for (int64_t n = 0; n < HEADS; ++n) own[n] = grad + ((first + std::min(n, there - 1)) * p.R + r) * p.S;
      T sum[HEADS] = {};
      for (int64_t s = 0; s < p.S; ++s) {
        T hidden = row + load<T>(columns.data() + s * L);
        hidden = hidden > 0 ? hidden : T{};
        for (int64_t n = 0; n < HEADS; ++n) sum[n] += own[n][s] * hidden;
      }
      for (int64_t n = 0; n < there; ++n) {
        float *to = of_weight.data() + (first + n) * L;
        store(to, load<T>(to) + sum[n]);
      }
    }
  }
  unpack<T>(rows, p.R, p.K, k, grad_rows);
  unpack<T>(of_columns, p.S, p.K, k, grad_columns);
  unpack<T>(of_weight, p.heads, p.K, k, grad_weight);
}

#define PAIRS(NAME, TARGET, T)                                                                                  \
  TARGET void forward_##NAME(                                                                                  \
      const Pairs p, const float *columns, const float *weight, int64_t r, float *out) {                       \
    forward_row<T>(p, columns, weight, r, out);                                                                \
  }                                                                                                            \
  TARGET void backward_##NAME(                                                                                 \
      const Pairs p, const float *grad, int64_t k, float *grad_rows, float *grad_columns, float *grad_weight) { \
    backward_channels<T>(p, grad, k, grad_rows, grad_columns, grad_weight);                                    \
  }

PAIRS(plain, , Vector)
PAIRS(avx2, AVX2, Vector)
PAIRS(avx512, AVX512, WideVector)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)

const int64_t LANES = HAS_AVX512 ? 16 : 8;

}  // namespace

extern "C" {

// numbers: R, S, K, heads.
void relu_of_pairs(
    const float *rows, const float *columns, const float *weight, float *out, const int64_t *numbers, int threads) {
  Pairs p{rows, columns, weight};
  std::memcpy(&p.R, numbers, 4 * sizeof(int64_t));
  std::vector<float> columns_across(padded(p.S, COLUMNS) * p.K), weight_across(padded(p.heads, HEADS) * p.K);
  for (int64_t s = 0; s < p.S; ++s)
    for (int64_t k = 0; k < p.K; ++k)
      columns_across[(s / COLUMNS * p.K + k) * COLUMNS + s % COLUMNS] = columns[s * p.K + k];
  for (int64_t n = 0; n < p.heads; ++n)
    for (int64_t k = 0; k < p.K; ++k) weight_across[(n / HEADS * p.K + k) * HEADS + n % HEADS] = weight[n * p.K + k];
#pragma omp parallel for num_threads(threads)
  for (int64_t r = 0; r < p.R; ++r) forward(p, columns_across.data(), weight_across.data(), r, out);
}

void relu_of_pairs_backward(
    const float *rows, const float *columns, const float *weight, const float *grad, float *grad_rows,
    float *grad_columns, float *grad_weight, const int64_t *numbers, int threads) {
  Pairs p{rows, columns, weight};
  std::memcpy(&p.R, numbers, 4 * sizeof(int64_t));
#pragma omp parallel for num_threads(threads)
  for (int64_t k = 0; k < p.K; k += LANES) backward(p, grad, k, grad_rows, grad_columns, grad_weight);
}

}  // extern "C"
