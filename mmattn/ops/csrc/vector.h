#pragma once

#include <cstdint>
#include <cstring>

// Everything that is inlined into a function is compiled for that function's set of instructions.
#define INLINE inline __attribute__((always_inline))

// Defines NAME as the function NAME_avx2 where the processor has AVX2, else as NAME_plain.
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
#define BEST_OF(NAME) \
  const auto NAME = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? NAME##_avx2 : NAME##_plain;
#else
#define AVX2
#define BEST_OF(NAME) const auto NAME = NAME##_plain;
#endif

namespace {

typedef float Vector __attribute__((vector_size(32)));  // 8 numbers

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

}  // namespace
