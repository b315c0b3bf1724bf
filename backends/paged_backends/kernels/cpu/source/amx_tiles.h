// A tile of queries in tile registers: bfloat16.
//
// Scores of 32 rows and the keys of a tile are computed, become weights in bfloat16, and these are
// multiplied with the values onto sums in memory. The softmax between the products takes longer than they
// do, so weights are powers of two of scores that are scaled once, to 8e-5 of them, a fiftieth of what they
// lose when they are rounded; and as many rows as a vector has lanes go together, so that what a row has in
// one number is a vector.
#pragma once

#include "amx.h"
#include "attention.h"
#include "tile_packing.h"

constexpr int ROWS_AT_ONCE = 2 * TILE_ROWS;
constexpr float LOG2_E = 1.44269504f;

// The keys of a tile that a row sees, and what its scores depend on besides.
struct RowView {
  int from, to;
  float slope, distance;  // from the tile's first key
};

// Turns scores [WIDTH, KEYS], of which `count` keys, into weights and brings the rows' tops, totals and
// sums [WIDTH, wide] up to date. MASKED: not all rows see all keys; PLAIN: neither soft cap nor slopes.
// No branch depends on the value of a score.
template <bool MASKED, bool PLAIN>
static void weigh_rows(const AttentionShape& a, float* scores, int count, const RowView* views,
                       bf16* weights, float* tops, float* totals, float* sums, int64_t wide) {
  const vf nothing = splat(-INFINITY), lane = steps();
  const vf unit = splat(PLAIN ? a.scale * LOG2_E : LOG2_E);
  vf all[WIDTH];
  for (int r = 0; r < WIDTH; r++) {
    float* row = scores + r * KEYS;
    vf highest[2] = {nothing, nothing};
    for (int t = 0; t < count; t += 2 * WIDTH)
#pragma GCC unroll 2
      for (int i = 0; i < 2; i++) {
        float* place = row + t + i * WIDTH;
        vf value = load(place), key = lane + splat(float(t + i * WIDTH));
        if (!PLAIN) value = score(a, value, views[r].slope, splat(views[r].distance) - key);
        if (MASKED) {
          vi seen = (key >= splat(float(views[r].from))) & (key < splat(float(views[r].to)));
          value = choose(seen, value, nothing);
        }
        if (MASKED || !PLAIN) store(place, value);
        highest[i] = largest(highest[i], value);
      }
    all[r] = largest(highest[0], highest[1]);
  }
  const vf old = load(tops), top = largest(largest_of_rows(all) * unit, old);
  // of a row that has seen nothing yet, any number
  const vf factor = choose(old == top, splat(1.0f), exp2_of(largest(old - top, splat(-126.0f))));
  store(tops, top);
  for (int r = 0; r < WIDTH; r++) {
    const float* row = scores + r * KEYS;
    vf offset = splat(-tops[r]), added[2] = {splat(0.0f), splat(0.0f)};
    for (int t = 0; t < count; t += 2 * WIDTH) {
      vf both[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; i++) {
        vf value = load(row + t + i * WIDTH);
        both[i] = exp2_of(value * unit + offset);
        if (MASKED) both[i] = choose(value == nothing, splat(0.0f), both[i]);
        added[i] = added[i] + both[i];
      }
      store_two(weights + r * KEYS + t, both[0], both[1]);
    }
    all[r] = added[0] + added[1];
  }
  store(totals, load(totals) * factor + sums_of(all));
  if (all_equal(factor, splat(1.0f))) return;
  float factors[WIDTH];
  store(factors, factor);
  for (int r = 0; r < WIDTH; r++)
    for (int64_t i = 0; i < wide; i += WIDTH)
      store(sums + r * wide + i, load(sums + r * wide + i) * splat(factors[r]));
}

// Begins a sum that is to be at `place`: with what is there, or with zero. The sum of the panel before, which
// the register still holds, is stored first: by now it has been computed.
template <int TILE, bool ADDS>
INLINE void begin_sum(float* place, int64_t width, bool is_first) {
  if (!is_first) tile_store<TILE>(place - PANEL, width * 4);
  if (ADDS)
    tile_load<TILE>(place, width * 4);
  else
    tile_zero<TILE>();
}

// sums [GROUPS * 16][count * 32 columns] = or, if it ADDS, += rows [GROUPS * 16][depth] times `count` panels.
template <int GROUPS, bool ADDS>
INLINE void multiply_panels(const bf16* rows, int64_t stride, const bf16* panels, int64_t panel_size, int64_t count,
                            int64_t depth, float* sums, int64_t width) {
  for (int64_t p = 0; p < count; p++, panels += panel_size, sums += PANEL) {
    float* second = sums + TILE_ROWS * width;
    for (int64_t k = 0; k < depth; k += TILE_DEPTH) {
      tile_load<4>(rows + k, stride * 2);
      tile_load<6>(panels + k * PANEL, 128);
      if (k == 0) begin_sum<0, ADDS>(sums, width, p == 0);
      tile_dot<0, 4, 6>();
      tile_load<7>(panels + k * PANEL + 32, 128);
      if (k == 0) begin_sum<1, ADDS>(sums + TILE_COLUMNS, width, p == 0);
      tile_dot<1, 4, 7>();
      if (GROUPS == 2) {
        tile_load<5>(rows + TILE_ROWS * stride + k, stride * 2);
        if (k == 0) begin_sum<2, ADDS>(second, width, p == 0);
        tile_dot<2, 5, 6>();
        if (k == 0) begin_sum<3, ADDS>(second + TILE_COLUMNS, width, p == 0);
        tile_dot<3, 5, 7>();
      }
    }
  }
  sums -= PANEL;
  tile_store<0>(sums, width * 4);
  tile_store<1>(sums + TILE_COLUMNS, width * 4);
  if (GROUPS == 2) {
    float* second = sums + TILE_ROWS * width;
    tile_store<2>(second, width * 4);
    tile_store<3>(second + TILE_COLUMNS, width * 4);
  }
}

class AmxTile {
 public:
  using P = bf16;

  int64_t *batch_rows, *positions;  // of each query, at most [rows]

  static size_t bytes(int64_t rows, int64_t dim) { return AmxTile(nullptr, rows, dim).bytes_; }

  AmxTile(char* memory, int64_t rows, int64_t dim)
      : dim_(dim), wide_(panels_of(dim) * PANEL), rows_((rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS) {
    Division division(memory);
    division.take(keys_, KEYS * wide_);
    division.take(values_, KEYS * wide_);
    division.take(queries_, rows_ * wide_);
    division.take(weights_, ROWS_AT_ONCE * KEYS);
    division.take(scores_, ROWS_AT_ONCE * KEYS);
    division.take(sums_, rows_ * wide_);
    division.take(top_, rows_);
    division.take(total_, rows_);
    division.take(batch_rows, rows_);
    division.take(positions, rows_);
    bytes_ = division.bytes();
    if (!memory) return;
    for (int64_t r = rows; r < rows_; r++) memset((void*)(queries_ + r * wide_), 0, size_t(wide_) * 2);
    memset(sums_, 0, size_t(rows_ * wide_) * 4);
    for (int64_t r = 0; r < rows_; r++) top_[r] = -INFINITY, total_[r] = 0;
  }

  void put_query(int64_t row, const bf16* head) const {
    bf16* place = queries_ + row * wide_;
    memcpy((void*)place, head, size_t(dim_) * 2);
    memset((void*)(place + dim_), 0, size_t(wide_ - dim_) * 2);
  }
  void put_keys(const bf16* const* keys, const bf16* const* values, int count) const {
    pack_keys(keys, count, dim_, keys_);
    pack_values(values, count, dim_, values_);
  }
  // The first `rows` against the keys `start .. start + count`, of which those from `end` on are none. What is
  // `coming` is fetched.
  template <typename Coming>
  void attend(const AttentionShape& a, int64_t head, int64_t rows, int64_t start, int count, int64_t end,
              const Coming& coming) const {
    const int64_t parts = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE) {
      coming.fetch(first / ROWS_AT_ONCE, parts);
      if (rows - first > TILE_ROWS)
        attend_rows<2>(a, head, first, rows, start, count, end);
      else
        attend_rows<1>(a, head, first, rows, start, count, end);
    }
  }

  // Sums of 32 dimensions from `i` on, which are relative to e^top.
  const float* sums(int64_t r, int64_t i) const { return sums_ + r * wide_ + i; }
  float top(int64_t r) const { return top_[r] * 0.69314718f; }
  float total(int64_t r) const { return total_[r]; }

 private:
  // Rows `first ..`, GROUPS times 16 of them.
  template <int GROUPS>
  void attend_rows(const AttentionShape& a, int64_t head, int64_t first, int64_t rows, int64_t start,
                   int count, int64_t end) const {
    int64_t group = a.group(), last = std::min<int64_t>(first + GROUPS * TILE_ROWS, rows);
    int64_t first_position = positions[first / group], last_position = positions[(last - 1) / group];
    if (last_position < start || a.first_key(first_position) >= start + count) return;
    // the last keys that any of these rows sees, in whole panels
    int seen = int(std::min<int64_t>(count, (last_position - start + PANEL) / PANEL * PANEL));
    if (seen == 0) return;
    multiply_panels<GROUPS, false>(queries_ + first * wide_, wide_, keys_, PANEL * wide_, seen / PANEL, wide_, scores_,
                                   KEYS);
    const bool is_plain = !a.soft_cap && !a.slopes;
    const bool sees_all = std::min(first_position + 1, end) >= start + seen && a.first_key(last_position) <= start;
    for (int64_t r = first; r < first + GROUPS * TILE_ROWS; r += WIDTH) {
      RowView views[WIDTH];
      bool masked = false;
      for (int i = 0; i < WIDTH && !(is_plain && sees_all); i++) {
        int64_t row = std::min(r + i, rows - 1), at = positions[row / group];
        int64_t from = std::max<int64_t>(0, a.first_key(at) - start);
        int64_t to = std::max<int64_t>(0, std::min<int64_t>(std::min(at + 1, end) - start, seen));
        views[i] = {int(from), int(to), a.slopes ? a.slopes[head * group + row % group] : 0.0f,
                    float(at - start)};
        masked |= from > 0 || to < seen;
      }
      int64_t place = (r - first) * KEYS;
      auto weigh = !is_plain ? weigh_rows<true, false> : masked ? weigh_rows<true, true> : weigh_rows<false, true>;
      weigh(a, scores_ + place, seen, views, weights_ + place, top_ + r, total_ + r, sums_ + r * wide_,
            wide_);
    }
    multiply_panels<GROUPS, true>(weights_, KEYS, values_, PANEL * KEYS, wide_ / PANEL, seen,
                                  sums_ + first * wide_, wide_);
  }

  int64_t dim_, wide_, rows_;  // wide: the dimension, in whole panels
  size_t bytes_;
  bf16 *keys_, *values_;  // panels: of 32 keys each, of 32 dimensions each
  bf16* queries_;         // [rows, wide]
  bf16* weights_;         // [ROWS_AT_ONCE, KEYS]
  float* scores_;         // [ROWS_AT_ONCE, KEYS]
  float* sums_;           // [rows, wide]
  float *top_, *total_;   // [rows]; tops of powers of two
};
