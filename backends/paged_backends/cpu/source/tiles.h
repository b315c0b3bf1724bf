// Attention of several queries of a sequence: tiles of queries against tiles of keys.
//
// The rows of a tile are queries times the heads of a group. Keys and values are packed into panels
// as a weight is (matmul.h), KEYS at a time, and serve all rows of the tile. Tiles of keys begin at
// multiples of KEYS in the sequence, so that a row's bits do not depend on how a prompt is cut.
#pragma once

#include <type_traits>

#include "decode.h"
#include "matmul.h"

constexpr int KEYS = 128;
constexpr int TALL = WIDTH == 16 ? 8 : 4;  // rows that are computed at once

// What panels hold: pairs of bfloat16 where these are multiplied fast, else floats.
template <typename T>
using Packed = typename std::conditional<PAIR_PRODUCTS && sizeof(T) == 2, T, float>::type;

INLINE int64_t panels_of(int64_t dim) { return (dim + PANEL - 1) / PANEL; }

template <typename T>
struct TileMemory {
  Packed<T>*keys, *values;      // panels: of 32 keys each, of 32 dimensions each
  Packed<T>* queries;           // [rows / TALL][slices][TALL][SLICE], as products take them
  Packed<T>* weights;           // [slices][TALL][SLICE]
  float *scores, *sums;         // [4][TALL][32]; [panels][rows][32]
  float *top, *total;           // [rows]
  int64_t *batch_rows, *positions;  // of each query, at most [rows]
  int64_t query_size;           // numbers of a query

  static size_t bytes(int64_t rows, int64_t dim) {
    int64_t wide = panels_of(dim) * PANEL;
    return Workspace::bytes_for<Packed<T>>(KEYS * (dim + 1)) +
           Workspace::bytes_for<Packed<T>>(KEYS * wide) +
           Workspace::bytes_for<Packed<T>>(rows * slices_of<Packed<T>>(dim) * SLICE<Packed<T>>) +
           Workspace::bytes_for<Packed<T>>(TALL * KEYS) +
           Workspace::bytes_for<float>(KEYS * TALL) + Workspace::bytes_for<float>(rows * wide) +
           2 * Workspace::bytes_for<float>(rows) + 2 * Workspace::bytes_for<int64_t>(rows);
  }
  TileMemory(char* memory, int64_t rows, int64_t dim)
      : query_size(slices_of<Packed<T>>(dim) * SLICE<Packed<T>>) {
    auto take = [&](auto*& place, int64_t count) {
      using Number = typename std::remove_reference<decltype(*place)>::type;
      place = (Number*)memory;
      memory += Workspace::bytes_for<Number>(count);
    };
    int64_t wide = panels_of(dim) * PANEL;
    take(keys, KEYS * (dim + 1));
    take(values, KEYS * wide);
    take(queries, rows * query_size);
    take(weights, TALL * KEYS);
    take(scores, KEYS * TALL);
    take(sums, rows * wide);
    take(top, rows);
    take(total, rows);
    take(batch_rows, rows);
    take(positions, rows);
  }

  // Number `i`, the first of a slice, of query `r`.
  Packed<T>* query_at(int64_t r, int64_t i) const {
    return queries + r / TALL * TALL * query_size + i * TALL + r % TALL * SLICE<Packed<T>>;
  }
};

// Where the weight of key `t` of a row lies, from the row's first.
template <typename P>
INLINE int64_t weight_place(int64_t t) {
  return t / SLICE<P> * SLICE<P> * TALL + t % SLICE<P>;
}

INLINE int64_t rounded_rows(int64_t rows) { return (rows + TALL - 1) / TALL * TALL; }

// ---------------------------------------------------------------- packing

#if defined(__AVX512F__)
// Rows and columns of 16 x 16 numbers of 32 bits change places.
INLINE void transpose(__m512i* rows) {
  __m512i pair[16], quad[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pair[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pair[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      quad[i + 2 * j] = _mm512_unpacklo_epi64(pair[i + j], pair[i + 2 + j]);
      quad[i + 2 * j + 1] = _mm512_unpackhi_epi64(pair[i + j], pair[i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    __m512i low = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0x88);
    __m512i low2 = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0x88);
    __m512i high = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0xdd);
    __m512i high2 = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    rows[4 + j] = _mm512_shuffle_i32x4(high, high2, 0x88);
    rows[12 + j] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
}
#endif

// rows [KEYS] (null: not seen, counts as zero) to panels of 32 keys, and of 32 dimensions.
template <typename T>
INLINE void pack_keys(const T* const* rows, int count, int64_t dim, float* panels) {
#if defined(__AVX512F__)
  for (int first = 0; first < count; first += WIDTH) {
    float* panel = panels + first / PANEL * PANEL * dim + first % PANEL;
    for (int64_t i = 0; i < dim; i += WIDTH) {
      __m512i square[WIDTH];
#pragma GCC unroll 16
      for (int c = 0; c < WIDTH; c++) {
        const T* row = rows[first + c];
        square[c] = row ? (__m512i)load_upto(row + i, dim - i) : _mm512_setzero_si512();
      }
      transpose(square);
      for (int64_t k = 0; k < std::min<int64_t>(WIDTH, dim - i); k++)
        _mm512_storeu_si512(panel + (i + k) * PANEL, square[k]);
    }
  }
#else
  for (int first = 0; first < count; first += PANEL)
    for (int c = 0; c < PANEL; c++) {
      const T* row = rows[first + c];
      float* column = panels + first * dim + c;
      for (int64_t i = 0; i < dim; i++) column[i * PANEL] = row ? to_float(row[i]) : 0.0f;
    }
#endif
}
template <typename T>
INLINE void pack_values(const T* const* rows, int count, int64_t dim, float* panels) {
  for (int64_t first = 0; first < dim; first += PANEL)
    for (int k = 0; k < count; k++) {
      float* line = panels + first * KEYS + k * PANEL;
      for (int64_t i = 0; i < PANEL; i += WIDTH) {
        int64_t left = dim - first - i;
        store(line + i, rows[k] && left > 0 ? load_upto(rows[k] + first + i, left) : splat(0.0f));
      }
    }
}

#if PAIR_PRODUCTS
INLINE void pack_keys(const bf16* const* rows, int count, int64_t dim, bf16* panels) {
  int64_t steps = (dim + 1) / 2;
  for (int first = 0; first < count; first += 16) {
    uint32_t* panel = (uint32_t*)panels + first / PANEL * PANEL * steps + first % PANEL;
    for (int64_t k = 0; k < steps; k += 16) {
      __m512i square[16];
#pragma GCC unroll 16
      for (int c = 0; c < 16; c++)
        square[c] = rows[first + c] ? load_pairs_upto(rows[first + c] + 2 * k, dim - 2 * k)
                                    : _mm512_setzero_si512();
      transpose(square);
      for (int64_t i = 0; i < std::min<int64_t>(16, steps - k); i++)
        _mm512_storeu_si512(panel + (k + i) * PANEL, square[i]);
    }
  }
}
INLINE void pack_values(const bf16* const* rows, int count, int64_t dim, bf16* panels) {
  alignas(64) static const uint16_t order[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                 37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(order);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t first = 0; first < dim; first += PANEL)
    for (int k = 0; k < count; k += 2) {
      bf16* line = panels + first * KEYS + k * PANEL;
      __m512i row[2];
      for (int e = 0; e < 2; e++)
        row[e] = rows[k + e] ? load_pairs_upto(rows[k + e] + first, dim - first)
                             : _mm512_setzero_si512();
      _mm512_storeu_si512(line, _mm512_permutex2var_epi16(row[0], low, row[1]));
      _mm512_storeu_si512(line + 32, _mm512_permutex2var_epi16(row[0], high, row[1]));
    }
}
#endif

// ---------------------------------------------------------------- one tile

// Weights of one row from its scores, [KEYS / 32] panels of which `stride` floats apart; keys before
// `from` and from `to` on are not seen. Returns by how much the row's sums must be scaled.
template <typename T>
INLINE float weigh_row(const Attention<T>& a, const float* scores, int64_t stride, int count,
                       int64_t from, int64_t to, float slope, float distance, Packed<T>* weights,
                       float* top, float* total) {
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
    store(weights + weight_place<Packed<T>>(i * WIDTH), values[i]);
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
                              fresh && k == 0, {panel, 0}, 1);
}

// Rows `first .. first + TALL` of the tile against the packed keys `start .. start + count`, of which
// those from `end` on are none.
template <typename T>
static void attend_rows(const Attention<T>& a, int64_t head, const TileMemory<T>& m, int64_t first,
                        int64_t rows, int64_t all_rows, int64_t start, int count, int64_t end) {
  using P = Packed<T>;
  int64_t group = a.group(), first_position = m.positions[first / group];
  int64_t last_position = m.positions[(std::min(first + TALL, rows) - 1) / group];
  if (last_position < start || a.first_key(first_position) >= start + count) return;
  // the last keys that any of these rows sees, in whole panels
  int seen = int(std::min<int64_t>(count, (last_position - start + PANEL) / PANEL * PANEL));
  int64_t steps = steps_of<P>(a.dim);
  for (int t = 0; t < seen; t += PANEL)
    multiply_slices(m.query_at(first, 0), m.keys + t / PANEL * panel_size<P>(a.dim), steps,
                    m.scores + t * TALL, true);
  for (int64_t r = first; r < first + TALL; r++) {
    P* weights = m.weights + (r - first) * SLICE<P>;
    int64_t at = r < rows ? m.positions[r / group] : -1;
    int64_t from = a.first_key(at) - start, to = std::min(at + 1, end) - start;
    if (to <= 0 || from >= seen) {
      for (int t = 0; t < seen; t += SLICE<P>)
        memset((void*)(weights + weight_place<P>(t)), 0, SLICE<P> * sizeof(P));
      continue;
    }
    float slope = a.slopes ? a.slopes[head * group + r % group] : 0.0f;
    float factor = weigh_row(a, m.scores + (r - first) * PANEL, TALL * PANEL, seen, from, to, slope,
                             float(at - start), weights, m.top + r, m.total + r);
    if (factor != 1.0f)
      for (int64_t p = 0; p < panels_of(a.dim); p++) {
        float* sums = m.sums + (p * all_rows + r) * PANEL;
        for (int c = 0; c < PANEL; c += WIDTH) store(sums + c, load(sums + c) * splat(factor));
      }
  }
  for (int64_t p = 0; p < panels_of(a.dim); p++)
    multiply_slices(m.weights, m.values + p * KEYS * PANEL, steps_of<P>(seen),
                    m.sums + (p * all_rows + first) * PANEL, false);
}

template <typename T>
INLINE void pack_query(const TileMemory<T>& m, int64_t row, const T* head, int64_t dim) {
  using P = Packed<T>;
  for (int64_t i = 0; i < dim; i += SLICE<P>) {
    int64_t count = std::min<int64_t>(SLICE<P>, dim - i);
    P* place = m.query_at(row, i);
    if constexpr (std::is_same<T, P>::value)
      memcpy((void*)place, head + i, size_t(count) * sizeof(T));
    else
      for (int64_t c = 0; c < count; c += WIDTH)
        store_upto(place + c, load_upto(head + i + c, count - c), count - c);
  }
}

template <typename T>
static void attend_tile(const Attention<T>& a, const AttentionCall& call, const Item& item,
                        char* memory) {
  using P = Packed<T>;
  const Share* share = item.partial == SHARED ? call.shares + item.sequence : nullptr;
  const Member* members = share ? call.members + share->members + item.begin : nullptr;
  int64_t group = a.group(), queries = item.end - item.begin, rows = queries * group;
  int64_t all_rows = rounded_rows(rows), s = share ? members[0].sequence : item.sequence;
  TileMemory<T> m(memory, all_rows, a.dim);
  for (int64_t q = 0; q < queries; q++) {
    int64_t own = share ? members[q].sequence : s, place = share ? 0 : item.begin + q;
    m.batch_rows[q] = a.starts[own] + place;
    m.positions[q] = a.lengths[own] - (a.starts[own + 1] - a.starts[own]) + place;
  }
  int64_t begin = share ? share->begin : a.first_key(m.positions[0]);
  int64_t end = share ? share->end : m.positions[queries - 1] + 1;
  memset((void*)m.queries, 0, size_t(all_rows * m.query_size) * sizeof(P));
  for (int64_t r = 0; r < rows; r++)
    pack_query(m, r,
               a.query + m.batch_rows[r / group] * a.query_token +
                   (item.head * group + r % group) * a.query_head,
               a.dim);
  memset(m.sums, 0, size_t(all_rows * panels_of(a.dim) * PANEL) * 4);
  for (int64_t r = 0; r < all_rows; r++) m.top[r] = -INFINITY, m.total[r] = 0;
  for (int64_t start = begin / KEYS * KEYS; start < end; start += KEYS) {
    // what lies outside may be anything: it counts as zero
    const T *keys[KEYS] = {}, *values[KEYS] = {};
    int64_t from = std::max(begin, start), to = std::min<int64_t>(end, start + KEYS);
    find_keys(a, s, item.head, from, to, keys + (from - start));
    for (int64_t k = from - start; k < to - start; k++) values[k] = keys[k] + a.value_offset();
    int count = int((to - start + PANEL - 1) / PANEL * PANEL);
    pack_keys(keys, count, a.dim, m.keys);
    pack_values(values, count, a.dim, m.values);
    for (int64_t first = 0; first < rows; first += TALL)
      attend_rows(a, item.head, m, first, rows, all_rows, start, count, end);
  }
  auto sum_at = [&](int64_t r, int64_t i) {
    return m.sums + (i / PANEL * all_rows + r) * PANEL + i % PANEL;
  };
  for (int64_t r = 0; r < rows; r++) {
    int64_t q = r / group, g = r % group;
    if (share) {
      int64_t place = members[q].partial + item.head * members[q].parts + share->part;
      Partial part = partial_at(call.partials + place * partial_size(group, a.dim), group);
      part.top[g] = m.top[r];
      part.total[g] = m.total[r];
      for (int64_t i = 0; i < a.dim; i += PANEL)
        store_sums<T>(part.sums + g * sums_width(a.dim) + i, sum_at(r, i));
      continue;
    }
    T* out = a.out + m.batch_rows[q] * a.out_token + (item.head * group + g) * a.dim;
    vf factor = splat(1.0f / m.total[r]);
    for (int64_t i = 0; i < a.dim; i += WIDTH)
      store_upto(out + i, load(sum_at(r, i)) * factor, a.dim - i);
  }
}
