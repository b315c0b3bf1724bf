// The instruction set: everything else is written once, in terms of the names defined here.
//
// A file is compiled for one instruction set, by the flags of the compiler: `vf` holds WIDTH floats.
// Where PAIR_DOT is 1, `dot_pairs` multiplies pairs of bfloat16 and adds them up in float32. Where
// SLOW_PAIRS is defined, it takes four times as long as a multiplication of floats: then it is used where
// memory bandwidth is the limit, and products of many rows use floats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__)
#define PAIR_DOT 1
constexpr int WIDTH = 16;
#elif defined(__AVX512F__) && defined(__AVX512BW__)
#define PAIR_DOT 0
constexpr int WIDTH = 16;
#elif defined(__AVX2__) && defined(__FMA__)
#define PAIR_DOT 0
constexpr int WIDTH = 8;
#else
#define PAIR_DOT 0
constexpr int WIDTH = 4;
#endif

#if PAIR_DOT && !defined(SLOW_PAIRS)
#define PAIR_PRODUCTS 1
#else
#define PAIR_PRODUCTS 0
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define INLINE static ALWAYS_INLINE

typedef float vf __attribute__((vector_size(WIDTH * 4)));
typedef int32_t vi __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t vh __attribute__((vector_size(WIDTH * 2)));

struct bf16 {
  uint16_t bits;
};

// ---------------------------------------------------------------- one number

INLINE float to_float(float value) { return value; }
INLINE float to_float(bf16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  memcpy(&result, &bits, 4);
  return result;
}
INLINE void from_float(float* place, float value) { *place = value; }
INLINE void from_float(bf16* place, float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  place->bits = value != value ? uint16_t(bits >> 16 | 0x40)  // stays NaN
                               : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// ---------------------------------------------------------------- vectors

INLINE vf splat(float value) {
#if defined(__AVX512F__)
  return (vf)_mm512_set1_ps(value);
#elif defined(__AVX2__)
  return (vf)_mm256_set1_ps(value);
#else
  return vf{value, value, value, value};
#endif
}
// a lane of `mask` has all bits set or none
INLINE vf choose(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

INLINE vf load(const float* place) {
  vf result;
  memcpy(&result, place, sizeof result);
  return result;
}
INLINE void store(float* place, vf value) { memcpy(place, &value, sizeof value); }

INLINE vf load(const bf16* place) {
#if defined(__AVX512F__)
  __m256i raw = _mm256_loadu_si256((const __m256i*)place);
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16);
#elif defined(__AVX2__)
  __m128i raw = _mm_loadu_si128((const __m128i*)place);
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16);
#else
  vh raw;
  memcpy(&raw, place, sizeof raw);
  return (vf)(__builtin_convertvector(raw, vi) << 16);
#endif
}
INLINE void store(bf16* place, vf value) {
#if PAIR_DOT
  _mm256_storeu_si256((__m256i*)place, (__m256i)_mm512_cvtneps_pbh((__m512)value));
#else
  vi bits = (vi)value;
  vi rounded = bits + 0x7fff + ((bits >> 16) & 1);
  rounded = (value != value) ? (bits | 0x400000) : rounded;
  vh narrow = __builtin_convertvector((rounded >> 16) & 0xffff, vh);
  memcpy(place, &narrow, sizeof narrow);
#endif
}

// Two vectors, one after the other.
INLINE void store_two(float* place, vf low, vf high) {
  store(place, low);
  store(place + WIDTH, high);
}
INLINE void store_two(bf16* place, vf low, vf high) {
#if PAIR_DOT
  _mm512_storeu_si512(place, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
#else
  store(place, low);
  store(place + WIDTH, high);
#endif
}

// The first `count` numbers, 1 to WIDTH; the memory after them is not accessed, and the result is 0 there.
INLINE vf load_some(const float* place, int count) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), place);
#else
  float all[WIDTH] = {};
  memcpy(all, place, size_t(count) * 4);
  return load(all);
#endif
}
INLINE vf load_some(const bf16* place, int count) {
  bf16 all[WIDTH] = {};
  memcpy(all, place, size_t(count) * 2);
  return load(all);
}
template <typename T>
INLINE void store_some(T* place, vf value, int count) {
  T all[WIDTH];
  store(all, value);
  memcpy(place, all, size_t(count) * sizeof(T));
}

template <typename T>
INLINE vf load_upto(const T* place, int64_t left) {
  return left >= WIDTH ? load(place) : load_some(place, int(left));
}
template <typename T>
INLINE void store_upto(T* place, vf value, int64_t left) {
  if (left >= WIDTH)
    store(place, value);
  else
    store_some(place, value, int(left));
}

INLINE vf largest(vf a, vf b) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return choose(a > b, a, b);
#endif
}

INLINE float sum_of(vf value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#else
  float lanes[WIDTH];
  store(lanes, value);
  for (int half = WIDTH / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}
INLINE float largest_of(vf value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#else
  float lanes[WIDTH];
  store(lanes, value);
  for (int i = 1; i < WIDTH; i++) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
#endif
}

// a * b + c, rounded once where the processor can.
INLINE vf multiply_add(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

INLINE bool all_equal(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ) == 0xffff;
#else
  float left[WIDTH], right[WIDTH];
  store(left, a);
  store(right, b);
  return std::equal(left, left + WIDTH, right);
#endif
}

#if defined(__AVX512F__)
struct Add {
  ALWAYS_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
};
struct Max {
  ALWAYS_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
};

// Lane i of the result combines the 16 lanes of `rows[i]`.
template <typename Combine>
INLINE vf combine_lanes(const vf* rows, Combine combine) {
  const __m512* in = (const __m512*)rows;
  __m512 pair[8], quad[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
    pair[i] = combine(_mm512_unpacklo_ps(in[2 * i], in[2 * i + 1]),
                      _mm512_unpackhi_ps(in[2 * i], in[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    __m512d a = _mm512_castps_pd(pair[2 * i]), b = _mm512_castps_pd(pair[2 * i + 1]);
    quad[i] = combine(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                      _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  __m512 low = combine(_mm512_shuffle_f32x4(quad[0], quad[1], 0x88),
                       _mm512_shuffle_f32x4(quad[0], quad[1], 0xdd));
  __m512 high = combine(_mm512_shuffle_f32x4(quad[2], quad[3], 0x88),
                        _mm512_shuffle_f32x4(quad[2], quad[3], 0xdd));
  return (vf)combine(_mm512_shuffle_f32x4(low, high, 0x88),
                     _mm512_shuffle_f32x4(low, high, 0xdd));
}
#endif

// Lane i of the result is the sum of the lanes of `rows[i]`.
INLINE vf sums_of(const vf* rows) {
#if defined(__AVX512F__)
  return combine_lanes(rows, Add());
#elif defined(__AVX2__)
  const __m256* in = (const __m256*)rows;
  __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(in[0], in[1]), _mm256_hadd_ps(in[2], in[3]));
  __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(in[4], in[5]), _mm256_hadd_ps(in[6], in[7]));
  return (vf)_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
#else
  vf result;
  for (int i = 0; i < WIDTH; i++) result[i] = sum_of(rows[i]);
  return result;
#endif
}

// Lane i of the result is the largest lane of `rows[i]`.
INLINE vf largest_of_rows(const vf* rows) {
#if defined(__AVX512F__)
  return combine_lanes(rows, Max());
#else
  vf result;
  for (int i = 0; i < WIDTH; i++) result[i] = largest_of(rows[i]);
  return result;
#endif
}

// 0, 1, 2, ...
INLINE vf steps() {
  vf result;
  for (int i = 0; i < WIDTH; i++) result[i] = float(i);
  return result;
}

// e^x to a relative error of 2e-7; 0 for very small x, so that the weight of a masked score is 0.
// Cody and Waite's reduction to half of log(2) about zero, then a polynomial (Cephes).
INLINE vf exp_of(vf x) {
  const vf lowest = splat(-87.0f), highest = splat(88.3f);
  const vf shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  vi tiny = x < lowest;
  x = choose(tiny, lowest, x);
  x = choose(x > highest, highest, x);
  vf shifted = x * splat(1.44269504f) + shift;
  vf whole = shifted - shift;
  vf rest = x - whole * splat(0.693359375f);
  rest = rest + whole * splat(2.12194440e-4f);
  vf sum = splat(1.9875691500e-4f);
  sum = sum * rest + splat(1.3981999507e-3f);
  sum = sum * rest + splat(8.3334519073e-3f);
  sum = sum * rest + splat(4.1665795894e-2f);
  sum = sum * rest + splat(1.6666665459e-1f);
  sum = sum * rest + splat(5.0000001201e-1f);
  sum = sum * (rest * rest) + (rest + splat(1.0f));
  vi power = ((vi)shifted - (vi)shift + 127) << 23;
  return (vf)(~tiny & (vi)(sum * (vf)power));
}

// 2^x to a relative error of 8e-5; for x below -126, at most 2^-126.
INLINE vf exp2_of(vf x) {
#if defined(__AVX512F__)
  vf rest = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);  // x less the whole number below
#else
  const vf shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  x = choose(x < splat(-126.0f), splat(-126.0f), x);
  vf whole = (x + shift) - shift;
  whole = choose(whole > x, whole - splat(1.0f), whole);
  vf rest = x - whole;
#endif
  vf sum = splat(7.802422e-2f);  // minimax in relative error, from 0 to 1
  sum = sum * rest + splat(2.260669e-1f);
  sum = sum * rest + splat(6.9583401e-1f);
  sum = sum * rest + splat(9.9992513e-1f);
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)sum, (__m512)x);
#else
  return (vf)((vi)sum + ((vi)(whole + shift) << 23));
#endif
}

INLINE vf tanh_of(vf x) {
  return splat(1.0f) - splat(2.0f) / (exp_of(x + x) + splat(1.0f));
}

// ---------------------------------------------------------------- prefetching
//
// Weights come into the nearest cache where they are multiplied with NEAR_ROWS rows at most, else into the next, as
// keys and values do: a core waits for fewer lines on their way to the nearest. They are asked for so many bytes
// before they are read, codes of 4 bits half as many into the nearest. `CXX="g++ -DNEAR_ROWS=0" paged-core bench
// decode`, or `bench attention --backends cpu`, measures other choices; run them in turns:
//
//                       nearest cache, next cache                        AHEAD of codes
//   AVX-512 with BF16   1 row of int8 31, 28.5 GB/s; 2 of int4 34, 32;   16384, 8192: 4 rows as good; 4096: 1 row of
//     (Zen 4)           4 rows of bfloat16 25, 30; 16 0.36, 0.40         int4 32.7, 34.7 GB/s (nearest), 4 rows
//                       TFLOP/s; attention of 16 x 256 tokens            0.48, 0.43 TOP/s (next)
//                       921, 715 us
//   AVX-512 with VNNI   rows as good; attention 1286, 1142 us            16384, 8192: 16 rows of int8 474, 445 us
//     (Ice Lake)
#ifndef NEAR_ROWS
#define NEAR_ROWS 3
#endif
#ifndef KEYS_NEAR
#define KEYS_NEAR 0
#endif
#ifndef CODES_AHEAD
#define CODES_AHEAD (PAIR_DOT ? 16384 : 8192)
#endif
#ifndef NEAR_CODES_AHEAD
#define NEAR_CODES_AHEAD 8192
#endif
template <bool NEAR>
INLINE void prefetch(const void* place) {
  __builtin_prefetch(place, 0, NEAR ? 3 : 2);
}

#if PAIR_DOT
// sum + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] in lane i; takes denormal numbers for zero.
INLINE vf dot_pairs(vf sum, __m512i a, __m512i b) {
#if defined(__clang__)  // version 16 fails on its own intrinsic in loops
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
  return sum;
#else
  return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
}
INLINE __m512i load_pairs(const bf16* place) { return _mm512_loadu_si512(place); }
INLINE __m512i load_pairs_upto(const bf16* place, int64_t left) {
  if (left >= 32) return load_pairs(place);
  return _mm512_maskz_loadu_epi16(__mmask32((1u << left) - 1), place);
}
INLINE __m512i pairs_of(vf low, vf high) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
#endif
