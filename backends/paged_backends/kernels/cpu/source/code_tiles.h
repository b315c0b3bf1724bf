// Products of codes in tile registers: as many sums at once as 32 rows and a panel have, and the same results
// as on the vector units, to the bit.
//
// The codes of a group are unpacked to signed bytes, which serve all rows. A group's sums are exact; they are
// scaled and added to the results while the next block of rows is multiplied.
#pragma once

#include "packed_codes.h"

constexpr int CODE_BLOCK = 2 * TILE_ROWS;  // rows that are multiplied at once

#if !AMX

struct CodeTileScratch {};

#else

struct alignas(64) CodeTileScratch {
  int8_t codes[CHUNK_INPUTS * PANEL];    // of one group
  int32_t sums[2][CODE_BLOCK * PANEL];  // of this block and the one before it
};

// The codes of a group of a panel, less the middle: [group / 4][PANEL][4].
template <int BITS>
INLINE void unpack_codes(const uint8_t* codes, int group, int8_t* place) {
  typedef uint8_t vub __attribute__((vector_size(WIDTH * 4)));
  constexpr int MIDDLE = 1 << (BITS - 1), LINE = PANEL * 4, HALVES = 8 / BITS;
  for (int i = 0; i < group * PANEL * BITS / 8; i += WIDTH * 4) {
    vi packed;
    memcpy(&packed, codes + i, sizeof packed);
    for (int half = 0; half < HALVES; half++) {
      vi four = half ? (vi)(vus(packed) >> 4) : packed;
      if (BITS == 4) four &= splat_int(0x0f0f0f0f);
      const vub less = (vub)four - uint8_t(MIDDLE);
      memcpy(place + (i / LINE * HALVES + half) * LINE + i % LINE, &less, sizeof less);
    }
  }
}

// sums [CODE_BLOCK][PANEL] = 16 or 32 rows times the unpacked codes of a group.
template <int TILES>
INLINE void multiply_bytes(const int8_t* x, const int8_t* codes, int group, int32_t* sums) {
  constexpr int64_t STRIDE = sizeof(QuantizedChunk), LINE = PANEL * 4;
  tile_zero<0>();
  tile_zero<1>();
  if (TILES == 2) {
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int k = 0; k < group; k += 64) {
    tile_load<4>(x + k, STRIDE);
    tile_load<6>(codes + k / 4 * LINE, LINE);
    tile_dot_bytes<0, 4, 6>();
    tile_load<7>(codes + k / 4 * LINE + 64, LINE);
    tile_dot_bytes<1, 4, 7>();
    if (TILES == 2) {
      tile_load<5>(x + TILE_ROWS * STRIDE + k, STRIDE);
      tile_dot_bytes<2, 5, 6>();
      tile_dot_bytes<3, 5, 7>();
    }
  }
  tile_store<0>(sums, PANEL * 4);
  tile_store<1>(sums + TILE_COLUMNS, PANEL * 4);
  if (TILES == 2) {
    tile_store<2>(sums + TILE_ROWS * PANEL, PANEL * 4);
    tile_store<3>(sums + TILE_ROWS * PANEL + TILE_COLUMNS, PANEL * 4);
  }
}

// Adds the sums of a group [rows][PANEL], at most a block, to results [rows][PANEL].
INLINE void add_sums(const int32_t* sums, const QuantizedChunk* rows, int64_t count, const CodeFormat& format,
                     const uint8_t* place, int group, float* result, bool fresh) {
  for (int c = 0; c < PANEL; c += WIDTH) {
    const GroupScales scales(format, place, c);
    for (int64_t r = 0; r < count; r++) {
      vi sum;
      memcpy(&sum, sums + r * PANEL + c, sizeof sum);
      const vf total = fresh ? splat(0.0f) : load(result + r * PANEL + c);
      store(result + r * PANEL + c, scales.add(total, sum, rows[r], group));
    }
  }
}

// As `multiply_code_rows`. Rows behind the last are read, and make sums that are not used.
INLINE void multiply_in_code_tiles(const QuantizedChunk* chunks, int64_t rows, const uint8_t* panel,
                                   const CodeFormat& format, int count, float* result, bool fresh,
                                   CodeTileScratch& scratch) {
  int64_t held = -1, held_group = 0;  // the first row of sums that are not added yet, and their group
  int turn = 0;
  auto add_held = [&] {
    if (held < 0) return;
    add_sums(scratch.sums[1 - turn], chunks + held, std::min<int64_t>(CODE_BLOCK, rows - held), format,
             panel + held_group * format.group_bytes(), int(held_group), result + held * PANEL,
             fresh && held_group == 0);
  };
  for (int g = 0; g < count; g++) {
    const uint8_t* codes = panel + g * format.group_bytes();
    if (format.bits == 8)
      unpack_codes<8>(codes, format.group, scratch.codes);
    else
      unpack_codes<4>(codes, format.group, scratch.codes);
    for (int64_t r = 0; r < rows; r += CODE_BLOCK) {
      const int8_t* x = chunks[r].codes + g * format.group;
      if (rows - r > TILE_ROWS)
        multiply_bytes<2>(x, scratch.codes, format.group, scratch.sums[turn]);
      else
        multiply_bytes<1>(x, scratch.codes, format.group, scratch.sums[turn]);
      add_held();
      held = r;
      held_group = g;
      turn = 1 - turn;
    }
  }
  add_held();
}

#endif
