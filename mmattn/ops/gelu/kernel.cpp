// A GELU with a gate on the CPU, in float32, and its gradients, of numbers one by one:
//
//     out = x * Phi(x) * gate,    Phi(x) = (1 + erf(x / sqrt(2))) / 2
//
// erf as in "Handbook of Mathematical Functions", 7.1.26, to 1.5e-7, like torch's; its exponential also is in the gradient.
//
// __init__.py calls it.

#include <algorithm>

#include "../vector.h"

namespace {

constexpr int64_t PART = 4096;  // numbers of a task

// Phi(x), and in `density` its derivative.
template <class T>
INLINE T distribution(T x, T *density) {
  const T size = x > 0 ? x : -x, t = 1 / (1 + 0.23164189f * size), power = exponential(x * x * -0.5f);
  T sum = t * 1.061405429f - 1.453152027f;
  sum = sum * t + 1.421413741f;
  sum = sum * t - 0.284496736f;
  sum = sum * t + 0.254829592f;
  const T half = sum * t * power * 0.5f;  // beyond |x|
  *density = power * 0.39894228f;
  return x > 0 ? 1 - half : half;
}

template <class T>
INLINE void forward_part(const float *x, const float *gate, int64_t count, float *out) {
  for (int64_t n = 0; n < count; n += lanes<T>()) {
    T density;
    const T own = load<T>(x + n);
    store(out + n, own * distribution(own, &density) * load<T>(gate + n));
  }
}

template <class T>
INLINE void backward_part(
    const float *grad, const float *x, const float *gate, int64_t count, float *grad_x, float *grad_gate) {
  for (int64_t n = 0; n < count; n += lanes<T>()) {
    T density;
    const T own = load<T>(x + n), upstream = load<T>(grad + n), share = distribution(own, &density);
    store(grad_gate + n, upstream * own * share);
    store(grad_x + n, upstream * load<T>(gate + n) * (share + own * density));
  }
}

#define PARTS(NAME, TARGET, T)                                                                               \
  TARGET void forward_##NAME(const float *x, const float *gate, int64_t count, float *out) {                 \
    forward_part<T>(x, gate, count, out);                                                                    \
  }                                                                                                          \
  TARGET void backward_##NAME(                                                                               \
      const float *grad, const float *x, const float *gate, int64_t count, float *grad_x, float *grad_gate) { \
    backward_part<T>(grad, x, gate, count, grad_x, grad_gate);                                               \
  }

PARTS(plain, , Vector)
PARTS(avx2, AVX2, Vector)
PARTS(avx512, AVX512, WideVector)
BEST_OF_ALL(forward)
BEST_OF_ALL(backward)

// FUNCTION of all numbers in parts: of the last one, which may not be of whole vectors, on copies.
template <int INPUTS, int OUTPUTS, class Function>
void by_parts(const float *const *in, float *const *out, int64_t count, int threads, Function function) {
#pragma omp parallel for num_threads(threads)
  for (int64_t first = 0; first < count; first += PART) {
    const int64_t there = std::min(PART, count - first);
    const float *from[INPUTS];
    float *to[OUTPUTS], copies[INPUTS][PART], results[OUTPUTS][PART];
    for (int i = 0; i < INPUTS; ++i) from[i] = in[i] + first;
    for (int i = 0; i < OUTPUTS; ++i) to[i] = out[i] + first;
    if (there < PART) {
      for (int i = 0; i < INPUTS; ++i) {
        std::fill(std::copy_n(from[i], there, copies[i]), copies[i] + PART, 0.f);
        from[i] = copies[i];
      }
      for (int i = 0; i < OUTPUTS; ++i) to[i] = results[i];
    }
    function(from, to);
    for (int i = 0; there < PART && i < OUTPUTS; ++i) std::copy_n(results[i], there, out[i] + first);
  }
}

}  // namespace

extern "C" {

// numbers: how many there are.
void gelu_gated(const float *x, const float *gate, float *out, const int64_t *numbers, int threads) {
  const float *in[] = {x, gate};
  by_parts<2, 1>(in, &out, *numbers, threads, [](const float **from, float **to) {
    forward(from[0], from[1], PART, to[0]);
  });
}

void gelu_gated_backward(
    const float *grad, const float *x, const float *gate, float *grad_x, float *grad_gate, const int64_t *numbers,
    int threads) {
  const float *in[] = {grad, x, gate};
  float *out[] = {grad_x, grad_gate};
  by_parts<3, 2>(in, out, *numbers, threads, [](const float **from, float **to) {
    backward(from[0], from[1], from[2], PART, to[0], to[1]);
  });
}

}  // extern "C"
