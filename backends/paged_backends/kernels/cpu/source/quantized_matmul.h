// Products with quantised weights, for any number of rows: activations are quantised too, and codes multiplied
// in integers; or, where there are tile registers, the weight says so and activations are bfloat16, codes are
// widened to these.
#pragma once

#include "code_products.h"
#include "code_tiles.h"
#if AMX
#include "widened_codes.h"
#else
struct WidenedScratch {
  static size_t bytes(int64_t, int64_t) { return 0; }
  WidenedScratch(Workspace&, int64_t, int64_t) {}
};
#endif

// Memory of a thread for products with codes.
struct QuantizedScratch {
  float* result;           // of two panels
  QuantizedChunk* chunks;  // [chunks][up to BLOCK_ROWS rows], and some that whole tiles may reach into
  CodeTileScratch* tiles;
  WidenedScratch widened;

  static int64_t num_chunks(int64_t rows, int64_t columns) {
    return std::min<int64_t>(rows, BLOCK_ROWS) * chunks_of(columns) + CODE_BLOCK;
  }
  static size_t bytes(int64_t rows, int64_t columns) {
    return Workspace::bytes_for<float>(RESULTS) + Workspace::bytes_for<CodeTileScratch>(1) +
           Workspace::bytes_for<QuantizedChunk>(num_chunks(rows, columns)) + WidenedScratch::bytes(rows, columns);
  }
  QuantizedScratch(Workspace& memory, int64_t rows, int64_t columns)
      : result(memory.take<float>(RESULTS)),
        chunks(memory.take<QuantizedChunk>(num_chunks(rows, columns))),
        tiles(memory.take<CodeTileScratch>(1)),
        widened(memory, rows, columns) {}
};

// result [rows][PANEL]: the rows in `scratch` times a panel.
INLINE void multiply_code_panel(const QuantizedScratch& scratch, int64_t rows, int64_t columns,
                                const QuantizedWeight& weight, int64_t panel, float* result) {
  const CodeFormat& format = weight.format;
  const uint8_t* place = weight.packed + panel * format.panel_bytes(columns);
  const QuantizedChunk* chunks = scratch.chunks;
  for (int64_t k = 0; k < columns; k += CHUNK_INPUTS, chunks += rows) {
    const int count = int(format.groups(std::min<int64_t>(CHUNK_INPUTS, columns - k)));
#if AMX
    if (rows >= TILE_ROWS)
      multiply_in_code_tiles(chunks, rows, place, format, count, result, k == 0, *scratch.tiles);
    else
#endif
      multiply_code_rows(chunks, rows, place, format, count, result, k == 0);
    place += count * format.group_bytes();
  }
}

// Quantises the rows of `p`, a Product or GatedProduct, block by block, and calls `work(first, rows, panel)` for
// each of `panels` panels, with the first row of a block and how many there are.
template <typename P, typename Work>
INLINE void with_quantized_rows(const Team& team, const P& p, const CodeFormat& format, int64_t panels,
                                const QuantizedScratch& scratch, const Work& work) {
  const TileShape shape(std::min<int>(format.group, 64), TILE_ROWS);
  int64_t held = -1;
  share_panels(team, p.rows, BLOCK_ROWS, panels, 1, [&](int64_t block, int64_t begin, int64_t end, auto&) {
    const int64_t first = block * BLOCK_ROWS, rows = std::min<int64_t>(BLOCK_ROWS, p.rows - first);
    if (block != held)
      quantize_rows(p.x + first * p.x_stride, p.x_stride, rows, p.columns, format.group, format.middle(),
                    format.factor, scratch.chunks);
    held = block;
    for (int64_t panel = begin; panel < end; panel++) work(first, rows, panel);
  });
}

// As `multiply` of `matmul.h`; `p.packed` is not used.
template <typename T>
void multiply(const Team& team, const Product<T>& p, const QuantizedWeight& weight,
              const QuantizedScratch& scratch) {
  const int64_t panels = (p.width + PANEL - 1) / PANEL;
#if AMX
  if constexpr (sizeof(T) == 2)
    if (weight.format.is_widened) {
      multiply_codes_in_tiles(team, p, weight, panels, 1, scratch.widened, storing(p));
      return;
    }
#endif
  auto work = [&](int64_t first, int64_t rows, int64_t panel) {
    multiply_code_panel(scratch, rows, p.columns, weight, panel, scratch.result);
    store_product(p, first, rows, panel, scratch.result);
  };
  with_quantized_rows(team, p, weight.format, panels, scratch, work);
}

// As `multiply_gated` of `matmul.h`.
template <typename T>
void multiply_gated(const Team& team, const GatedProduct<T>& p, const QuantizedWeight& weight,
                    const QuantizedScratch& scratch) {
  const int64_t panels = p.width / PANEL;
#if AMX
  if constexpr (sizeof(T) == 2)
    if (weight.format.is_widened) {
      auto finish = [p](const float* sums, int64_t row, int64_t column) __attribute__((always_inline)) {
        store_gated(p, row, 1, column / PANEL, sums, sums + WidenedScratch::BLOCK_SUMS);
      };
      multiply_codes_in_tiles(team, p, weight, panels, 2, scratch.widened, finish);
      return;
    }
#endif
  auto work = [&](int64_t first, int64_t rows, int64_t panel) {
    float* values = scratch.result + rows * PANEL;
    multiply_code_panel(scratch, rows, p.columns, weight, panel, scratch.result);
    multiply_code_panel(scratch, rows, p.columns, weight, panels + panel, values);
    store_gated(p, first, rows, panel, scratch.result, values);
  };
  with_quantized_rows(team, p, weight.format, panels, scratch, work);
}
