// Products in tile registers: their scratch memory, and the functions of `matmul.h` that they replace.
#pragma once

constexpr int64_t CACHED_BYTES = 1 << 20;  // of activations that stay in a core's cache
constexpr int TILE_BLOCK = 2 * TILE_ROWS;  // rows, and columns, of the sums in four registers

INLINE int64_t tile_steps(int64_t columns) { return (columns + TILE_DEPTH - 1) / TILE_DEPTH; }

// Width of a copied row.
INLINE int64_t tile_width(int64_t columns) { return padded<bf16>(tile_steps(columns) * TILE_DEPTH); }

// Rows that are multiplied with a run of panels before the next run: as many as fit a core's cache, in
// equal parts.
INLINE int64_t rows_of_item(int64_t rows, int64_t columns) {
  int64_t most = CACHED_BYTES / 2 / tile_width(columns) / TILE_BLOCK * TILE_BLOCK;
  most = std::max<int64_t>(TILE_BLOCK, most);
  int64_t items = (rows + most - 1) / most;
  return ((rows + items - 1) / items + TILE_BLOCK - 1) / TILE_BLOCK * TILE_BLOCK;
}

template <>
struct Scratch<bf16> {
  static constexpr int64_t SUMS = 2 * TILE_BLOCK * PANEL;  // two blocks

  float* sums;
  bf16* copied;  // [rows, tile_width]

  // enough for products of no more columns
  static int64_t copies(int64_t rows, int64_t columns) {
    int64_t rounded = (rows + TILE_BLOCK - 1) / TILE_BLOCK * TILE_BLOCK;
    int64_t width = tile_width(columns);
    return std::min(rounded * width, std::max(TILE_BLOCK * width, CACHED_BYTES / 2));
  }
  static size_t bytes(int64_t rows, int64_t columns) {
    return Workspace::bytes_for<float>(SUMS) + Workspace::bytes_for<bf16>(copies(rows, columns));
  }
  Scratch(Workspace& memory, int64_t rows, int64_t columns)
      : sums(memory.take<float>(SUMS)), copied(memory.take<bf16>(copies(rows, columns))) {}
};

template <>
void multiply(const Team& team, const Product<bf16>& p, const Scratch<bf16>& scratch);
template <>
void multiply_gated(const Team& team, const GatedProduct<bf16>& p, const Scratch<bf16>& scratch);
