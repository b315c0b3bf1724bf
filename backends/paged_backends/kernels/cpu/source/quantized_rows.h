// Activations in 8 bits: in every group of inputs a code is a number divided by the group's scale, which is
// the largest magnitude over 127, rounded to the nearest.
//
// A group of a row depends on nothing else, and the dot product of its codes with those of a weight is exact:
// so the bits of a result depend neither on the other rows nor on how they are divided among kernels.
#pragma once

#include "dot_codes.h"
#include "rounded_codes.h"
#include "team.h"

constexpr int CHUNK_INPUTS = 128;  // of a row, in whole groups
constexpr int CHUNK_GROUPS = 8;    // at most

// Part of a row, as products with codes of weights take it.
struct alignas(64) QuantizedChunk {
  int8_t codes[CHUNK_INPUTS];
  float scales[CHUNK_GROUPS];
  int32_t starts[CHUNK_GROUPS];  // of a group's sums: the total of its codes, times less the weights' middle
};

INLINE int64_t chunks_of(int64_t columns) { return (columns + CHUNK_INPUTS - 1) / CHUNK_INPUTS; }

// Writes `group` codes, of which those from `count` on are 0, and their total; returns the scale: NaN if a
// number is not finite.
template <typename T>
INLINE float quantize_group(const T* numbers, int64_t count, int group, int8_t* codes, int32_t* total) {
  const float greatest = greatest_of(numbers, count);
  const vf inverse = splat(greatest > 1e-35f ? 127.0f / greatest : 0.0f);
  vi sums{};
  for (int64_t i = 0; i < group; i += WIDTH) {
    const vi rounded = i < count ? whole(load_upto(numbers + i, count - i) * inverse) : vi{};
    const vc narrow = codes_of(rounded);
    memcpy(codes + i, &narrow, sizeof narrow);
    sums += rounded;
  }
  *total = 0;
  for (int i = 0; i < WIDTH; i++) *total += sums[i];
  return greatest / 127.0f;
}

// Chunks of `rows` rows: [chunks][rows], for weights whose codes are `middle` for zero. `factor` multiplies all
// scales.
template <typename T>
static void quantize_rows(const T* x, int64_t stride, int64_t rows, int64_t columns, int group, int middle,
                          float factor, QuantizedChunk* chunks) {
  for (int64_t first = 0; first < columns; first += CHUNK_INPUTS)
    for (int64_t r = 0; r < rows; r++, chunks++)
      for (int g = 0; g * group < std::min<int64_t>(CHUNK_INPUTS, columns - first); g++) {
        const int64_t place = first + g * group;
        const int64_t count = std::min<int64_t>(group, columns - place);
        int32_t total;
        chunks->scales[g] = factor * quantize_group(x + r * stride + place, count, group,
                                                    chunks->codes + g * group, &total);
        chunks->starts[g] = -middle * total;
      }
}
