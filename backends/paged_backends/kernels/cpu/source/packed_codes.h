// Weights in 8 or 4 bits, in groups of inputs that share a scale, and perhaps an offset: a weight is
// (code - middle) * scale + offset.
//
// A packed weight is a run of panels, one for 32 rows, as other weights are (matmul.h). A panel is a run of
// groups, and a group
//   [steps][32][4 bytes]: a step is four inputs with 8 bits; with 4 bits four in the lower halves, and the
//                         four that follow in the upper halves
//   [32] scales, [32] offsets if there are any: float16, times a factor of the whole weight
// Codes that fill the last group are multiplied by activations of zero.
#pragma once

#include "matmul.h"
#include "quantized_rows.h"

// How the codes of a weight are stored.
struct CodeFormat {
  int32_t bits, group;  // 8 or 4; 16, 32, 64 or 128 inputs
  int32_t has_offsets;
  int32_t is_widened;  // multiplied with bfloat16 as bfloat16 (widened_codes.h), not in integers
  float factor;        // of all scales and offsets

  int64_t groups(int64_t columns) const { return (columns + group - 1) / group; }
  int middle() const { return 1 << (bits - 1); }
  int64_t code_bytes() const { return int64_t(PANEL) * group * bits / 8; }  // of a group of a panel
  int64_t group_bytes() const { return code_bytes() + PANEL * (has_offsets ? 4 : 2); }
  int64_t panel_bytes(int64_t columns) const { return groups(columns) * group_bytes(); }
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

// Four codes of 4 bits, one after another, to the lower halves of four bytes.
INLINE uint32_t to_lower_halves(uint32_t four) {
  four = (four | four << 8) & 0x00ff00ff;
  return (four | four << 4) & 0x0f0f0f0f;
}

// Codes of one group of a row to one column of a panel's group.
template <int BITS>
INLINE void pack_column(const uint8_t* codes, int group, uint32_t* column) {
  for (int i = 0; i < group * BITS / 32; i++, codes += 4) {
    uint32_t four;
    memcpy(&four, codes, 4);
    column[i * PANEL] = BITS == 8 ? four : to_lower_halves(four & 0xffff) | to_lower_halves(four >> 16) << 4;
  }
}

static void pack_codes(const CodesToPack& from, const CodeFormat& format, uint8_t* packed, int64_t rows,
                       int64_t columns, int threads) {
  const int64_t groups = format.groups(columns), bytes = format.group * format.bits / 8;
  auto pack_group = [&](uint8_t* place, int64_t first, int64_t group) {
    const int64_t count = std::min<int64_t>(PANEL, rows - first);
    uint16_t* scales = (uint16_t*)(place + format.code_bytes());
    if (count < PANEL) memset(place, 0, size_t(format.group_bytes()));
    for (int64_t c = 0; c < count; c++) {
      const int64_t at = (first + c) * groups + group;
      uint32_t* column = (uint32_t*)place + c;
      if (format.bits == 8)
        pack_column<8>(from.codes + at * bytes, format.group, column);
      else
        pack_column<4>(from.codes + at * bytes, format.group, column);
      scales[c] = from.scales[at];
      if (format.has_offsets) scales[PANEL + c] = from.offsets[at];
    }
  };
  work_together(threads, [&](const Team& team) {
    int64_t begin, end;
    team.share((rows + PANEL - 1) / PANEL, begin, end);
    for (int64_t p = begin; p < end; p++)
      for (int64_t g = 0; g < groups; g++)
        pack_group(packed + p * format.panel_bytes(columns) + g * format.group_bytes(), p * PANEL, g);
  });
}

// Scales and offsets of WIDTH columns of a group.
struct GroupScales {
  vf scale, offset;
  bool has_offset;
  float total_per_start;

  // of the columns from `first` on of the group at `place`
  GroupScales(const CodeFormat& format, const uint8_t* place, int first)
      : has_offset(format.has_offsets), total_per_start(-1.0f / float(format.middle())) {
    const uint16_t* scales = (const uint16_t*)(place + format.code_bytes()) + first;
    scale = load_half(scales);
    offset = has_offset ? load_half(scales + PANEL) : splat(0.0f);
  }
  // total + the group's part of a row's results, of which `sum` are the dot products
  ALWAYS_INLINE vf add(vf total, vi sum, const QuantizedChunk& row, int group) const {
    vf part = __builtin_convertvector(sum, vf) * scale;
    if (has_offset) part = multiply_add(splat(float(row.starts[group]) * total_per_start), offset, part);
    return multiply_add(part, splat(row.scales[group]), total);
  }
};
