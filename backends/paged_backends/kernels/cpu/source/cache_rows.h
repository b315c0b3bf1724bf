// Rows of the cache: the key or value of one token and head.
//
// A row is `dim` numbers of the type of the queries; or, with `kv_cache_dtype: int8`, as many codes and
// behind them their scale in bfloat16: a number is its code times the scale. The scale is the least that
// makes all codes fit, 127 at most, so a number is rounded by 1/252 of the greatest of its row at most.
// The scale of a row with a number that is not finite is NaN, and so is then all of the row.
#pragma once

#include <type_traits>

#include "rounded_codes.h"

struct CacheCode {
  int8_t bits;
};

template <typename C>
constexpr bool IS_CODE = std::is_same<C, CacheCode>::value;

// From row to row, in numbers or codes.
template <typename C>
constexpr int64_t row_stride(int64_t dim) {
  return IS_CODE<C> ? dim + int64_t(sizeof(bf16)) : dim;
}

INLINE vf load(const CacheCode* place) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)place)));
#elif defined(__AVX2__)
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)place)));
#else
  vc raw;
  memcpy(&raw, place, sizeof raw);
  return __builtin_convertvector(raw, vf);
#endif
}
INLINE vf load_some(const CacheCode* place, int count) {
  CacheCode all[WIDTH] = {};
  memcpy(all, place, size_t(count));
  return load(all);
}

// Fetches `dim` numbers of a row, a chunk before they are read.
template <typename C>
INLINE void fetch_ahead(const C* place, int64_t dim) {
  for (int64_t i = 0; i < dim; i += 64 / int64_t(sizeof(C))) prefetch<KEYS_NEAR>(place + i);
}

INLINE float scale_of(const CacheCode* row, int64_t dim) {
  bf16 scale;
  memcpy(&scale, row + dim, sizeof scale);
  return to_float(scale);
}

// The scale of a row whose greatest magnitude this is: a 127th, rounded up.
INLINE bf16 scale_for(float greatest) {
  float least = greatest / 127.0f;
  if (least != least) return {0x7fc0};
  least = std::max(least, 1.17549435e-38f);  // its inverse is finite
  uint32_t bits;
  memcpy(&bits, &least, 4);
  return {uint16_t((bits + 0xffff) >> 16)};
}

template <typename T>
INLINE void write_row(T* place, const T* row, int64_t dim) {
  memcpy((void*)place, row, size_t(dim) * sizeof(T));
}
template <typename T>
INLINE void write_row(CacheCode* place, const T* row, int64_t dim) {
  bf16 scale = scale_for(greatest_of(row, dim));
  vf inverse = splat(1.0f / to_float(scale));
  for (int64_t i = 0; i < dim; i += WIDTH) {
    vc codes = codes_of(whole(load_upto(row + i, dim - i) * inverse));
    memcpy(place + i, &codes, size_t(std::min<int64_t>(WIDTH, dim - i)));
  }
  memcpy((void*)(place + dim), &scale, sizeof scale);
}

// Rows [count] of codes as numbers [count, dim]; `numbers` points to each. A null pointer stays one.
template <typename T>
INLINE void unpack_rows(const CacheCode* const* rows, int count, int64_t dim, T* memory,
                        const T** numbers) {
  for (int k = 0; k < count; k++) {
    numbers[k] = rows[k] ? memory + k * dim : nullptr;
    if (!rows[k]) continue;
    vf scale = splat(scale_of(rows[k], dim));
    for (int64_t i = 0; i < dim; i += WIDTH)
      store_upto(memory + k * dim + i, load_upto(rows[k] + i, dim - i) * scale, dim - i);
  }
}
