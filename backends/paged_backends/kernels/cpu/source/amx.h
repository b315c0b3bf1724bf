// Intel's Advanced Matrix Extensions: eight tile registers of 16 rows of 64 bytes; two of pairs of
// bfloat16 are multiplied and added to a third of float32, or two of four bytes to a third of integers.
//
// AMX is 1 where the compiler is told to use them. With EMULATE_AMX the same functions work on an array, so
// that a processor without AMX can test what is built on it. A product of two bfloat16 is exact in float32;
// the even and the odd numbers of a row are two chains of additions, each rounded to nearest; their sum is
// added once. Hardware and this rule had the same bits in 512,000 sums of normal numbers. Denormal numbers
// are read as zeros, and a sum that is denormal is a zero of its sign, also below zero, as in hardware. Not
// compared with hardware: sums that are normal although numbers in their chains are denormal.
#pragma once

#include "dot_codes.h"

#if defined(EMULATE_AMX) || (defined(__AMX_BF16__) && defined(__AMX_TILE__))
#define AMX 1
#else
#define AMX 0
#endif

constexpr int TILE_ROWS = 16;     // of a register
constexpr int TILE_DEPTH = 32;    // bfloat16 in a row of it
constexpr int TILE_COLUMNS = 16;  // float32 in a row of it

#if !AMX

// Nothing to configure.
struct TileConfig {};
struct TileShape {
  TileShape(int, int) {}
};

#elif !defined(EMULATE_AMX)

// Configures all eight registers, in this thread: 4 and 5 as `rows` rows of `depth` bytes, 6 and 7 as the
// `depth / 4` rows that these are multiplied with, and the others as `rows` rows of sums.
INLINE void configure_tiles(int depth, int rows) {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
  } config;
  config.row_bytes[4] = config.row_bytes[5] = uint16_t(depth);
  for (int i = 0; i < 8; i++) config.rows[i] = uint8_t(i < 6 ? rows : depth / 4);
  asm volatile("ldtilecfg %0" ::"m"(config));
}
INLINE void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

// The compilers' intrinsics take literal numbers of registers, which a template's argument is not, and
// those of GCC 12 do not declare that they read memory.
template <int TILE>
INLINE void tile_load(const void* place, int64_t stride) {  // bytes from row to row
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(place), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
INLINE void tile_store(void* place, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(place), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
// SUM [16][16] += A [16][32] times B [16 pairs][16 columns][2].
template <int SUM, int A, int B>
INLINE void tile_dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}

// SUM [16][16] += A [16][depth] times B [depth / 4][16 columns][4], signed bytes.
template <int SUM, int A, int B>
INLINE void tile_dot_bytes() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}

#else

// The registers of a thread; reading or writing one that is not configured would be a fault.
struct TileRegisters {
  alignas(64) float tiles[8][TILE_ROWS][TILE_COLUMNS];
  bool configured = false;
  int depth = 0, rows = 0;  // as for `configure_tiles`
};
inline TileRegisters& tile_registers() {
  static thread_local TileRegisters registers;
  return registers;
}
inline float (*tile_at(int tile))[TILE_COLUMNS] {
  if (!tile_registers().configured) __builtin_trap();
  return tile_registers().tiles[tile];
}

INLINE void configure_tiles(int depth, int rows) {
  tile_registers().configured = true;
  tile_registers().depth = depth;
  tile_registers().rows = rows;
}
INLINE void release_tiles() { tile_registers().configured = false; }

template <int TILE>
static void tile_load(const void* place, int64_t stride) {
  constexpr bool IS_LEFT = TILE == 4 || TILE == 5, IS_RIGHT = TILE == 6 || TILE == 7;
  const int depth = tile_registers().depth, rows = IS_RIGHT ? depth / 4 : tile_registers().rows;
  memset(tile_at(TILE), 0, TILE_ROWS * 64);
  for (int r = 0; r < rows; r++)
    memcpy(tile_at(TILE)[r], (const char*)place + r * stride, size_t(IS_LEFT ? depth : 64));
}
template <int TILE>
static void tile_store(void* place, int64_t stride) {
  for (int r = 0; r < tile_registers().rows; r++) memcpy((char*)place + r * stride, tile_at(TILE)[r], 64);
}
template <int TILE>
static void tile_zero() {
  memset(tile_at(TILE), 0, TILE_ROWS * 64);
}

INLINE vf without_denormals(vf value) {
  vi exponent = (vi)value & 0x7f800000;
  return (vf)(exponent == 0 ? (vi)value & splat_int(INT32_MIN) : (vi)value);
}
// `zero`, which a sum is rounded to, with the sign of the sum as it is before.
static float zero_of_sign(float zero, float sum, const float* row, const float (*pairs)[TILE_COLUMNS],
                          int column) {
  const auto number = [](const float* pair, int which) {
    uint32_t bits;
    memcpy(&bits, pair, 4);
    bits = which ? bits & 0xffff0000 : bits << 16;
    float value;
    memcpy(&value, &bits, 4);
    return std::fabs(value) < 0x1p-126f ? 0.0 : double(value);
  };
  double whole = sum;
  for (int k = 0; k < TILE_ROWS; k++)
    for (int which = 0; which < 2; which++) whole += number(row + k, which) * number(pairs[k] + column, which);
  return whole < 0 ? -0.0f : whole > 0 ? 0.0f : zero;
}
template <int SUM, int A, int B>
static void tile_dot() {
  auto *sums = tile_at(SUM), *a = tile_at(A), *b = tile_at(B);
  for (int r = 0; r < tile_registers().rows; r++)
    for (int c = 0; c < TILE_COLUMNS; c += WIDTH) {
      vf even = splat(0.0f), odd = splat(0.0f);
      for (int k = 0; k < TILE_ROWS; k++) {  // pairs
        int32_t pair;
        memcpy(&pair, a[r] + k, 4);
        vi line, x = vi{} + pair;
        memcpy(&line, b[k] + c, sizeof line);
        const vi upper = vi{} - 65536;
        even = without_denormals(even + without_denormals((vf)(x << 16)) *
                                            without_denormals((vf)(line << 16)));
        odd = without_denormals(odd + without_denormals((vf)(x & upper)) *
                                          without_denormals((vf)(line & upper)));
      }
      vf sum = without_denormals(load(sums[r] + c));
      float before[WIDTH];
      store(before, sum);
      store(sums[r] + c, without_denormals(sum + without_denormals(even + odd)));
      for (int i = 0; i < WIDTH; i++)
        if (sums[r][c + i] == 0) sums[r][c + i] = zero_of_sign(sums[r][c + i], before[i], a[r], b, c + i);
    }
}

template <int SUM, int A, int B>
static void tile_dot_bytes() {
  auto *sums = tile_at(SUM), *a = tile_at(A), *b = tile_at(B);
  for (int k = 0; k < tile_registers().depth / 4; k++)
    for (int c = 0; c < TILE_COLUMNS; c += WIDTH) {
      vi line;
      memcpy(&line, b[k] + c, sizeof line);
      const vi even = (vi)(vs(line) << 8 >> 8), odd = (vi)(vs(line) >> 8);
      for (int r = 0; r < tile_registers().rows; r++) {
        int32_t four;
        memcpy(&four, a[r] + k, 4);
        const vs x = (vs)splat_int(four);
        vi sum;
        memcpy(&sum, sums[r] + c, sizeof sum);
        sum += multiply_pairs((vi)(x << 8 >> 8), even) + multiply_pairs((vi)(x >> 8), odd);
        memcpy(sums[r] + c, &sum, sizeof sum);
      }
    }
}

#endif

#if AMX

// The registers are configured, in this thread, while this lives. Afterwards they are released: other
// libraries in the same thread configure their own, and what is configured costs the system 8 KiB to save
// whenever it changes threads. The process must have the system's permission (detect.cpp).
class TileConfig {
 public:
  TileConfig() { configure_tiles(64, TILE_ROWS); }
  ~TileConfig() { release_tiles(); }
  TileConfig(const TileConfig&) = delete;
  TileConfig& operator=(const TileConfig&) = delete;
};

// Registers of another shape while this lives, within a TileConfig; see `configure_tiles`.
class TileShape {
 public:
  TileShape(int depth, int rows) { configure_tiles(depth, rows); }
  ~TileShape() { configure_tiles(64, TILE_ROWS); }
  TileShape(const TileShape&) = delete;
  TileShape& operator=(const TileShape&) = delete;
};

#endif
