// Products of a few rows with a weight that is packed once.
//
// A packed weight of N rows and K columns is a run of panels, one for 32 rows (zeros fill the last):
//   bfloat16: [N / 32][ceil(K / 2)][32][2], two neighbours in K together
//   float32:  [N / 32][K][32]
// A step is one line of a panel: a pair of neighbours in K, or one. Where pairs cannot be multiplied as
// such, activations become floats first. A row of odd K is followed by one readable zero.
//
// Every result is one chain of additions in the order of K, however many rows, panels and threads
// there are: the bits of a row do not depend on its company.
#pragma once

#include <algorithm>
#include <type_traits>

#include "pointwise.h"
#include "team.h"

constexpr int PANEL = 32;                         // columns of the result
constexpr int VECTORS = 2;                        // of a panel, computed at once
constexpr int STRIPE = VECTORS * WIDTH;           // columns computed at once
constexpr int MAX_ROWS = WIDTH == 16 ? 12 : 4;    // of a tile
constexpr int BLOCK_ROWS = 96;                    // that share one pass over the weight
constexpr int AHEAD = 16384;                      // bytes of the weight fetched ahead
constexpr int STEPS_AT_ONCE = 64;                 // of a panel, held in the nearest cache

template <typename T>
struct Steps {
  static constexpr int NUMBERS = 1;  // of K in a step
};
template <>
struct Steps<bf16> {
  static constexpr int NUMBERS = 2;
};
// What is multiplied with weights of type T.
template <typename T>
using Operand = typename std::conditional<PAIR_PRODUCTS, T, float>::type;

template <typename T>
INLINE int64_t steps_of(int64_t columns) {
  return (columns + Steps<T>::NUMBERS - 1) / Steps<T>::NUMBERS;
}
template <typename T>
INLINE int64_t panel_size(int64_t columns) {
  return steps_of<T>(columns) * PANEL * Steps<T>::NUMBERS;
}

// Numbers from one row of activations to the next, such that rows do not fall on the same lines of a
// cache, and odd rows have their zero.
template <typename T>
INLINE int64_t padded(int64_t columns) {
  int64_t line = 64 / int64_t(sizeof(T));
  int64_t lines = (columns + line - 1) / line;
  return (lines | 1) * line;
}

// Step `k` of a row, 32 bits; zeros where the row has ended.
template <typename T>
INLINE uint32_t step_of(const T* row, int64_t k, int64_t columns) {
  constexpr int N = Steps<T>::NUMBERS;
  uint32_t step = 0;
  if (k * N + N <= columns)
    memcpy(&step, row + k * N, 4);
  else
    memcpy(&step, row + k * N, sizeof(T));
  return step;
}

template <typename T>
static void pack_weight(const T* weight, T* packed, int64_t rows, int64_t columns, int threads) {
  constexpr int LINE = 16;  // steps: a line of the cache from every row in turn
  int64_t panels = (rows + PANEL - 1) / PANEL, steps = steps_of<T>(columns);
  work_together(threads, [&](const Team& team) {
    int64_t begin, end;
    team.share(panels, begin, end);
    for (int64_t p = begin; p < end; p++) {
      uint32_t* panel = (uint32_t*)packed + p * steps * PANEL;
      for (int64_t first = 0; first < steps; first += LINE)
        for (int c = 0; c < PANEL; c++) {
          int64_t row = p * PANEL + c, last = std::min(steps, first + LINE);
          const T* numbers = weight + row * columns;
          for (int64_t k = first; k < last; k++)
            panel[k * PANEL + c] = row < rows ? step_of(numbers, k, columns) : 0;
        }
    }
  });
}

// One step of ROWS rows times COUNT vectors.
template <int ROWS, int COUNT>
INLINE void multiply_step(const float* rows, int64_t stride, const float* line, vf (*sums)[COUNT]) {
  vf weight[COUNT];
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; v++) weight[v] = load(line + v * WIDTH);
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    vf x = splat(rows[r * stride]);
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; v++) sums[r][v] = sums[r][v] + x * weight[v];
  }
}
template <int ROWS, int COUNT>
INLINE void multiply_step(const Operand<bf16>* rows, int64_t stride, const bf16* line,
                          vf (*sums)[COUNT]) {
#if PAIR_PRODUCTS
  __m512i weight[COUNT];
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; v++) weight[v] = load_pairs(line + v * 2 * WIDTH);
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    int32_t pair;
    memcpy(&pair, rows + r * stride, 4);
    __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; v++) sums[r][v] = dot_pairs(sums[r][v], x, weight[v]);
  }
#else
  vf even[COUNT], odd[COUNT];
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; v++) {
    vi both;
    memcpy(&both, line + v * 2 * WIDTH, sizeof both);
    even[v] = (vf)(both << 16);
    odd[v] = (vf)(both & (vi{} - 65536));
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    vf x = splat(rows[r * stride]), y = splat(rows[r * stride + 1]);
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; v++) {
      sums[r][v] = sums[r][v] + x * even[v];
      sums[r][v] = sums[r][v] + y * odd[v];
    }
  }
#endif
}

// result [ROWS][PANEL] of each of PANELS panels, which lie `panel_stride` numbers apart: a product
// over `steps` steps, added to what is there unless FRESH. `ahead` is fetched at `pace` bytes a step.
template <typename T, int ROWS, int PANELS>
static void multiply_tile(const Operand<T>* rows, int64_t stride, const T* panel, int64_t panel_stride,
                          int64_t steps, float* result, int64_t result_stride, bool fresh,
                          const char* ahead, int64_t pace) {
  constexpr int N = Steps<T>::NUMBERS;
  for (int first = 0; first < PANEL; first += STRIPE) {
    vf sums[PANELS][ROWS][VECTORS];
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
          sums[p][r][v] = fresh ? splat(0.0f)
                                : load(result + p * result_stride + r * PANEL + first + v * WIDTH);
    const Operand<T>* x = rows;
    const T* line = panel + first * N;
    for (int64_t k = 0; k < steps; k++) {
      if (first == 0) {
        if (PANELS > 1 || pace == 0) {
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++) {
            const char* next = (const char*)(line + p * panel_stride) + AHEAD / PANELS;
            prefetch(next);
            prefetch(next + 64);
          }
        } else {
          prefetch(ahead);
          ahead += pace;
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++)
        multiply_step<ROWS, VECTORS>(x, stride, line + p * panel_stride, sums[p]);
      x += N;
      line += PANEL * N;
    }
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
          store(result + p * result_stride + r * PANEL + first + v * WIDTH, sums[p][r][v]);
  }
}

template <typename T>
using TileProduct = void (*)(const Operand<T>*, int64_t, const T*, int64_t, int64_t, float*, int64_t, bool,
                             const char*, int64_t);

// Several panels at once keep the multipliers busy where rows are few.
constexpr int panels_at_once(int rows) {
  return rows * 8 <= MAX_ROWS * 2 ? 4 : rows * 4 <= MAX_ROWS * 2 ? 2 : 1;
}

template <typename T, bool MANY>
static TileProduct<T> tile_product(int rows) {
#define CASE(R)  \
  case R:        \
    if constexpr (R <= MAX_ROWS) \
      return multiply_tile<T, R <= MAX_ROWS ? R : 1, MANY ? panels_at_once(R) : 1>; \
    break;
  switch (rows) {
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
    CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
  }
#undef CASE
  return nullptr;
}

// Rows of a tile such that few of them are computed for nothing.
INLINE int tile_rows(int64_t rows) {
  if (rows <= MAX_ROWS) return int(rows);
  int best = MAX_ROWS;
  int64_t least = rows;
  for (int size = MAX_ROWS; size > MAX_ROWS / 2; size--) {
    int64_t spare = (rows + size - 1) / size * size - rows;
    if (spare < least) least = spare, best = size;
  }
  return best;
}

// Floats that the results of one call of `multiply_panels` take.
constexpr int64_t RESULTS = int64_t(BLOCK_ROWS + MAX_ROWS) * PANEL + 4 * MAX_ROWS * PANEL;

// What a thread needs for products.
template <typename T>
struct Room {
  float *result, *gates;
  Operand<T>* rows;  // up to BLOCK_ROWS rows of activations, where they are not read as they lie
  static constexpr bool CONVERTS = !std::is_same<T, Operand<T>>::value;

  static size_t bytes(int64_t rows, int64_t columns) {
    rows = CONVERTS ? std::min<int64_t>(rows, BLOCK_ROWS) : 0;
    return 2 * Workspace::bytes_for<float>(RESULTS) +
           Workspace::bytes_for<Operand<T>>(rows * padded<Operand<T>>(columns + 1));
  }
  Room(Workspace& memory, int64_t rows, int64_t columns)
      : result(memory.take<float>(RESULTS)), gates(memory.take<float>(RESULTS)) {
    rows = CONVERTS ? std::min<int64_t>(rows, BLOCK_ROWS) : 0;
    this->rows = memory.take<Operand<T>>(rows * padded<Operand<T>>(columns + 1));
  }

  // Rows in the form in which they are multiplied; changes `stride` to theirs.
  const Operand<T>* operands(const T* x, int64_t& stride, int64_t count, int64_t columns) const {
    if constexpr (!CONVERTS) {
      return x;
    } else {
      int64_t own = padded<float>(columns + 1);
      for (int64_t r = 0; r < count; r++) {
        float* row = rows + r * own;
        for (int64_t i = 0; i < columns; i += WIDTH)
          store_upto(row + i, load_upto(x + r * stride + i, columns - i), columns - i);
        row[columns] = 0;
      }
      stride = own;
      return rows;
    }
  }
};

// Calls `done(panel, result)` with result [rows][PANEL] for every panel of begin .. end, up to
// BLOCK_ROWS rows.
template <typename T, typename Done>
INLINE void multiply_panels(const Operand<T>* x, int64_t stride, int64_t rows, const T* packed,
                            int64_t columns, int64_t begin, int64_t end, float* result,
                            const Done& done) {
  constexpr int N = Steps<T>::NUMBERS;
  int64_t steps = steps_of<T>(columns), size = panel_size<T>(columns);
  if (rows <= MAX_ROWS) {
    int at_once = panels_at_once(int(rows));
    auto several = tile_product<T, true>(int(rows)), one = tile_product<T, false>(int(rows));
    int64_t p = begin;
    for (; p + at_once <= end; p += at_once) {
      several(x, stride, packed + p * size, size, steps, result, rows * PANEL, true, nullptr, 0);
      for (int i = 0; i < at_once; i++) done(p + i, result + i * rows * PANEL);
    }
    for (; p < end; p++) {
      one(x, stride, packed + p * size, size, steps, result, 0, true, nullptr, 0);
      done(p, result);
    }
    return;
  }
  int height = tile_rows(rows);
  int64_t tiles = (rows + height - 1) / height;
  auto full = tile_product<T, false>(height);
  auto rest = tile_product<T, false>(int(rows - (tiles - 1) * height));
  int64_t pace = PANEL * N * int64_t(sizeof(T)) / tiles;
  for (int64_t p = begin; p < end; p++) {
    for (int64_t k = 0; k < steps; k += STEPS_AT_ONCE) {
      int64_t count = std::min<int64_t>(STEPS_AT_ONCE, steps - k);
      const T* lines = packed + p * size + k * PANEL * N;
      const char* ahead = (const char*)lines + AHEAD;
      for (int64_t t = 0; t < tiles; t++)
        (t + 1 < tiles ? full : rest)(x + t * height * stride + k * N, stride, lines, 0, count,
                                      result + t * height * PANEL, 0, k == 0,
                                      ahead + t * pace * count, pace);
    }
    done(p, result);
  }
}

// One row of a panel's result, with what is added to it, to `columns` places.
template <typename T>
INLINE void store_panel_row(T* out, const float* result, const float* bias, const T* residual,
                            int64_t columns) {
  for (int64_t c = 0; c < std::min<int64_t>(columns, PANEL); c += WIDTH) {
    vf value = load(result + c);
    if (bias) value = value + load_upto(bias + c, columns - c);
    if (residual) value = value + load_upto(residual + c, columns - c);
    store_upto(out + c, value, columns - c);
  }
}

template <typename T>
struct Product {
  const T* x;  // [rows, columns], a row `x_stride` numbers after the other
  int64_t x_stride;
  const T* packed;
  const float* bias;  // [width] or null
  const T* residual;  // [rows, width], rows as those of `out`; null or `out` itself
  T* out;             // [rows, width]
  int64_t out_stride;
  int64_t rows, width, columns;
};

// out = x times the weight, transposed, + bias + residual.
template <typename T>
void multiply(const Team& team, const Product<T>& p, const Room<T>& room) {
  int64_t begin, end;
  team.share((p.width + PANEL - 1) / PANEL, begin, end);
  for (int64_t first = 0; first < p.rows; first += BLOCK_ROWS) {
    int64_t rows = std::min<int64_t>(BLOCK_ROWS, p.rows - first), stride = p.x_stride;
    auto* x = room.operands(p.x + first * stride, stride, rows, p.columns);
    multiply_panels(x, stride, rows, p.packed, p.columns, begin, end, room.result, [&](int64_t panel, const float* values) {
                      int64_t c = panel * PANEL;
                      for (int64_t r = 0; r < rows; r++) {
                        int64_t place = (first + r) * p.out_stride + c;
                        store_panel_row(p.out + place, values + r * PANEL,
                                        p.bias ? p.bias + c : nullptr,
                                        p.residual ? p.residual + place : nullptr, p.width - c);
                      }
                    });
  }
}

template <typename T>
struct GatedProduct {
  const T* x;  // [rows, columns]
  int64_t x_stride;
  const T* packed;    // of gates, then of what they let through: 2 * width rows of weights
  const float* bias;  // [2 * width] or null
  T* out;             // [rows, width]
  int64_t out_stride;
  int64_t rows, width, columns;  // the width is a multiple of PANEL
  int kind;
};

// out = activation(x times the gates) * (x times the rest).
template <typename T>
void multiply_gated(const Team& team, const GatedProduct<T>& p, const Room<T>& room) {
  int64_t half = p.width / PANEL, begin, end;
  team.share(half, begin, end);
  for (int64_t first = 0; first < p.rows; first += BLOCK_ROWS) {
    int64_t rows = std::min<int64_t>(BLOCK_ROWS, p.rows - first);
    int64_t at_once = rows <= MAX_ROWS ? panels_at_once(int(rows)) : 1, size = rows * PANEL;
    int64_t stride = p.x_stride;
    auto* x = room.operands(p.x + first * stride, stride, rows, p.columns);
    float *result = room.result, *gates = room.gates;
    for (int64_t panel = begin; panel < end; panel += at_once) {
      int64_t last = std::min(end, panel + at_once);
      multiply_panels(x, stride, rows, p.packed, p.columns, panel, last, result,
                      [&](int64_t done, const float* values) {
                        memcpy(gates + (done - panel) * size, values, size_t(size) * 4);
                      });
      multiply_panels(x, stride, rows, p.packed, p.columns, half + panel, half + last, result,
                      [&](int64_t done, const float* values) {
                        int64_t c = (done - half) * PANEL;
                        const float* own = gates + (done - half - panel) * size;
                        for (int64_t r = 0; r < rows; r++)
                          for (int i = 0; i < PANEL; i += WIDTH) {
                            vf gate = load(own + r * PANEL + i), value = load(values + r * PANEL + i);
                            if (p.bias) {
                              gate = gate + load(p.bias + c + i);
                              value = value + load(p.bias + p.width + c + i);
                            }
                            store(p.out + (first + r) * p.out_stride + c + i,
                                  activate(p.kind, gate) * value);
                          }
                      });
    }
  }
}
