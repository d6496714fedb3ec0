#pragma once

#include <cstdint>
#include <cstring>

// Everything that is inlined into a function is compiled for that function's set of instructions.
#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

// BEST_OF defines NAME as the function NAME_avx2 where the processor has AVX2, else as NAME_plain. BEST_OF_ALL has
// NAME_avx512, too.
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define HAS_AVX512                                                                                      \
  (HAS_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&               \
   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
#define BEST_OF(NAME) const auto NAME = HAS_AVX2 ? NAME##_avx2 : NAME##_plain;
#define BEST_OF_ALL(NAME) const auto NAME = HAS_AVX512 ? NAME##_avx512 : HAS_AVX2 ? NAME##_avx2 : NAME##_plain;
#else
#define AVX2
#define AVX512
#define HAS_AVX512 false
#define BEST_OF(NAME) const auto NAME = NAME##_plain;
#define BEST_OF_ALL(NAME) const auto NAME = NAME##_plain;
#endif

namespace {

typedef float Vector __attribute__((vector_size(32)));      // 8 numbers
typedef float WideVector __attribute__((vector_size(64)));  // 16 numbers

template <class T>
constexpr int64_t lanes() { return sizeof(T) / sizeof(float); }

// The sum of the two halves of a vector of 16 numbers; one of 8 stays.
INLINE Vector halved(Vector x) { return x; }
INLINE Vector halved(WideVector x) {
  Vector half[2];
  std::memcpy(half, &x, sizeof(x));
  return half[0] + half[1];
}

// p need not be aligned.
template <class T>
INLINE T load(const float *p) {
  T x;
  std::memcpy(&x, p, sizeof(T));
  return x;
}

template <class T>
INLINE void store(float *p, T x) {
  std::memcpy(p, &x, sizeof(T));
}

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define SHUFFLE(A, B, ...) __builtin_shuffle(A, B, decltype(A < B){__VA_ARGS__})
#endif

// The transpose of 8 x 8 numbers, in place.
INLINE void transpose(Vector *x) {
  Vector y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = SHUFFLE(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = SHUFFLE(y[i + j], y[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      x[i + 2 * j + 1] = SHUFFLE(y[i + j], y[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; ++i) {
    y[i] = SHUFFLE(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    y[i + 4] = SHUFFLE(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; ++i) x[i] = y[i];
}

// exp(x) of numbers of at most 0, to 1 rounding step; 0 below -87. The polynomial has the least largest error between
// -log(2) / 2 and log(2) / 2 of those that begin with 1 + r.
template <class T>
INLINE T exponential(T x) {
  const T shifted = x * 1.44269504f + 12583039.f;  // the last bits are the rounded power of 2, and 127
  const T power = shifted - 12583039.f;
  const T r = (x - power * 0.693359375f) + power * 2.12194440e-4f;
  T p = r * 1.3814540580e-3f + 8.3687454462e-3f;
  p = p * r + 4.1668388993e-2f;
  p = p * r + 1.6666521132e-1f;
  p = p * r + 4.9999994040e-1f;
  p = p * r + 1;
  p = p * r + 1;
  const auto bits = (decltype(x < x))shifted << 23;
  return x < T{} - 87.f ? T{} : p * (T)bits;  // NaN stays NaN in a product, and may not in a sum of bits
}

}  // namespace
