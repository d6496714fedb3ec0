#pragma once

// The backward pass, for two tiles of a row and for rows of the map.

#include "forward.h"

namespace {

// The gradient of the result, and those that one task alone writes.
struct Gradients {
  const float *out;
  float *query;
};

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

}  // namespace
