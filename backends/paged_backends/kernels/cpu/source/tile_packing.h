// Keys and values of a sequence, KEYS at a time, as panels (matmul.h): of 32 keys each, and of 32
// dimensions each.
#pragma once

#include "matmul.h"

constexpr int KEYS = 128;

INLINE int64_t panels_of(int64_t dim) { return (dim + PANEL - 1) / PANEL; }

#if defined(__AVX512F__)
// Transposes 16 x 16 numbers of 32 bits.
INLINE void transpose(__m512i* rows) {
  __m512i pair[16], quad[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pair[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pair[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      quad[i + 2 * j] = _mm512_unpacklo_epi64(pair[i + j], pair[i + 2 + j]);
      quad[i + 2 * j + 1] = _mm512_unpackhi_epi64(pair[i + j], pair[i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    __m512i low = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0x88);
    __m512i low2 = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0x88);
    __m512i high = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0xdd);
    __m512i high2 = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    rows[4 + j] = _mm512_shuffle_i32x4(high, high2, 0x88);
    rows[12 + j] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
}
#endif

// rows [KEYS] (null: masked, counts as zero) to panels of 32 keys, and of 32 dimensions.
template <typename T>
INLINE void pack_keys(const T* const* rows, int count, int64_t dim, float* panels) {
#if defined(__AVX512F__)
  for (int first = 0; first < count; first += WIDTH) {
    float* panel = panels + first / PANEL * PANEL * dim + first % PANEL;
    for (int64_t i = 0; i < dim; i += WIDTH) {
      __m512i square[WIDTH];
#pragma GCC unroll 16
      for (int c = 0; c < WIDTH; c++) {
        const T* row = rows[first + c];
        square[c] = row ? (__m512i)load_upto(row + i, dim - i) : _mm512_setzero_si512();
      }
      transpose(square);
      for (int64_t k = 0; k < std::min<int64_t>(WIDTH, dim - i); k++)
        _mm512_storeu_si512(panel + (i + k) * PANEL, square[k]);
    }
  }
#else
  for (int first = 0; first < count; first += PANEL)
    for (int c = 0; c < PANEL; c++) {
      const T* row = rows[first + c];
      float* column = panels + first * dim + c;
      for (int64_t i = 0; i < dim; i++) column[i * PANEL] = row ? to_float(row[i]) : 0.0f;
    }
#endif
}
template <typename T>
INLINE void pack_values(const T* const* rows, int count, int64_t dim, float* panels) {
  for (int64_t first = 0; first < dim; first += PANEL)
    for (int k = 0; k < count; k++) {
      float* line = panels + first * KEYS + k * PANEL;
      for (int64_t i = 0; i < PANEL; i += WIDTH) {
        int64_t left = dim - first - i;
        store(line + i, rows[k] && left > 0 ? load_upto(rows[k] + first + i, left) : splat(0.0f));
      }
    }
}

#if PAIR_PRODUCTS || (AMX && PAIR_DOT)
INLINE void pack_keys(const bf16* const* rows, int count, int64_t dim, bf16* panels) {
  int64_t steps = packed_steps<bf16>(dim);
  for (int first = 0; first < count; first += 16) {
    uint32_t* panel = (uint32_t*)panels + first / PANEL * PANEL * steps + first % PANEL;
    for (int64_t k = 0; k < steps; k += 16) {
      __m512i square[16];
#pragma GCC unroll 16
      for (int c = 0; c < 16; c++)
        square[c] = rows[first + c] ? load_pairs_upto(rows[first + c] + 2 * k, dim - 2 * k)
                                    : _mm512_setzero_si512();
      transpose(square);
      for (int64_t i = 0; i < std::min<int64_t>(16, steps - k); i++)
        _mm512_storeu_si512(panel + (k + i) * PANEL, square[i]);
    }
  }
}
INLINE void pack_values(const bf16* const* rows, int count, int64_t dim, bf16* panels) {
  alignas(64) static const uint16_t order[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                 37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(order);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t first = 0; first < dim; first += PANEL)
    for (int k = 0; k < count; k += 2) {
      bf16* line = panels + first * KEYS + k * PANEL;
      __m512i row[2];
      for (int e = 0; e < 2; e++)
        row[e] = rows[k + e] ? load_pairs_upto(rows[k + e] + first, dim - first)
                             : _mm512_setzero_si512();
      _mm512_storeu_si512(line, _mm512_permutex2var_epi16(row[0], low, row[1]));
      _mm512_storeu_si512(line + 32, _mm512_permutex2var_epi16(row[0], high, row[1]));
    }
}
#elif AMX
INLINE void pack_keys(const bf16* const* rows, int count, int64_t dim, bf16* panels) {
  int64_t steps = packed_steps<bf16>(dim);
  for (int c = 0; c < count; c++) {
    uint32_t* column = (uint32_t*)panels + c / PANEL * PANEL * steps + c % PANEL;
    for (int64_t k = 0; k < steps; k++) column[k * PANEL] = rows[c] ? step_of(rows[c], k, dim) : 0;
  }
}
INLINE void pack_values(const bf16* const* rows, int count, int64_t dim, bf16* panels) {
  for (int64_t i = 0; i < (dim + PANEL - 1) / PANEL * PANEL; i++)
    for (int k = 0; k < count; k++)
      panels[i / PANEL * PANEL * KEYS + k / 2 * 2 * PANEL + i % PANEL * 2 + k % 2] =
          rows[k] && i < dim ? rows[k][i] : bf16{0};
}
#endif
