// A tile of queries on the vector units. Panels hold pairs of bfloat16 if these multiply fast, else
// floats.
#pragma once

#include "attention.h"
#include "tile_packing.h"

constexpr int TALL = WIDTH == 16 ? 8 : 4;  // rows that are computed at once

template <typename T>
using Packed = typename std::conditional<PAIR_PRODUCTS && sizeof(T) == 2, T, float>::type;

// Where the weight of key `t` of a row lies, from the row's first.
template <typename P>
INLINE int64_t weight_place(int64_t t) {
  return t / SLICE<P> * SLICE<P> * TALL + t % SLICE<P>;
}

// Weights of one row from its scores, [KEYS / 32] panels of which `stride` floats apart; keys before
// `from` and from `to` on are masked. Returns the factor by which the row's sums must be scaled.
template <typename P>
INLINE float weigh_row(const AttentionShape& a, const float* scores, int64_t stride, int count,
                       int64_t from, int64_t to, float slope, float distance, P* weights, float* top,
                       float* total) {
  constexpr int PIECES = KEYS / WIDTH;
  vf values[PIECES];
  vf highest = splat(-INFINITY), lane = steps();
  int pieces = (count + WIDTH - 1) / WIDTH;
  for (int i = 0; i < pieces; i++) {
    int t = i * WIDTH;
    vf value = score(a, load(scores + t / PANEL * stride + t % PANEL), slope,
                     splat(distance - float(t)) - lane);
    if (from > t || to < t + WIDTH) {
      vf place = lane + splat(float(t));
      vi seen = (place >= splat(float(from))) & (place < splat(float(to)));
      value = choose(seen, value, splat(-INFINITY));
    }
    values[i] = value;
    highest = largest(highest, value);
  }
  float new_top = largest_of(highest), factor = 1.0f;
  new_top = new_top > *top ? new_top : *top;
  if (new_top != *top) {
    factor = std::exp(*top - new_top);
    *top = new_top;
  }
  vf added = splat(0.0f);
  for (int i = 0; i < pieces; i++) {
    values[i] = exp_of(values[i] - splat(new_top));
    added = added + values[i];
    store(weights + weight_place<P>(i * WIDTH), values[i]);
  }
  *total = *total * factor + sum_of(added);
  return factor;
}

// The product of TALL rows, slice by slice, with a panel.
template <typename P>
INLINE void multiply_slices(const P* rows, const P* panel, int64_t steps, float* result, bool fresh) {
  for (int64_t k = 0; k < steps; k += SLICE_STEPS)
    multiply_tile<P, TALL, 1>(rows + k / SLICE_STEPS * TALL * SLICE<P>,
                              {panel + k * PANEL * Steps<P>::NUMBERS, 0},
                              std::min<int64_t>(SLICE_STEPS, steps - k), result, TALL,
                              fresh && k == 0, {(const char*)panel, 0, 1});
}

template <typename T>
class VectorTile {
 public:
  using P = Packed<T>;

  int64_t *batch_rows, *positions;  // of each query, at most [rows]

  static size_t bytes(int64_t rows, int64_t dim) { return VectorTile(nullptr, rows, dim).bytes_; }

  VectorTile(char* memory, int64_t rows, int64_t dim)
      : dim_(dim), rows_((rows + TALL - 1) / TALL * TALL), query_size_(slices_of<P>(dim) * SLICE<P>) {
    int64_t wide = panels_of(dim) * PANEL;
    Division division(memory);
    division.take(keys_, KEYS * (dim + 1));
    division.take(values_, KEYS * wide);
    division.take(queries_, rows_ * query_size_);
    division.take(weights_, TALL * KEYS);
    division.take(scores_, KEYS * TALL);
    division.take(sums_, rows_ * wide);
    division.take(top_, rows_);
    division.take(total_, rows_);
    division.take(batch_rows, rows_);
    division.take(positions, rows_);
    bytes_ = division.bytes();
    if (!memory) return;
    memset((void*)queries_, 0, size_t(rows_ * query_size_) * sizeof(P));
    memset(sums_, 0, size_t(rows_ * wide) * 4);
    for (int64_t r = 0; r < rows_; r++) top_[r] = -INFINITY, total_[r] = 0;
  }

  void put_query(int64_t row, const T* head) const {
    for (int64_t i = 0; i < dim_; i += SLICE<P>) {
      int64_t count = std::min<int64_t>(SLICE<P>, dim_ - i);
      P* place = query_at(row, i);
      if constexpr (std::is_same<T, P>::value)
        memcpy((void*)place, head + i, size_t(count) * sizeof(T));
      else
        for (int64_t c = 0; c < count; c += WIDTH)
          store_upto(place + c, load_upto(head + i + c, count - c), count - c);
    }
  }
  // Rows of T, or of P.
  template <typename Row>
  void put_keys(const Row* const* keys, const Row* const* values, int count) const {
    pack_keys(keys, count, dim_, keys_);
    pack_values(values, count, dim_, values_);
  }
  // The first `rows` against the keys `start .. start + count`, of which those from `end` on are none. What is
  // `coming` is fetched.
  template <typename Coming>
  void attend(const AttentionShape& a, int64_t head, int64_t rows, int64_t start, int count, int64_t end,
              const Coming& coming) const {
    const int64_t parts = (rows + TALL - 1) / TALL;
    for (int64_t first = 0; first < rows; first += TALL) {
      coming.fetch(first / TALL, parts);
      attend_rows(a, head, first, rows, start, count, end);
    }
  }

  // Sums of 32 dimensions from `i` on, which are relative to e^top.
  const float* sums(int64_t r, int64_t i) const {
    return sums_ + (i / PANEL * rows_ + r) * PANEL + i % PANEL;
  }
  float top(int64_t r) const { return top_[r]; }
  float total(int64_t r) const { return total_[r]; }

 private:
  // Rows `first .. first + TALL` of the tile against the packed keys `start .. start + count`, of which
  // those from `end` on are none.
  void attend_rows(const AttentionShape& a, int64_t head, int64_t first, int64_t rows, int64_t start,
                   int count, int64_t end) const {
    int64_t group = a.group(), first_position = positions[first / group];
    int64_t last_position = positions[(std::min(first + TALL, rows) - 1) / group];
    if (last_position < start || a.first_key(first_position) >= start + count) return;
    // the last keys that any of these rows sees, in whole panels
    int seen = int(std::min<int64_t>(count, (last_position - start + PANEL) / PANEL * PANEL));
    int64_t steps = steps_of<P>(a.dim);
    for (int t = 0; t < seen; t += PANEL)
      multiply_slices(query_at(first, 0), keys_ + t / PANEL * panel_size<P>(a.dim), steps,
                      scores_ + t * TALL, true);
    for (int64_t r = first; r < first + TALL; r++) {
      P* weights = weights_ + (r - first) * SLICE<P>;
      int64_t at = r < rows ? positions[r / group] : -1;
      int64_t from = a.first_key(at) - start, to = std::min(at + 1, end) - start;
      if (to <= 0 || from >= seen) {
        for (int t = 0; t < seen; t += SLICE<P>)
          memset((void*)(weights + weight_place<P>(t)), 0, SLICE<P> * sizeof(P));
        continue;
      }
      float slope = a.slopes ? a.slopes[head * group + r % group] : 0.0f;
      float factor = weigh_row(a, scores_ + (r - first) * PANEL, TALL * PANEL, seen, from, to, slope,
                               float(at - start), weights, top_ + r, total_ + r);
      if (factor != 1.0f)
        for (int64_t p = 0; p < panels_of(a.dim); p++) {
          float* sums = sums_ + (p * rows_ + r) * PANEL;
          for (int c = 0; c < PANEL; c += WIDTH) store(sums + c, load(sums + c) * splat(factor));
        }
    }
    for (int64_t p = 0; p < panels_of(a.dim); p++)
      multiply_slices(weights_, values_ + p * KEYS * PANEL, steps_of<P>(seen),
                      sums_ + (p * rows_ + first) * PANEL, false);
  }

  // Number `i`, the first of a slice, of query `r`.
  P* query_at(int64_t r, int64_t i) const {
    return queries_ + r / TALL * TALL * query_size_ + i * TALL + r % TALL * SLICE<P>;
  }

  int64_t dim_, rows_, query_size_;  // numbers of a query
  size_t bytes_;
  P *keys_, *values_;     // panels: of 32 keys each, of 32 dimensions each
  P* queries_;            // [rows / TALL][slices][TALL][SLICE], as products take them
  P* weights_;            // [slices][TALL][SLICE]
  float *scores_, *sums_; // [4][TALL][32]; [panels][rows][32]
  float *top_, *total_;   // [rows]
};
