// Products with weights in 8 or 4 bits, in groups of inputs that share a scale, and perhaps an offset: a weight
// is (code - middle) * scale + offset.
//
// A packed weight is a run of panels, one for 32 rows, as other weights are (matmul.h). A panel is a run of
// groups, and a group
//   [steps][32][4 bytes]: a step is four inputs with 8 bits; with 4 bits four in the lower halves, and the
//                         four that follow in the upper halves
//   [32] scales, [32] offsets if there are any: float16, times a factor of the whole weight
// Codes that fill the last group are multiplied by activations of zero.
//
// A group's dot products are exact in integers (dot_codes.h); their sums in float32 are one chain in the order
// of the groups.
#pragma once

#include "matmul.h"
#include "quantized_rows.h"

// How the codes of a weight are stored.
struct CodeFormat {
  int32_t bits, group;  // 8 or 4; 16, 32, 64 or 128 inputs
  int32_t has_offsets;
  float factor;  // of all scales and offsets

  int64_t groups(int64_t columns) const { return (columns + group - 1) / group; }
  int64_t code_bytes() const { return int64_t(PANEL) * group * bits / 8; }  // of a group of a panel
  int64_t group_bytes() const { return code_bytes() + PANEL * (has_offsets ? 4 : 2); }
  int64_t panel_bytes(int64_t columns) const { return groups(columns) * group_bytes(); }
  int middle() const { return 1 << (bits - 1); }
};

struct QuantizedWeight {
  const uint8_t* packed;
  CodeFormat format;
};

// The matrix to pack, [rows][groups]: bytes of codes, of which the lower half is the first, and float16.
struct CodesToPack {
  const uint8_t* codes;
  const uint16_t *scales, *offsets;  // offsets may be null
};

static void pack_codes(const CodesToPack& from, const CodeFormat& format, uint8_t* packed, int64_t rows,
                       int64_t columns, int threads) {
  const int64_t groups = format.groups(columns), bytes = format.group * format.bits / 8;
  const int step = format.bits == 8 ? 4 : 8;  // inputs
  work_together(threads, [&](const Team& team) {
    int64_t begin, end;
    team.share((rows + PANEL - 1) / PANEL, begin, end);
    for (int64_t p = begin; p < end; p++)
      for (int64_t g = 0; g < groups; g++) {
        uint8_t* place = packed + p * format.panel_bytes(columns) + g * format.group_bytes();
        uint16_t* scales = (uint16_t*)(place + format.code_bytes());
        memset(place, 0, size_t(format.group_bytes()));
        for (int64_t c = 0; c < std::min<int64_t>(PANEL, rows - p * PANEL); c++) {
          const int64_t at = (p * PANEL + c) * groups + g;
          const uint8_t* codes = from.codes + at * bytes;
          scales[c] = from.scales[at];
          if (format.has_offsets) scales[PANEL + c] = from.offsets[at];
          for (int i = 0; i < format.group / step; i++)
            for (int b = 0; b < 4; b++) {
              auto code = [&](int input) { return codes[input / 2] >> input % 2 * 4 & 15; };
              place[(i * PANEL + c) * 4 + b] =
                  format.bits == 8 ? codes[i * 4 + b] : uint8_t(code(i * 8 + b) | code(i * 8 + 4 + b) << 4);
            }
        }
      }
  });
}

// Memory of a thread for products with codes.
struct QuantizedScratch {
  float* result;           // of two panels
  QuantizedChunk* chunks;  // [chunks][up to BLOCK_ROWS rows]

  static int64_t num_chunks(int64_t rows, int64_t columns) {
    return std::min<int64_t>(rows, BLOCK_ROWS) * chunks_of(columns);
  }
  static size_t bytes(int64_t rows, int64_t columns) {
    return Workspace::bytes_for<float>(RESULTS) +
           Workspace::bytes_for<QuantizedChunk>(num_chunks(rows, columns));
  }
  QuantizedScratch(Workspace& memory, int64_t rows, int64_t columns)
      : result(memory.take<float>(RESULTS)),
        chunks(memory.take<QuantizedChunk>(num_chunks(rows, columns))) {}
};

// result [ROWS][PANEL] += ROWS rows times `count` groups of a panel, at most a chunk. If it `fetches`,
// what lies AHEAD bytes later is fetched meanwhile.
template <int BITS, int ROWS>
static void multiply_codes(const QuantizedChunk* rows, const uint8_t* panel, const CodeFormat& format, int count,
                           float* result, bool fresh, bool fetches) {
  constexpr int MIDDLE = 1 << (BITS - 1), STEP = BITS == 8 ? 4 : 8;
  for (int first = 0; first < PANEL; first += STRIPE) {
    vf totals[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++)
        totals[r][v] = fresh ? splat(0.0f) : load(result + r * PANEL + first + v * WIDTH);
    const uint8_t* place = panel;
    const char* coming = (const char*)panel + AHEAD;
    for (int g = 0; g < count; g++, place += format.group_bytes()) {
      vi sums[ROWS][VECTORS];
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[r][v] = splat_int(-MIDDLE * rows[r].totals[g]);
      const uint8_t* line = place + first * 4;
      const int8_t* x = rows->codes + g * format.group;
      for (int k = 0; k < format.group; k += STEP, x += STEP, line += PANEL * 4) {
        if (first == 0 && fetches) {
          prefetch(coming);
          prefetch(coming + 64);
          coming += PANEL * 4;
        }
        vi codes[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) memcpy(codes + v, line + v * WIDTH * 4, sizeof(vi));
#pragma GCC unroll 2
        for (int half = 0; half < STEP / 4; half++) {
          vi four[VECTORS];
#pragma GCC unroll 2
          for (int v = 0; v < VECTORS; v++)
            four[v] = BITS == 8 ? codes[v]
                                : (half ? (vi)(vus(codes[v]) >> 4) : codes[v]) & splat_int(0x0f0f0f0f);
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
      if (first == 0 && fetches)
        for (; coming < (const char*)place + format.group_bytes() + AHEAD; coming += 64) prefetch(coming);
      const uint16_t* scales = (const uint16_t*)(place + format.code_bytes()) + first;
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        const vf scale = load_half(scales + v * WIDTH);
        const vf offset = format.has_offsets ? load_half(scales + PANEL + v * WIDTH) : splat(0.0f);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
          vf sum = __builtin_convertvector(sums[r][v], vf) * scale;
          if (format.has_offsets) sum = sum + splat(float(rows[r].totals[g])) * offset;
          totals[r][v] = totals[r][v] + sum * splat(rows[r].scales[g]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) store(result + r * PANEL + first + v * WIDTH, totals[r][v]);
  }
}

using CodeProduct = void (*)(const QuantizedChunk*, const uint8_t*, const CodeFormat&, int, float*, bool, bool);

template <int BITS>
static CodeProduct code_product(int64_t rows) {
#define CASE(R) \
  case R:       \
    return multiply_codes<BITS, R <= MAX_ROWS ? R : 1>;
  switch (rows) {
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
    CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
  }
#undef CASE
  return nullptr;
}

// result [rows][PANEL]: the rows in `scratch` times a panel.
INLINE void multiply_code_panel(const QuantizedScratch& scratch, int64_t rows, int64_t columns,
                                const QuantizedWeight& weight, int64_t panel, float* result) {
  const CodeFormat& format = weight.format;
  const int64_t height = tile_rows(rows), last = (rows - 1) / height * height;
  auto product = [&](int64_t count) {
    return format.bits == 8 ? code_product<8>(count) : code_product<4>(count);
  };
  const CodeProduct full = product(height), rest = product(rows - last);
  const uint8_t* place = weight.packed + panel * format.panel_bytes(columns);
  const QuantizedChunk* chunks = scratch.chunks;
  for (int64_t k = 0; k < columns; k += CHUNK_INPUTS, chunks += rows) {
    const int count = int(format.groups(std::min<int64_t>(CHUNK_INPUTS, columns - k)));
    for (int64_t r = 0; r < rows; r += height)
      (r < last ? full : rest)(chunks + r, place, format, count, result + r * PANEL, k == 0, r == 0);
    place += count * format.group_bytes();
  }
}

// As `multiply` of `matmul.h`; `p.packed` is not used.
template <typename T>
void multiply(const Team& team, const Product<T>& p, const QuantizedWeight& weight,
              const QuantizedScratch& scratch) {
  const int64_t panels = (p.width + PANEL - 1) / PANEL;
  int64_t held = -1;
  share_panels(team, p.rows, BLOCK_ROWS, panels, 1, [&](int64_t block, int64_t begin, int64_t end, auto&) {
    const int64_t first = block * BLOCK_ROWS, rows = std::min<int64_t>(BLOCK_ROWS, p.rows - first);
    if (block != held)
      quantize_rows(p.x + first * p.x_stride, p.x_stride, rows, p.columns, weight.format.group,
                    weight.format.factor, scratch.chunks);
    held = block;
    for (int64_t panel = begin; panel < end; panel++) {
      multiply_code_panel(scratch, rows, p.columns, weight, panel, scratch.result);
      store_product(p, first, rows, panel, scratch.result);
    }
  });
}

// As `multiply_gated` of `matmul.h`.
template <typename T>
void multiply_gated(const Team& team, const GatedProduct<T>& p, const QuantizedWeight& weight,
                    const QuantizedScratch& scratch) {
  const int64_t half = p.width / PANEL;
  int64_t held = -1;
  share_panels(team, p.rows, BLOCK_ROWS, half, 1, [&](int64_t block, int64_t begin, int64_t end, auto&) {
    const int64_t first = block * BLOCK_ROWS, rows = std::min<int64_t>(BLOCK_ROWS, p.rows - first);
    if (block != held)
      quantize_rows(p.x + first * p.x_stride, p.x_stride, rows, p.columns, weight.format.group,
                    weight.format.factor, scratch.chunks);
    held = block;
    float* values = scratch.result + rows * PANEL;
    for (int64_t panel = begin; panel < end; panel++) {
      multiply_code_panel(scratch, rows, p.columns, weight, panel, scratch.result);
      multiply_code_panel(scratch, rows, p.columns, weight, half + panel, values);
      store_gated(p, first, rows, panel, scratch.result, values);
    }
  });
}
