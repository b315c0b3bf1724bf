// Scores and sums of a cache of codes, in whole numbers.
//
// A query, and the weights of a chunk of keys, are whole numbers of 16 bits times a unit, which is a 32767th
// of the greatest of them. They are multiplied with the codes of the cache two at a time, in sums of 32 bits
// that are exact. What that loses is a hundredth of what bfloat16 does.
#pragma once

#include "cache_rows.h"
#include "dot_codes.h"

constexpr int CODED_CHUNK = 64;  // keys whose scores, weights and values are computed in turn
constexpr float MOST_UNITS = 32767.0f;
constexpr int WORDS = 2 * WIDTH;  // numbers of 16 bits in a vector

// Numbers are `inverse` times as many units.
struct Unit {
  float unit, inverse;
  explicit Unit(float greatest)
      : unit(greatest / MOST_UNITS), inverse(greatest > 1e-30f ? MOST_UNITS / greatest : 0.0f) {}
};

// Rounds numbers [WIDTH] in units to words.
INLINE void store_words(int16_t* place, vf numbers) {
  typedef int16_t half_of_vs __attribute__((vector_size(WIDTH * 2)));
  half_of_vs words = __builtin_convertvector(whole(numbers), half_of_vs);
  memcpy(place, &words, sizeof words);
}
INLINE vi load_words(const int16_t* place) {
  vi words;
  memcpy(&words, place, sizeof words);
  return words;
}

// The next WORDS codes, of which `left` there are, as words; behind them, zeros.
INLINE vi load_codes(const CacheCode* place, int64_t left) {
  typedef int8_t bytes __attribute__((vector_size(WORDS)));
  bytes codes = {};
  if (left >= WORDS)
    memcpy(&codes, place, sizeof codes);
  else
    memcpy(&codes, place, size_t(left));
#if defined(__AVX512BW__)
  return (vi)_mm512_cvtepi8_epi16((__m256i)codes);  // compilers make two halves of it
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepi8_epi16((__m128i)codes);
#else
  return (vi)__builtin_convertvector(codes, vs);
#endif
}

// sum + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] in lane i.
INLINE vi dot_words(vi sum, vi a, vi b) {
#if defined(__AVX512VNNI__)
  return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
  return (vi)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#else
  return sum + multiply_pairs(a, b);
#endif
}

// Two rows of words, so that those of one dimension lie together: in the order that `in_order` ends.
INLINE void interleave(vi& first, vi& second) {
  vi a = first, b = second;
#if defined(__AVX512BW__)
  first = (vi)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
  second = (vi)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  first = (vi)_mm256_unpacklo_epi16((__m256i)a, (__m256i)b);
  second = (vi)_mm256_unpackhi_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  first = (vi)_mm_unpacklo_epi16((__m128i)a, (__m128i)b);
  second = (vi)_mm_unpackhi_epi16((__m128i)a, (__m128i)b);
#else
  vs x = vs(a), y = vs(b), low, high;
  for (int i = 0; i < WIDTH; i++) {
    low[2 * i] = x[i], low[2 * i + 1] = y[i];
    high[2 * i] = x[WIDTH + i], high[2 * i + 1] = y[WIDTH + i];
  }
  first = vi(low), second = vi(high);
#endif
}
// Two vectors, so that their numbers alternate: in the order that `in_order` ends, too.
INLINE void alternate(vf& first, vf& second) {
  vf a = first, b = second;
#if defined(__AVX512F__)
  first = (vf)_mm512_unpacklo_ps((__m512)a, (__m512)b);
  second = (vf)_mm512_unpackhi_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  first = (vf)_mm256_unpacklo_ps((__m256)a, (__m256)b);
  second = (vf)_mm256_unpackhi_ps((__m256)a, (__m256)b);
#else
  for (int i = 0; i < WIDTH / 2; i++) {
    first[2 * i] = a[i], first[2 * i + 1] = b[i];
    second[2 * i] = a[WIDTH / 2 + i], second[2 * i + 1] = b[WIDTH / 2 + i];
  }
#endif
}
INLINE void in_order(vi& first, vi& second) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  __m512i a = (__m512i)first, b = (__m512i)second;
  first = (vi)_mm512_permutex2var_epi32(a, low, b);
  second = (vi)_mm512_permutex2var_epi32(a, high, b);
#elif defined(__AVX2__)
  __m256i a = (__m256i)first, b = (__m256i)second;
  first = (vi)_mm256_permute2x128_si256(a, b, 0x20);
  second = (vi)_mm256_permute2x128_si256(a, b, 0x31);
#endif
}

// A head of `dim` numbers as words, `width` less the two behind which its unit is.
INLINE void put_words(const bf16* head, int64_t dim, int16_t* words, int64_t width) {
  memset(words, 0, size_t(width) * sizeof *words);
  Unit unit(greatest_of(head, dim));
  for (int64_t i = 0; i < dim; i += WIDTH)
    store_words(words + i, load_upto(head + i, dim - i) * splat(unit.inverse));
  memcpy(words + width - 2, &unit.unit, sizeof unit.unit);
}

// As `score_keys` of decode.h, of queries in words.
template <int HEADS, bool WHOLE>
INLINE void score_codes(const int16_t* query, int64_t width, const CacheCode* const* keys, int count,
                        int64_t dim, float* scores, const CacheCode* const* next, int next_count) {
  float units[HEADS];
  for (int h = 0; h < HEADS; h++) memcpy(units + h, query + (h + 1) * width - 2, sizeof(float));
  for (int first = 0; first < count; first += WIDTH) {
    vf products[HEADS][WIDTH];
    float scales[WIDTH];
    for (int t = 0; t < WIDTH; t++) {
      const CacheCode* key = keys[first + t];
      if (first + t < next_count) fetch_ahead(next[first + t], dim);
      scales[t] = scale_of(key, dim);
      vi sums[HEADS] = {};
#pragma GCC unroll 8
      for (int64_t i = 0; i < dim; i += WORDS) {
        vi codes = load_codes(key + i, WHOLE ? WORDS : dim - i);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; h++)
          sums[h] = dot_words(sums[h], codes, load_words(query + h * width + i));
      }
#pragma GCC unroll 4
      for (int h = 0; h < HEADS; h++) products[h][t] = __builtin_convertvector(sums[h], vf);
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
      store(scores + h * CODED_CHUNK + first, sums_of(products[h]) * load(scales) * splat(units[h]));
  }
}

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

// As `add_values` of decode.h, with weights that are made words; BLOCKS: of WORDS dimensions at once.
template <int HEADS, int BLOCKS, bool WHOLE>
INLINE void add_codes(float* weights, const CacheCode* const* keys, int count, int64_t dim,
                      int64_t value_offset, float* all_sums, int64_t width,
                      const CacheCode* const* next, int next_count) {
  scale_weights<HEADS>(weights, keys, count, dim, value_offset);
  int32_t pairs[HEADS][CODED_CHUNK / 2];  // of words
  float units[HEADS];
  for (int h = 0; h < HEADS; h++) {
    Unit unit(greatest_of(weights + h * CODED_CHUNK, CODED_CHUNK));
    units[h] = unit.unit;
    for (int t = 0; t < CODED_CHUNK; t += WIDTH)
      store_words((int16_t*)pairs[h] + t, load(weights + h * CODED_CHUNK + t) * splat(unit.inverse));
  }
  for (int64_t i = 0; i < dim; i += BLOCKS * WORDS) {
    vi low[HEADS][BLOCKS] = {}, high[HEADS][BLOCKS] = {};
    for (int t = 0; t < count; t += 2) {  // behind the last key lies a pointer to it, of weight 0
      const CacheCode *a = keys[t] + value_offset + i, *b = keys[t + 1] + value_offset + i;
      if (t < next_count) fetch_ahead(next[t] + value_offset + i, BLOCKS * WORDS);
      if (t + 1 < next_count) fetch_ahead(next[t + 1] + value_offset + i, BLOCKS * WORDS);
#pragma GCC unroll 2
      for (int k = 0; k < BLOCKS; k++) {
        int64_t left = WHOLE ? WORDS : dim - i;
        vi x = load_codes(a + k * WORDS, left), y = load_codes(b + k * WORDS, left);
        interleave(x, y);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; h++) {
          vi pair = splat_int(pairs[h][t / 2]);
          low[h][k] = dot_words(low[h][k], x, pair);
          high[h][k] = dot_words(high[h][k], y, pair);
        }
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 2
      for (int k = 0; k < BLOCKS; k++) {
        in_order(low[h][k], high[h][k]);
        float* place = all_sums + h * width + i + k * WORDS;
        vf unit = splat(units[h]);
        store(place, load(place) + __builtin_convertvector(low[h][k], vf) * unit);
        store(place + WIDTH, load(place + WIDTH) + __builtin_convertvector(high[h][k], vf) * unit);
      }
  }
}
