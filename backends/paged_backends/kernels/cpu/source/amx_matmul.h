// Products of bfloat16 in tile registers, for any number of rows: one order of additions for all, so that
// a row's bits do not depend on the batch.
//
// Weights are packed as for the other instruction sets (matmul.h): 16 steps of a panel are two adjacent
// tiles, each of a stripe of 16 columns. Activations are read in place, 16 rows at a
// time; the rows after the last whole 16 are copied first, and all rows if the last tile of a row would not be
// full. Four registers hold sums: of 32 rows and two stripes, or of 16 rows and up to four.
//
// A block of sums becomes results between the tile operations of the block that follows, so that the
// vector units and the tile unit work at the same time.
#pragma once

#include "amx_blocks.h"

constexpr int64_t RUN_BYTES = 128 << 10;                // of panels that stay in a core's cache
constexpr int64_t PANEL_STEP = TILE_DEPTH * PANEL * 2;  // bytes of a panel that a step reads

// Consecutive panels of a weight; of a gated product two runs of them, gates and up.
struct Run {
  const char* streams[2];
  int64_t bytes;  // of each
};

// What is prefetched while a block is multiplied: `pace` bytes of every stream in each step, from `first`
// on, and from step `split` on from `then`.
template <int STREAMS>
struct Fetch {
  const char *first[STREAMS] = {}, *then[STREAMS] = {};
  int64_t split = 0, pace = 0;
  bool near = false;  // into the nearest cache

  ALWAYS_INLINE void step(int64_t k) const {
    if (pace == 0) return;
    for (int s = 0; s < STREAMS; s++) {
      const char* place = (k < split ? first[s] : then[s]) + k * pace;
      for (int64_t i = 0; i < pace; i += 64)
        near ? __builtin_prefetch(place + i, 0, 3) : __builtin_prefetch(place + i, 0, 2);
    }
  }
};

// `steps` times `pace` bytes of `run` from `position` on, then of the run that follows it. If there is none,
// the bytes `behind` bytes earlier are prefetched again: they are in a cache already.
template <int STREAMS>
INLINE Fetch<STREAMS> fetch_from(const Run& run, const Run* following, int64_t position, int64_t steps,
                                 int64_t pace, int64_t behind, bool near) {
  Fetch<STREAMS> fetch;
  fetch.split = std::max<int64_t>(0, std::min<int64_t>(steps, (run.bytes - position) / pace));
  fetch.pace = fetch.split || following ? pace : 0;
  fetch.near = near;
  for (int s = 0; s < STREAMS; s++) {
    fetch.first[s] = run.streams[s] + position;
    fetch.then[s] = following ? following->streams[s] + (position - run.bytes) : fetch.first[s] - behind;
  }
  return fetch;
}

// One item of work: `rows` of activations times a run of panels. A block is 32 rows and a panel, or, where
// products are gated, 16 columns of gates and as many of up.
//
// A single block of rows reads the run from memory, and prefetches a little ahead. Several blocks read it
// repeatedly from the core's cache, and prefetch the next run into it.
template <bool GATED, typename Finish, typename Next>
static void multiply_item(const Activations& x, int64_t first_row, int64_t rows, int64_t columns,
                          const Run& run, int64_t first_panel, const Next& next, float* sums,
                          const Finish& finish) {
  constexpr int STREAMS = GATED ? 2 : 1, HALVES = GATED ? 2 : 1;
  const int64_t steps = tile_steps(columns), panel_bytes = steps * PANEL_STEP;
  const int64_t panels = run.bytes / panel_bytes, units = panels * HALVES;
  const int64_t blocks = (rows + TILE_BLOCK - 1) / TILE_BLOCK;
  const int64_t calls = blocks * units, fetch_after = calls / 2;
  const int64_t pace = (run.bytes / 64 / ((calls - fetch_after) * steps) + 1) * 64;
  Pending<Finish> pending(finish);
  Run following{};
  bool known = false;
  auto follows = [&]() -> const Run* {
    if (!known) following = next(), known = true;
    return following.bytes ? &following : nullptr;
  };
  int64_t call = 0;
  for (int64_t first = 0; first < rows; first += TILE_BLOCK) {
    const int64_t count = std::min<int64_t>(TILE_BLOCK, rows - first);
    TileRows groups[2] = {x.at(first), {}};
    if (count > TILE_ROWS) groups[1] = x.at(first + TILE_ROWS);
    for (int64_t unit = 0; unit < units; unit++, call++) {
      const int64_t panel = unit / HALVES, half = unit % HALVES;
      Fetch<STREAMS> fetch;
      if (blocks == 1 && half == 0) {  // all of the panel, also what its other half reads
        constexpr int64_t DISTANCE = AHEAD / STREAMS;
        const int64_t position = panel * panel_bytes + DISTANCE;
        const Run* then = position + panel_bytes > run.bytes ? follows() : nullptr;
        fetch = fetch_from<STREAMS>(run, then, position, steps, PANEL_STEP, DISTANCE, true);
      } else if (blocks > 1 && call >= fetch_after && follows()) {
        const int64_t bytes = steps * pace, position = (call - fetch_after) * bytes;
        fetch = fetch_from<STREAMS>(following, nullptr, position, steps, pace, bytes, false);
      }
      const int64_t place = panel * (panel_bytes / 2);
      const bf16* stripe = (const bf16*)run.streams[0] + place + (GATED ? half * STRIPE_STEP : 0);
      const Stripes stripes{stripe, GATED ? (const bf16*)run.streams[STREAMS - 1] + place + half * STRIPE_STEP
                                          : stripe + STRIPE_STEP};
      float* own = sums + call % 2 * TILE_BLOCK * PANEL;
      if (count > TILE_ROWS)
        multiply_block<2>(groups, stripes, steps, fetch, pending, own);
      else
        multiply_block<1>(groups, stripes, steps, fetch, pending, own);
      pending.put(own, first_row + first, count, (first_panel + panel) * PANEL + half * TILE_COLUMNS);
    }
  }
  pending.take(pending.left());
}

// Distributes `panels` over the team and multiplies: `run_of(begin, end)` returns their addresses.
template <bool GATED, typename RunOf, typename Finish>
INLINE void multiply_in_tiles(const Team& team, const bf16* x, int64_t stride, int64_t rows,
                              int64_t columns, int64_t panels, const RunOf& run_of, const Scratch<bf16>& scratch,
                              const Finish& finish) {
  const int64_t size = rows_of_item(rows, columns), bytes = panels * tile_steps(columns) * PANEL_STEP;
  const int64_t runs = rows > TILE_BLOCK ? bytes * (GATED ? 2 : 1) / RUN_BYTES + 1 : 1;
  Activations activations(scratch.copied, TILE_ROWS);
  int64_t held = -1;
  auto work = [&](int64_t block, int64_t begin, int64_t end, auto& next) {
    const int64_t first = block * size, some = std::min<int64_t>(size, rows - first);
    if (block != held) activations.set(x + first * stride, stride, some, columns);
    held = block;
    auto following = [&] {
      const int64_t panel = next();
      return panel < 0 ? Run{} : run_of(panel, std::min(panels, panel + end - begin));
    };
    multiply_item<GATED>(activations, first, some, columns, run_of(begin, end), begin, following, scratch.sums,
                         finish);
  };
  share_panels(team, rows, size, panels, runs, work);
}

template <>
void multiply(const Team& team, const Product<bf16>& p, const Scratch<bf16>& scratch) {
  const int64_t size = panel_size<bf16>(p.columns), panels = (p.width + PANEL - 1) / PANEL;
  auto run_of = [&](int64_t begin, int64_t end) {
    return Run{{(const char*)(p.packed + begin * size), nullptr}, (end - begin) * size * 2};
  };
  multiply_in_tiles<false>(team, p.x, p.x_stride, p.rows, p.columns, panels, run_of, scratch, storing(p));
}

template <>
void multiply_gated(const Team& team, const GatedProduct<bf16>& p, const Scratch<bf16>& scratch) {
  const int64_t size = panel_size<bf16>(p.columns), panels = p.width / PANEL;
  auto run_of = [&](int64_t begin, int64_t end) {
    const bf16* gates = p.packed + begin * size;
    return Run{{(const char*)gates, (const char*)(gates + panels * size)}, (end - begin) * size * 2};
  };
  auto finish = [p](const float* sums, int64_t row, int64_t column) __attribute__((always_inline)) {
    bf16* out = p.out + row * p.out_stride + column;
    __builtin_prefetch(out + TILE_COLUMNS, 1);
    for (int i = 0; i < TILE_COLUMNS; i += WIDTH) {
      vf gate = load(sums + i), value = load(sums + TILE_COLUMNS + i);
      if (p.bias) {
        gate = gate + load(p.bias + column + i);
        value = value + load(p.bias + p.width + column + i);
      }
      store(out + i, activate(p.activation, gate) * value);
    }
  };
  multiply_in_tiles<true>(team, p.x, p.x_stride, p.rows, p.columns, panels, run_of, scratch, finish);
}
