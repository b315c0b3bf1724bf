// Scores and sums of a cache of codes, in codes: where VNNI multiplies these four at a time.
//
// A query, and the weights of a chunk of keys, are whole numbers of 15 bits times a unit, which is a 16256th
// of the greatest of them. A number is 128 times a high code, plus a low one; both are multiplied with the
// codes of the cache, in sums that are exact. One factor of an instruction has no sign, so that 128 is added
// to the codes of the cache, and its products are taken off where sums begin.
#pragma once

#include "cache_rows.h"
#include "dot_codes.h"

constexpr int CODED_CHUNK = 64;  // keys whose scores, weights and values are computed in turn

// Whether queries of T are kept in codes.
template <typename T>
constexpr bool CODES_MULTIPLY = VNNI && WIDTH == 16 && std::is_same<T, bf16>::value;

// 64 codes of a query, or what belongs to it. A head is: high products to begin with, low ones, the unit,
// then high and low codes of every 64 dimensions in turn.
struct QueryLine {
  int32_t words[16];
};
constexpr int64_t HEADER_LINES = 3;
constexpr int64_t QUERY_HEADER = HEADER_LINES * 16;  // in words
constexpr int CODED_AT_ONCE = 3;                     // heads, whose sums are in registers

INLINE int64_t query_lines(int64_t dim) { return HEADER_LINES + (dim + 63) / 64 * 2; }

// Multiplies weights [HEADS][CODED_CHUNK] by the scales of the values of their keys.
template <int HEADS>
INLINE void scale_weights(float* weights, const CacheCode* const* keys, int count, int64_t dim,
                          int64_t value_offset) {
  float scales[CODED_CHUNK] = {};
  for (int t = 0; t < count; t++) scales[t] = scale_of(keys[t] + value_offset, dim);
  for (int h = 0; h < HEADS; h++)
    for (int t = 0; t < CODED_CHUNK; t += WIDTH)
      store(weights + h * CODED_CHUNK + t, load(weights + h * CODED_CHUNK + t) * load(scales + t));
}

// As `score_keys` and `add_values` of decode.h; defined where CODES_MULTIPLY.
template <int HEADS, int DIM>
INLINE void score_codes(const QueryLine* query, const CacheCode* const* keys, int count, int64_t dim_,
                        float* scores, int64_t value_offset);
template <int HEADS, int DIM>
INLINE void add_codes(float* weights, const CacheCode* const* keys, int count, int64_t dim_,
                      int64_t value_offset, float* all_sums, int64_t width,
                      const CacheCode* const* next, int next_count);

#if VNNI && defined(__AVX512F__)
constexpr float MOST_UNITS = 16256.0f;  // 128 * 127

// Numbers are `inverse` times as many units.
struct Unit {
  float unit, inverse;
  explicit Unit(float greatest)
      : unit(greatest / MOST_UNITS), inverse(greatest > 1e-30f ? MOST_UNITS / greatest : 0.0f) {}
};

INLINE vi load(const QueryLine* line) { return (vi)_mm512_loadu_si512(line); }
INLINE vi dot_bytes(vi sum, vi codes, vi numbers) {
  return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)numbers);
}
// 128 more than each of 64 codes, of which `left` there are.
INLINE vi load_codes(const CacheCode* place, int64_t left) {
  __m512i raw = left >= 64 ? _mm512_loadu_si512(place)
                           : _mm512_maskz_loadu_epi8((__mmask64(1) << left) - 1, place);
  return (vi)_mm512_xor_si512(raw, _mm512_set1_epi8(-128));
}
// The codes of 16 numbers in units.
INLINE void split(vi numbers, int8_t* high, int8_t* low) {
  vi upper = (numbers + 64) >> 7;
  vc first = __builtin_convertvector(upper, vc);
  vc second = __builtin_convertvector(numbers - (upper << 7), vc);
  memcpy(high, &first, sizeof first);
  memcpy(low, &second, sizeof second);
}

INLINE void copy_query(const bf16* head, int64_t dim, QueryLine* query) {
  int64_t lines = query_lines(dim);
  memset((void*)query, 0, size_t(lines) * sizeof *query);
  Unit unit(greatest_of(head, dim));
  for (int64_t i = 0; i < dim; i += WIDTH) {
    QueryLine* line = query + HEADER_LINES + i / 64 * 2;
    split(whole(load_upto(head + i, dim - i) * splat(unit.inverse)), (int8_t*)line + i % 64,
          (int8_t*)(line + 1) + i % 64);
  }
  const vi added = (vi)_mm512_set1_epi8(-128);
  vi high = {}, low = {};
  for (int64_t l = HEADER_LINES; l < lines; l += 2) {
    high = dot_bytes(high, added, load(query + l));
    low = dot_bytes(low, added, load(query + l + 1));
  }
  high = -high, low = -low;
  memcpy((void*)query, &high, sizeof high);
  memcpy((void*)(query + 1), &low, sizeof low);
  memcpy((void*)(query + 2), &unit.unit, sizeof unit.unit);
}

template <int HEADS, int DIM>
INLINE void score_codes(const QueryLine* query, const CacheCode* const* keys, int count, int64_t dim_,
                        float* scores, int64_t value_offset) {
  const int64_t dim = DIM > 0 ? DIM : dim_, lines = query_lines(dim);
  for (int first = 0; first < count; first += WIDTH) {
    vf products[HEADS][WIDTH];
    float scales[WIDTH];
    for (int t = 0; t < WIDTH; t++) {
      const CacheCode* key = keys[first + t];
      for (int64_t i = 0; i < dim; i += 64) fetch_ahead(key + value_offset + i);
      scales[t] = scale_of(key, dim);
      vi high[HEADS], low[HEADS];
#pragma GCC unroll 4
      for (int h = 0; h < HEADS; h++)
        high[h] = load(query + h * lines), low[h] = load(query + h * lines + 1);
#pragma GCC unroll 4
      for (int64_t i = 0; i < dim; i += 64) {
        vi codes = load_codes(key + i, dim - i);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; h++) {
          const QueryLine* line = query + h * lines + HEADER_LINES + i / 64 * 2;
          high[h] = dot_bytes(high[h], codes, load(line));
          low[h] = dot_bytes(low[h], codes, load(line + 1));
        }
      }
#pragma GCC unroll 4
      for (int h = 0; h < HEADS; h++)
        products[h][t] = __builtin_convertvector((high[h] << 7) + low[h], vf);
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++) {
      float unit;
      memcpy(&unit, query + h * lines + 2, sizeof unit);
      store(scores + h * CODED_CHUNK + first, sums_of(products[h]) * load(scales) * splat(unit));
    }
  }
}

// The weights of a chunk in codes, of four keys in each word.
struct WeightCodes {
  int32_t high[CODED_CHUNK / 4], low[CODED_CHUNK / 4];
  int32_t start;  // of a sum, to take off what was added to the codes of the values
  float unit;

  void put(const float* weights) {
    Unit own(greatest_of(weights, CODED_CHUNK));
    unit = own.unit;
    vi sum = {};
    for (int t = 0; t < CODED_CHUNK; t += WIDTH) {
      vi numbers = whole(load(weights + t) * splat(own.inverse));
      split(numbers, (int8_t*)high + t, (int8_t*)low + t);
      sum = sum + numbers;
    }
    start = -128 * _mm512_reduce_add_epi32((__m512i)sum);
  }
};

// rows[4] of 64 codes; then four codes of one dimension lie together, in the order that `in_order` ends.
INLINE void interleave(vi* rows) {
  __m512i a = (__m512i)rows[0], b = (__m512i)rows[1], c = (__m512i)rows[2], d = (__m512i)rows[3];
  __m512i low = _mm512_unpacklo_epi8(a, b), low2 = _mm512_unpacklo_epi8(c, d);
  __m512i high = _mm512_unpackhi_epi8(a, b), high2 = _mm512_unpackhi_epi8(c, d);
  rows[0] = (vi)_mm512_unpacklo_epi16(low, low2);
  rows[1] = (vi)_mm512_unpackhi_epi16(low, low2);
  rows[2] = (vi)_mm512_unpacklo_epi16(high, high2);
  rows[3] = (vi)_mm512_unpackhi_epi16(high, high2);
}
INLINE void in_order(vi* sums) {
  __m512i a = (__m512i)sums[0], b = (__m512i)sums[1], c = (__m512i)sums[2], d = (__m512i)sums[3];
  __m512i low = _mm512_shuffle_i32x4(a, b, 0x44), low2 = _mm512_shuffle_i32x4(c, d, 0x44);
  __m512i high = _mm512_shuffle_i32x4(a, b, 0xee), high2 = _mm512_shuffle_i32x4(c, d, 0xee);
  sums[0] = (vi)_mm512_shuffle_i32x4(low, low2, 0x88);
  sums[1] = (vi)_mm512_shuffle_i32x4(low, low2, 0xdd);
  sums[2] = (vi)_mm512_shuffle_i32x4(high, high2, 0x88);
  sums[3] = (vi)_mm512_shuffle_i32x4(high, high2, 0xdd);
}

template <int HEADS, int DIM>
INLINE void add_codes(float* weights, const CacheCode* const* keys, int count, int64_t dim_,
                      int64_t value_offset, float* all_sums, int64_t width,
                      const CacheCode* const* next, int next_count) {
  const int64_t dim = DIM > 0 ? DIM : dim_;
  scale_weights<HEADS>(weights, keys, count, dim, value_offset);
  WeightCodes codes[HEADS];
  for (int h = 0; h < HEADS; h++) codes[h].put(weights + h * CODED_CHUNK);
  for (int64_t i = 0; i < dim; i += 64) {
    vi high[HEADS][4] = {}, low[HEADS][4] = {};
    for (int t = 0; t < count; t += 4) {  // behind the last key lie pointers to it, of weight 0
      vi rows[4];
#pragma GCC unroll 4
      for (int e = 0; e < 4; e++) {
        rows[e] = load_codes(keys[t + e] + value_offset + i, dim - i);
        if (t + e < next_count) fetch_ahead(next[t + e] + i);
      }
      interleave(rows);
#pragma GCC unroll 4
      for (int h = 0; h < HEADS; h++) {
        vi upper = splat_int(codes[h].high[t / 4]), lower = splat_int(codes[h].low[t / 4]);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
          high[h][v] = dot_bytes(high[h][v], rows[v], upper);
          low[h][v] = dot_bytes(low[h][v], rows[v], lower);
        }
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++) {
      vi sums[4];
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++) sums[v] = (high[h][v] << 7) + low[h][v] + splat_int(codes[h].start);
      in_order(sums);
#pragma GCC unroll 4
      for (int64_t v = 0; v < 4 && i + v * WIDTH < width; v++) {
        float* place = all_sums + h * width + i + v * WIDTH;
        store(place, load(place) + __builtin_convertvector(sums[v], vf) * splat(codes[h].unit));
      }
    }
  }
}
#endif
