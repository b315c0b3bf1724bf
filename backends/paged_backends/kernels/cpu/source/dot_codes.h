// Dot products of small integers: codes of weights, 0 to 255, times those of activations, -127 to 127.
//
// A lane of 32 bits holds four of either, and sums are exact. Where VNNI is missing, bytes are widened to
// pairs of 16 bits first; weights of 4 bits need not be, as two of their products cannot overflow 16 bits.
#pragma once

#include "vector.h"

typedef int16_t vs __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t vus __attribute__((vector_size(WIDTH * 4)));

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define VNNI 1
#else
#define VNNI 0
#endif

INLINE vi splat_int(int32_t value) { return vi{} + value; }

// a[2i] * b[2i] + a[2i + 1] * b[2i + 1] in lane i.
INLINE vi multiply_pairs(vi a, vi b) {
#if defined(__AVX512BW__)
  return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Four codes of an activation in every lane, in the form that `dot_codes<BITS>` takes.
template <int BITS>
struct FourCodes {
#if VNNI
  vi codes;
  ALWAYS_INLINE explicit FourCodes(int32_t four) : codes(splat_int(four)) {}
#else
  static constexpr bool NARROW = BITS == 4 && WIDTH > 4;  // processors with AVX2 multiply bytes
  vi codes, even, odd;
  ALWAYS_INLINE explicit FourCodes(int32_t four) : codes(splat_int(four)) {
    even = (vi)(vs(codes) << 8 >> 8);
    odd = (vi)(vs(codes) >> 8);
  }
#endif
};

// sum + the dot products of four codes of weights, below 1 << BITS, with four of an activation.
template <int BITS>
INLINE vi dot_codes(vi sum, vi weights, const FourCodes<BITS>& x) {
#if defined(__AVX512VNNI__)
  return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)x.codes);
#elif defined(__AVXVNNI__)
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)x.codes);
#else
#if defined(__AVX512BW__)
  if constexpr (FourCodes<BITS>::NARROW)
    return sum + multiply_pairs((vi)_mm512_maddubs_epi16((__m512i)weights, (__m512i)x.codes),
                                splat_int(0x00010001));
#elif defined(__AVX2__)
  if constexpr (FourCodes<BITS>::NARROW)
    return sum + multiply_pairs((vi)_mm256_maddubs_epi16((__m256i)weights, (__m256i)x.codes),
                                splat_int(0x00010001));
#endif
  vi even = weights & 0x00ff00ff, odd = (vi)(vus(weights) >> 8);
  return sum + (multiply_pairs(even, x.even) + multiply_pairs(odd, x.odd));
#endif
}

// 16-bit floating-point numbers that are finite, as float32.
INLINE vf load_half(const uint16_t* place) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)place));
#else
  vh raw;
  memcpy(&raw, place, sizeof raw);
  vi bits = __builtin_convertvector(raw, vi);
  // exponents differ by 112, also those of denormal numbers
  vf magnitude = (vf)((bits & 0x7fff) << 13) * splat(0x1p112f);
  return (vf)((vi)magnitude | (bits & 0x8000) << 16);
#endif
}
