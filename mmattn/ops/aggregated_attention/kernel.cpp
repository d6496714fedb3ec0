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
// Two tiles of neighbouring pixels of a row are computed at a time, so that each pooled token is read once for both. Only
// their weights are in memory. Here are the tasks of the threads; forward.h and backward.h compute them.
//
// cpp.py calls it.

#include "backward.h"

namespace {

constexpr int64_t ROW_TASKS = 24;  // at least so many tasks share the gradients, if there are rows enough

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
