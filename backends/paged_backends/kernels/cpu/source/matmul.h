// Products of a few rows with a weight that is packed once.
//
// A packed weight of N rows and K columns is a run of panels, one for 32 rows (zeros fill the last):
//   bfloat16: [N / 32][ceil(K / 2)][32][2], two neighbours in K together
//   float32:  [N / 32][K][32]
// A step is one line of a panel: a pair of neighbours in K, or one. Activations are copied before they
// are multiplied, SLICE numbers of every row after another, so that the distance from row to row is
// known when this is compiled; where pairs cannot be multiplied as such, they become floats then.
//
// Every result is one chain of additions in the order of K, however many rows, panels and threads
// there are: the bits of a row do not depend on the rest of the batch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "amx.h"
#include "pointwise.h"
#include "team.h"

constexpr int PANEL = 32;                         // columns of the result
constexpr int VECTORS = 2;                        // of a panel, computed at once
constexpr int STRIPE = VECTORS * WIDTH;           // columns computed at once
constexpr int STRIPES = PANEL / STRIPE;           // of a panel
constexpr int MAX_ROWS = WIDTH == 16 ? 12 : 4;    // of a tile
constexpr int BLOCK_ROWS = 96;                    // that share one pass over the weight
constexpr int AHEAD = 16384;                      // bytes of the weight fetched ahead
constexpr int SLICE_STEPS = 64;                   // of a panel, held in the nearest cache
constexpr int UNPACK_FROM = 3;                    // tiles of rows for which a slice is unpacked

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

// Numbers of a row in a slice.
template <typename T>
constexpr int SLICE = SLICE_STEPS * Steps<T>::NUMBERS;

template <typename T>
INLINE int64_t slices_of(int64_t columns) {
  return (columns + SLICE<T> - 1) / SLICE<T>;
}
template <typename T>
INLINE int64_t steps_of(int64_t columns) {
  return (columns + Steps<T>::NUMBERS - 1) / Steps<T>::NUMBERS;
}
// Steps that a panel has room for: whole tiles where there are tile registers.
template <typename T>
INLINE int64_t packed_steps(int64_t columns) {
  constexpr int64_t WHOLE_STEPS = AMX && sizeof(T) == 2 ? TILE_DEPTH / 2 : 1;
  return (steps_of<T>(columns) + WHOLE_STEPS - 1) / WHOLE_STEPS * WHOLE_STEPS;
}
template <typename T>
INLINE int64_t panel_size(int64_t columns) {
  return packed_steps<T>(columns) * PANEL * Steps<T>::NUMBERS;
}

// Row stride such that rows do not map to the same lines of a cache.
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
  else if (k * N < columns)
    memcpy(&step, row + k * N, sizeof(T));
  return step;
}

template <typename T>
static void pack_weight(const T* weight, T* packed, int64_t rows, int64_t columns, int threads) {
  constexpr int LINE = 16;  // steps: a line of the cache from every row in turn
  int64_t panels = (rows + PANEL - 1) / PANEL, steps = packed_steps<T>(columns);
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
INLINE void multiply_step(const float* rows, const float* line, vf (*sums)[COUNT]) {
  vf weight[COUNT];
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; v++) weight[v] = load(line + v * WIDTH);
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    vf x = splat(rows[r * SLICE<float>]);
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; v++) sums[r][v] = sums[r][v] + x * weight[v];
  }
}
template <int ROWS, int COUNT>
INLINE void multiply_step(const Operand<bf16>* rows, const bf16* line, vf (*sums)[COUNT]) {
#if PAIR_PRODUCTS
  __m512i weight[COUNT];
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; v++) weight[v] = load_pairs(line + v * 2 * WIDTH);
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    int32_t pair;
    memcpy(&pair, rows + r * SLICE<bf16>, 4);
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
    vf x = splat(rows[r * SLICE<bf16>]), y = splat(rows[r * SLICE<bf16> + 1]);
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; v++) {
      sums[r][v] = sums[r][v] + x * even[v];
      sums[r][v] = sums[r][v] + y * odd[v];
    }
  }
#endif
}

// A slice of a panel of bfloat16 as floats: of every step and stripe, the first of each pair, then the
// second. It serves where many rows are multiplied with it, as its pairs need not be taken apart for each.
struct Unpacked {
  float number;
};
template <>
struct Steps<Unpacked> {
  static constexpr int NUMBERS = 2;
};

INLINE void unpack(const bf16* panel, int64_t steps, Unpacked* slice) {
  for (int64_t first = 0; first < steps * PANEL; first += STRIPE)
    for (int c = 0; c < STRIPE; c += WIDTH) {
      vi both;
      memcpy(&both, panel + 2 * (first + c), sizeof both);
      float* place = (float*)(slice + 2 * first) + c;
      store(place, (vf)(both << 16));
      store(place + STRIPE, (vf)(both & (vi{} - 65536)));
    }
}
template <int ROWS, int COUNT>
INLINE void multiply_step(const float* rows, const Unpacked* line, vf (*sums)[COUNT]) {
  vf even[COUNT], odd[COUNT];
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; v++) {
    even[v] = load((const float*)line + v * WIDTH);
    odd[v] = load((const float*)line + STRIPE + v * WIDTH);
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; r++) {
    vf x = splat(rows[r * SLICE<bf16>]), y = splat(rows[r * SLICE<bf16> + 1]);
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; v++) {
      sums[r][v] = sums[r][v] + x * even[v];
      sums[r][v] = sums[r][v] + y * odd[v];
    }
  }
}

// Panels that lie the same distance apart.
template <typename T>
struct Panels {
  const T* first;
  int64_t stride;
};

// What is prefetched meanwhile: `pace` bytes in each step of as many panels as are multiplied, a line of the
// cache or two.
struct Ahead {
  const char* first;
  int64_t stride, pace;  // bytes
};

// result [PANELS][all rows][PANEL], of which ROWS rows are computed: a product over `steps` steps, at
// most a slice of the rows, added to what is there unless FRESH.
template <typename T, int ROWS, int PANELS>
static void multiply_tile(const Operand<T>* rows, Panels<T> panels, int64_t steps, float* result,
                          int64_t all_rows, bool fresh, Ahead ahead) {
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
                                : load(result + (p * all_rows + r) * PANEL + first + v * WIDTH);
    const Operand<T>* x = rows;
    const T* line = panels.first + first * N;
    const char* coming = ahead.first;
    for (int64_t k = 0; k < steps; k++) {
      if (first == 0) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          prefetch<ROWS <= NEAR_ROWS>(coming + p * ahead.stride);
          if (ahead.pace > 64) prefetch<ROWS <= NEAR_ROWS>(coming + p * ahead.stride + 64);
        }
        coming += ahead.pace;
      }
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++)
        multiply_step<ROWS, VECTORS>(x, line + p * panels.stride, sums[p]);
      x += N;
      line += PANEL * N;
    }
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
          store(result + (p * all_rows + r) * PANEL + first + v * WIDTH, sums[p][r][v]);
  }
}

template <typename T>
using TileProduct = void (*)(const Operand<T>*, Panels<T>, int64_t, float*, int64_t, bool, Ahead);

// Several panels at once keep the multipliers busy where rows are few.
constexpr int panels_at_once(int64_t rows) {
  return rows * 4 <= MAX_ROWS * 2 ? 2 : 1;
}

template <typename T, bool MANY>
static TileProduct<T> tile_product(int64_t rows) {
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

// Rows of a tile such that little padding is computed.
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

// Floats that the results of two panels take.
constexpr int64_t RESULTS = 2 * int64_t(BLOCK_ROWS) * PANEL;

// Copies up to SLICE numbers, and a zero behind an odd number of bfloat16.
template <typename T>
INLINE void put_slice(Operand<T>* place, const T* numbers, int64_t count) {
  if constexpr (std::is_same<T, Operand<T>>::value)
    memcpy((void*)place, numbers, size_t(count) * sizeof(T));
  else
    for (int64_t i = 0; i < count; i += WIDTH)
      store_upto(place + i, load_upto(numbers + i, count - i), count - i);
  if (count % Steps<T>::NUMBERS) from_float(place + count, 0);
}

// Memory of a thread for products.
template <typename T>
struct Scratch {
  float* result;
  Operand<T>* rows;    // [slices][up to BLOCK_ROWS rows][SLICE]
  Unpacked* unpacked;  // a slice of a panel

  static int64_t numbers(int64_t rows, int64_t columns) {
    return std::min<int64_t>(rows, BLOCK_ROWS) * slices_of<T>(columns) * SLICE<T>;
  }
  static size_t bytes(int64_t rows, int64_t columns) {
    return Workspace::bytes_for<float>(RESULTS) +
           Workspace::bytes_for<Operand<T>>(numbers(rows, columns)) +
           Workspace::bytes_for<Unpacked>(SLICE<Unpacked> * PANEL);
  }
  Scratch(Workspace& memory, int64_t rows, int64_t columns)
      : result(memory.take<float>(RESULTS)),
        rows(memory.take<Operand<T>>(numbers(rows, columns))),
        unpacked(memory.take<Unpacked>(SLICE<Unpacked> * PANEL)) {}

  // Copies `count` rows, at most BLOCK_ROWS; the numbers of a last, odd step are followed by zero.
  void put(const T* x, int64_t stride, int64_t count, int64_t columns) const {
    for (int64_t first = 0; first < columns; first += SLICE<T>)
      for (int64_t r = 0; r < count; r++)
        put_slice(rows + first * count + r * SLICE<T>, x + r * stride + first,
                  std::min<int64_t>(SLICE<T>, columns - first));
  }
};

// result [1 or panels_at_once(rows)][rows][PANEL]: the rows that `Scratch::put` has copied, times panels.
// Towards the end those at `next()` are fetched, unless it is null.
template <typename T, typename Next>
INLINE void multiply_panels(const Scratch<T>& scratch, int64_t rows, int64_t columns, Panels<T> panels,
                            int64_t count, const Next& next, float* result) {
  constexpr int N = Steps<T>::NUMBERS, BYTES = int(sizeof(T));
  constexpr bool CAN_UNPACK = sizeof(T) == 2 && !PAIR_PRODUCTS;
  int64_t height = tile_rows(rows), tiles = (rows + height - 1) / height;
  int64_t rest = rows - (tiles - 1) * height, steps = steps_of<T>(columns), size = panel_size<T>(columns);
  int64_t pace = PANEL * N * BYTES / tiles, distance = AHEAD / BYTES / count;
  auto multiply_slice = [&](auto now, int64_t k, int64_t some, Ahead ahead) {
    using Weight = typename std::remove_const<typename std::remove_pointer<decltype(now.first)>::type>::type;
    auto full = count > 1 ? tile_product<Weight, true>(height) : tile_product<Weight, false>(height);
    auto last = tiles == 1 ? full : tile_product<Weight, false>(rest);
    for (int64_t t = 0; t < tiles; t++) {
      (t + 1 < tiles ? full : last)(scratch.rows + (k / SLICE_STEPS * rows + t * height) * SLICE<T>, now, some,
                                    result + t * height * PANEL, rows, k == 0, ahead);
      ahead.first += pace * some;
    }
  };
  for (int64_t k = 0; k < steps; k += SLICE_STEPS) {
    int64_t some = std::min<int64_t>(SLICE_STEPS, steps - k), place = k * PANEL * N + distance;
    Panels<T> now{panels.first + k * PANEL * N, panels.stride};
    Ahead ahead{(const char*)(panels.first + place), panels.stride * BYTES, pace};
    if (place >= size) {
      const T* coming = next();
      ahead.first = (const char*)(coming ? coming + (place - size) : now.first);
    }
    if constexpr (CAN_UNPACK)
      if (tiles >= UNPACK_FROM) {
        unpack(now.first, some, scratch.unpacked);
        multiply_slice(Panels<Unpacked>{scratch.unpacked, 0}, k, some, ahead);
        continue;
      }
    multiply_slice(now, k, some, ahead);
  }
}

constexpr int RUNS = 8;   // of panels, for each thread
constexpr int PIECES = 4;  // of each of the last runs

// Hands out blocks of rows and runs of panels: `work(block, begin, end, next)`, where `next()` is the
// panel with which this thread goes on, or -1. Where a machine is shared, some processors are slower
// than others for a while, and the last runs are cut into pieces, so that all are done at about the same time;
// with few rows, all wait for the same memory, and each has one run.
template <typename Work>
INLINE void share_panels(const Team& team, int64_t rows, int64_t block_rows, int64_t panels,
                         int64_t least_runs, const Work& work) {
  const bool even = team.size == 1 || panels_at_once(rows) > 1;
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const int64_t runs = std::min(panels, std::max<int64_t>(least_runs, team.size * (even ? 1 : RUNS)));
  const int64_t items = blocks * runs, whole = even ? items : std::max<int64_t>(0, items - 2 * team.size);
  const int64_t count = whole + (items - whole) * PIECES;
  struct Piece {
    int64_t block, begin, end;
  };
  auto piece_at = [&](int64_t ticket) -> Piece {
    const bool is_whole = ticket < whole;
    const int64_t item = is_whole ? ticket : whole + (ticket - whole) / PIECES;
    const int64_t first = item % runs * PIECES + (is_whole ? 0 : (ticket - whole) % PIECES);
    const int64_t last = first + (is_whole ? PIECES : 1), all = runs * PIECES;
    return {item / runs, panels * first / all, panels * last / all};
  };
  if (!even) team.open();
  int64_t ticket = team.rank;
  auto take = [&](bool is_first) {
    if (even) {
      ticket += is_first ? 0 : team.size;
      return;
    }
    do ticket = team.take();
    while (ticket < count && piece_at(ticket).begin == piece_at(ticket).end);
  };
  take(true);
  while (ticket < count) {
    const Piece piece = piece_at(ticket);
    bool is_known = false;
    auto next = [&] {
      if (!is_known) take(false);
      is_known = true;
      return ticket < count ? piece_at(ticket).begin : -1;
    };
    work(piece.block, piece.begin, piece.end, next);
    next();
  }
}

template <typename T>
INLINE const T* panel_at(const T* packed, int64_t panel, int64_t size) {
  return panel < 0 ? nullptr : packed + panel * size;
}

// One row of a panel's result, with what is added to it, to `columns` places.
template <typename T>
INLINE void store_panel_row(T* out, const float* result, const float* bias, const T* residual,
                            int64_t columns, int activation) {
  auto value_at = [&](int64_t c) __attribute__((always_inline)) {
    vf value = load(result + c);
    if (bias) value = value + load_upto(bias + c, columns - c);
    if (activation != NONE) value = activate(activation, value);
    if (residual) value = value + load_upto(residual + c, columns - c);
    return value;
  };
  if (columns >= PANEL) {
#pragma GCC unroll 4
    for (int c = 0; c < PANEL; c += 2 * WIDTH) store_two(out + c, value_at(c), value_at(c + WIDTH));
    return;
  }
  for (int64_t c = 0; c < columns; c += WIDTH) store_upto(out + c, value_at(c), columns - c);
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
  int activation = NONE;  // of the sum, before a residual is added
};

template <typename T>
struct GatedProduct {
  const T* x;  // [rows, columns]
  int64_t x_stride;
  const T* packed;    // of gates, then of up: 2 * width rows of weights
  const float* bias;  // [2 * width] or null
  T* out;             // [rows, width]
  int64_t out_stride;
  int64_t rows, width, columns;  // the width is a multiple of PANEL
  int activation;
};

// Stores `rows` rows of one panel's result [rows][PANEL]; the first is row `first` of the product.
template <typename T>
INLINE void store_product(const Product<T>& p, int64_t first, int64_t rows, int64_t panel, const float* result) {
  const int64_t c = panel * PANEL;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t place = (first + r) * p.out_stride + c;
    store_panel_row(p.out + place, result + r * PANEL, p.bias ? p.bias + c : nullptr,
                    p.residual ? p.residual + place : nullptr, p.width - c, p.activation);
  }
}

// The same of the result of a panel of gates, and of the other that belongs to it.
template <typename T>
INLINE void store_gated(const GatedProduct<T>& p, int64_t first, int64_t rows, int64_t panel, const float* gates,
                        const float* values) {
  const int64_t c = panel * PANEL;
  for (int64_t r = 0; r < rows; r++)
    for (int i = 0; i < PANEL; i += WIDTH) {
      vf gate = load(gates + r * PANEL + i), value = load(values + r * PANEL + i);
      if (p.bias) {
        gate = gate + load(p.bias + c + i);
        value = value + load(p.bias + p.width + c + i);
      }
      store(p.out + (first + r) * p.out_stride + c + i, activate(p.activation, gate) * value);
    }
}

// out = activation(x times the weight, transposed, + bias) + residual.
template <typename T>
void multiply(const Team& team, const Product<T>& p, const Scratch<T>& scratch) {
  int64_t size = panel_size<T>(p.columns), panels = (p.width + PANEL - 1) / PANEL, held = -1;
  share_panels(team, p.rows, BLOCK_ROWS, panels, 1, [&](int64_t block, int64_t begin, int64_t end, auto& next) {
    int64_t first = block * BLOCK_ROWS, rows = std::min<int64_t>(BLOCK_ROWS, p.rows - first);
    if (block != held) scratch.put(p.x + first * p.x_stride, p.x_stride, rows, p.columns);
    held = block;
    int64_t count = panels_at_once(rows);
    for (int64_t panel = begin; panel < end; panel += count) {
      if (panel + count > end) count = 1;
      auto coming = [&] { return panel_at(p.packed, panel + count < end ? panel + count : next(), size); };
      multiply_panels<T>(scratch, rows, p.columns, {p.packed + panel * size, size}, count, coming,
                         scratch.result);
      for (int64_t i = 0; i < count; i++)
        store_product(p, first, rows, panel + i, scratch.result + i * rows * PANEL);
    }
  });
}

// out = activation(x times the gates) * (x times the rest).
template <typename T>
void multiply_gated(const Team& team, const GatedProduct<T>& p, const Scratch<T>& scratch) {
  int64_t size = panel_size<T>(p.columns), half = p.width / PANEL, held = -1;
  share_panels(team, p.rows, BLOCK_ROWS, half, 1, [&](int64_t block, int64_t begin, int64_t end, auto& next) {
    int64_t first = block * BLOCK_ROWS, rows = std::min<int64_t>(BLOCK_ROWS, p.rows - first);
    if (block != held) scratch.put(p.x + first * p.x_stride, p.x_stride, rows, p.columns);
    held = block;
    for (int64_t panel = begin; panel < end; panel++) {
      const T *gates = p.packed + panel * size, *values = gates + half * size;
      auto coming = [&] { return panel_at(p.packed, panel + 1 < end ? panel + 1 : next(), size); };
      float* result = scratch.result + rows * PANEL;
      if (panels_at_once(rows) > 1) {
        multiply_panels<T>(scratch, rows, p.columns, {gates, half * size}, 2, coming, scratch.result);
      } else {
        multiply_panels<T>(scratch, rows, p.columns, {gates, 0}, 1, [&] { return values; },
                           scratch.result);
        multiply_panels<T>(scratch, rows, p.columns, {values, 0}, 1, coming, result);
      }
      store_gated(p, first, rows, panel, scratch.result, result);
    }
  });
}

#if AMX
#include "amx_scratch.h"
#endif
