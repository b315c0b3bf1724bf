// Products of a few rows with codes of weights, on the vector units.
//
// A group's dot products are exact in integers (dot_codes.h); their sums in float32 are one chain in the order
// of the groups.
#pragma once

#include "packed_codes.h"

// What is fetched from memory while a tile of rows is multiplied with codes, at an even pace: the bytes from
// `next` to `end`, a part of those that lie some distance ahead of the codes.
template <int ROWS>
struct CodesAhead {
  const char *next, *end;
  int pace;      // bytes for each line of codes
  bool is_near;  // into the nearest cache

  CodesAhead(const uint8_t* panel, int64_t bytes, int bits, int part, int parts, bool is_only_tile)
      : pace(PANEL * 4 / parts), is_near(ROWS <= NEAR_ROWS && is_only_tile) {
    const char* first = (const char*)panel + (is_near ? NEAR_CODES_AHEAD * bits / 8 : CODES_AHEAD);
    next = first + bytes * part / parts;
    end = first + bytes * (part + 1) / parts;
  }
  ALWAYS_INLINE void fetch(const char* place) {
    if (ROWS <= NEAR_ROWS && is_near)
      prefetch<true>(place);
    else
      prefetch<false>(place);
  }
  ALWAYS_INLINE void fetch_line() {
    fetch(next);
    if (pace > 64) fetch(next + 64);
    next += pace;
  }
  ALWAYS_INLINE void fetch_rest() {
    for (; next < end; next += 64) fetch(next);
  }
};

// sums [ROWS] += the dot products of a group of ROWS rows, from `x` of the first on, with codes of a stripe.
template <int BITS, int ROWS>
INLINE void dot_group(const int8_t* x, const uint8_t* codes, int group, vi (*sums)[VECTORS], CodesAhead<ROWS>& ahead) {
  constexpr int STEP = BITS == 8 ? 4 : 8, LINE = PANEL * 4;
  for (int k = 0; k < group; k += STEP, x += STEP, codes += LINE) {
    ahead.fetch_line();
    vi stored[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) memcpy(stored + v, codes + v * WIDTH * 4, sizeof(vi));
#pragma GCC unroll 2
    for (int half = 0; half < STEP / 4; half++) {
      vi four[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++)
        four[v] = BITS == 8 ? stored[v] : (half ? (vi)(vus(stored[v]) >> 4) : stored[v]) & splat_int(0x0f0f0f0f);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++) {
        int32_t numbers;
        memcpy(&numbers, x + r * sizeof(QuantizedChunk) + half * 4, 4);
        const FourCodes<BITS> own(numbers);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[r][v] = dot_codes(sums[r][v], four[v], own);
      }
    }
  }
}

// result [ROWS][PANEL] += ROWS rows, tile `tile` of so many, times `count` groups of a panel, at most a chunk.
template <int BITS, int ROWS>
static void multiply_codes(const QuantizedChunk* rows, const uint8_t* panel, const CodeFormat& format, int count,
                           float* result, bool fresh, int tile, int tiles) {
  for (int first = 0; first < PANEL; first += STRIPE) {
    CodesAhead<ROWS> ahead(panel, count * format.group_bytes(), BITS, tile * STRIPES + first / STRIPE,
                           tiles * STRIPES, tiles == 1);
    vf totals[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++)
        totals[r][v] = fresh ? splat(0.0f) : load(result + r * PANEL + first + v * WIDTH);
    const uint8_t* place = panel;
    for (int g = 0; g < count; g++, place += format.group_bytes()) {
      vi sums[ROWS][VECTORS];
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[r][v] = splat_int(rows[r].starts[g]);
      dot_group<BITS, ROWS>(rows->codes + g * format.group, place + first * 4, format.group, sums, ahead);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        const GroupScales scales(format, place, first + v * WIDTH);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) totals[r][v] = scales.add(totals[r][v], sums[r][v], rows[r], g);
      }
    }
    ahead.fetch_rest();
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) store(result + r * PANEL + first + v * WIDTH, totals[r][v]);
  }
}

constexpr int MAX_CODE_ROWS = std::min(6, MAX_ROWS);  // of a tile: sums in integers and in floats take registers

using CodeProduct = void (*)(const QuantizedChunk*, const uint8_t*, const CodeFormat&, int, float*, bool, int, int);

template <int BITS>
static CodeProduct code_product(int64_t rows) {
#define CASE(R) \
  case R:       \
    return multiply_codes<BITS, R <= MAX_CODE_ROWS ? R : 1>;
  switch (rows) {
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
  }
#undef CASE
  return nullptr;
}

// result [rows][PANEL] += all rows times `count` groups of a panel, at most a chunk.
INLINE void multiply_code_rows(const QuantizedChunk* chunks, int64_t rows, const uint8_t* panel,
                               const CodeFormat& format, int count, float* result, bool fresh) {
  const int64_t tiles = (rows + MAX_CODE_ROWS - 1) / MAX_CODE_ROWS, height = (rows + tiles - 1) / tiles;
  for (int64_t r = 0; r < rows; r += height) {
    const int64_t some = std::min(height, rows - r);
    const CodeProduct product = format.bits == 8 ? code_product<8>(some) : code_product<4>(some);
    product(chunks + r, panel, format, count, result + r * PANEL, fresh, int(r / height), int(tiles));
  }
}
