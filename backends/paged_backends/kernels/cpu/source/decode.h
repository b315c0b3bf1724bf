// Attention of one query per sequence: the cache is read once, key by key, for a group of heads.
//
// The keys are taken CHUNK at a time: scores of all heads of the group, then their weights, then the
// values. Sums are kept relative to the largest score so far (online softmax, Milakov and Gimelshein).
#pragma once

#include "attention.h"
#include "code_sums.h"

// Keys whose scores, weights and values are computed in turn.
template <typename C>
constexpr int CHUNK = IS_CODE<C> ? CODED_CHUNK : 32;
constexpr int AT_ONCE = WIDTH == 16 ? 4 : 2;  // heads of a group, and vectors of a value

// How a query of T is kept beside a cache of C: as it is; beside codes, floats as they are, and numbers of
// fewer bits as words (code_sums.h).
template <typename T, typename C>
using QueryFor =
    typename std::conditional<IS_CODE<C> && std::is_same<T, bf16>::value, int16_t, T>::type;
template <typename Q>
constexpr bool IN_WORDS = std::is_same<Q, int16_t>::value;

// Whether sums of values of C are in another order of dimensions than these (see `write_head`): in that in which
// interleaving two rows of bfloat16 leaves them, or without products of pairs, the even ones before the odd ones.
template <typename C>
constexpr bool REORDERED = std::is_same<C, bf16>::value;
// Whether pairs of C are multiplied.
template <typename C>
constexpr bool IN_PAIRS = PAIR_DOT && std::is_same<C, bf16>::value;

// The next numbers of a value, of which `left` there are, in the order of its sums; behind them, zeros.
template <typename C>
INLINE void load_value(const C* place, int64_t left, vf (&numbers)[1]) {
  numbers[0] = load_upto(place, left);
}
INLINE void load_value(const bf16* place, int64_t left, vf (&numbers)[2]) {
  vi both{};
  if (left >= 2 * WIDTH)
    memcpy(&both, place, sizeof both);
  else
    memcpy(&both, place, size_t(left) * sizeof *place);
  numbers[0] = (vf)(both << 16);
  numbers[1] = (vf)(both & (vi{} - 65536));
}

// State of one group after some of its keys.
struct Partial {
  float* top;   // [group]: the largest score
  float* total; // [group]: of the weights
  float* sums;  // [group, width]
};

INLINE int64_t sums_width(int64_t dim) { return (dim + 31) / 32 * 32; }
// From head to head of a query; a unit of two words is behind it.
template <typename Q>
INLINE int64_t query_width(int64_t dim) {
  return sums_width(dim) + (IN_WORDS<Q> ? 2 : 0);
}
INLINE int64_t partial_size(int64_t group, int64_t dim) { return group * (sums_width(dim) + 2); }
INLINE Partial partial_at(float* place, int64_t group) {
  return {place, place + group, place + 2 * group};
}

INLINE size_t decode_bytes(int64_t group, int64_t dim) {
  return Workspace::bytes_for<float>(group * sums_width(dim)) +  // the query, of any type
         Workspace::bytes_for<float>(group * CODED_CHUNK) +  // scores
         Workspace::bytes_for<float>(partial_size(group, dim));
}

// DIM is the dimension of a head where it is known when this is compiled; MULTIPLE: some multiple of
// 32; ANY: none of these.
constexpr int MULTIPLE = -1, ANY = 0;
constexpr bool is_whole(int dim) { return dim != ANY; }

// scores [HEADS][CHUNK<C>] of `count` keys (to which more pointers than that lead: a multiple of WIDTH).
template <int HEADS, int DIM, typename Q, typename C>
INLINE void score_keys(const Q* query, int64_t query_width, const C* const* keys, int count,
                       int64_t dim_, float* scores, const C* const* next, int next_count) {
  const int64_t dim = DIM > 0 ? DIM : dim_;
  for (int first = 0; first < count; first += WIDTH) {
    vf products[HEADS][WIDTH];
    float scales[WIDTH];
    for (int t = 0; t < WIDTH; t++) {
      const C* key = keys[first + t];
      if (first + t < next_count) fetch_ahead(next[first + t], dim);
      if constexpr (IS_CODE<C>) scales[t] = scale_of(key, dim);
      vf sums[HEADS];
#pragma GCC unroll 4
      for (int h = 0; h < HEADS; h++) sums[h] = splat(0.0f);
#if PAIR_DOT
      if constexpr (IN_PAIRS<C>) {
#pragma GCC unroll 8
        for (int64_t i = 0; i < dim; i += 32) {
          __m512i k = load_pairs_upto(key + i, is_whole(DIM) ? 32 : dim - i);
#pragma GCC unroll 4
          for (int h = 0; h < HEADS; h++)
            sums[h] = dot_pairs(sums[h], k, load_pairs(query + h * query_width + i));
        }
      } else
#endif
      {
#pragma GCC unroll 8
        for (int64_t i = 0; i < dim; i += WIDTH) {
          vf k = load_upto(key + i, is_whole(DIM) ? WIDTH : dim - i);
#pragma GCC unroll 4
          for (int h = 0; h < HEADS; h++)
            sums[h] = sums[h] + k * load(query + h * query_width + i);
        }
      }
#pragma GCC unroll 4
      for (int h = 0; h < HEADS; h++) products[h][t] = sums[h];
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++) {
      vf sums = sums_of(products[h]);
      store(scores + h * CHUNK<C> + first, IS_CODE<C> ? sums * load(scales) : sums);
    }
  }
}

#if PAIR_DOT
// Weights of HEADS heads, of two keys a pair, and the values that they are multiplied by and added to `sums`.
template <int HEADS>
struct PairedValues {
  uint32_t pairs[HEADS][CHUNK<bf16> / 2];
  const bf16* const* keys;
  const bf16* const* next;  // so many of their values are fetched ahead
  int count, next_count;
  int64_t value_offset, width;
  float* sums;  // [HEADS, width]

  void put(const float* weights) {
    for (int h = 0; h < HEADS; h++)
      for (int t = 0; t < count; t += 32)
        _mm512_storeu_si512(pairs[h] + t / 2, pairs_of(load(weights + h * CHUNK<bf16> + t),
                                                       load(weights + h * CHUNK<bf16> + t + 16)));
  }

  // BLOCKS of 32 dimensions from `i` on, of which `left` there are.
  template <int BLOCKS>
  ALWAYS_INLINE void add(int64_t i, int64_t left) const {
    vf low[HEADS][BLOCKS], high[HEADS][BLOCKS];
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 4
      for (int b = 0; b < BLOCKS; b++) {
        low[h][b] = load(sums + h * width + i + 32 * b);
        high[h][b] = load(sums + h * width + i + 32 * b + 16);
      }
    for (int t = 0; t < count; t += 2) {
      // after the last key of an odd count comes a pointer to a key that is not masked
      const bf16 *a = keys[t] + value_offset + i, *c = keys[t + 1] + value_offset + i;
      if (t < next_count) {
        fetch_ahead(next[t] + value_offset + i, 32 * BLOCKS);
        fetch_ahead(next[t + 1] + value_offset + i, 32 * BLOCKS);
      }
#pragma GCC unroll 4
      for (int b = 0; b < BLOCKS; b++) {
        __m512i x = load_pairs_upto(a + 32 * b, left - 32 * b), y = load_pairs_upto(c + 32 * b, left - 32 * b);
        __m512i lower = _mm512_unpacklo_epi16(x, y), upper = _mm512_unpackhi_epi16(x, y);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; h++) {
          __m512i weight = _mm512_set1_epi32(int(pairs[h][t / 2]));
          low[h][b] = dot_pairs(low[h][b], weight, lower);
          high[h][b] = dot_pairs(high[h][b], weight, upper);
        }
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 4
      for (int b = 0; b < BLOCKS; b++) {
        store(sums + h * width + i + 32 * b, low[h][b]);
        store(sums + h * width + i + 32 * b + 16, high[h][b]);
      }
  }

  // All of `dim` dimensions, as many at once as there are registers for.
  ALWAYS_INLINE void add_all(int64_t dim) const {
    int64_t i = 0;
    if constexpr (HEADS <= 2)
      for (; i + 128 <= dim; i += 128) add<4>(i, 128);
    for (; i + 64 <= dim; i += 64) add<2>(i, 64);
    for (; i < dim; i += 32) add<1>(i, dim - i);
  }
};
#endif

// Adds weights [HEADS][CHUNK<C>] times values to sums [HEADS, width]. Values of the `next` keys are fetched ahead.
// The weights may be overwritten.
template <int HEADS, int DIM, typename C>
INLINE void add_values(float* weights, const C* const* keys, int count, int64_t dim_,
                       int64_t value_offset, float* all_sums, int64_t width,
                       const C* const* next, int next_count) {
  const int64_t dim = DIM > 0 ? DIM : dim_;
  if constexpr (IS_CODE<C>) scale_weights<HEADS>(weights, keys, count, dim, value_offset);
#if PAIR_DOT
  if constexpr (IN_PAIRS<C>) {
    PairedValues<HEADS> values{{}, keys, next, count, next_count, value_offset, width, all_sums};
    values.put(weights);
    values.add_all(dim);
    return;
  }
#endif
  constexpr int VECTORS_AT_ONCE = DIM > 0 && DIM % (WIDTH * AT_ONCE) == 0 ? AT_ONCE
                                  : DIM == MULTIPLE || REORDERED<C>        ? 2
                                                                           : 1;
  constexpr int TOGETHER = REORDERED<C> ? 2 : 1;
  for (int64_t i = 0; i < dim; i += WIDTH * VECTORS_AT_ONCE) {
    vf sums[HEADS][VECTORS_AT_ONCE];
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS_AT_ONCE; v++) sums[h][v] = load(all_sums + h * width + i + v * WIDTH);
    for (int t = 0; t < count; t++) {
      const C* value = keys[t] + value_offset + i;
      if (t < next_count) fetch_ahead(next[t] + value_offset + i, VECTORS_AT_ONCE * WIDTH);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS_AT_ONCE; v += TOGETHER) {
        vf x[TOGETHER];
        load_value(value + v * WIDTH, is_whole(DIM) ? TOGETHER * WIDTH : dim - i, x);
#pragma GCC unroll 4
        for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 2
          for (int k = 0; k < TOGETHER; k++)
            sums[h][v + k] = sums[h][v + k] + splat(weights[h * CHUNK<C> + t]) * x[k];
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS_AT_ONCE; v++) store(all_sums + h * width + i + v * WIDTH, sums[h][v]);
  }
}

// Turns scores [LENGTH] of one head into weights, and brings top, total and sums up to date.
template <int LENGTH>
INLINE void weigh(float* scores, int count, float* top, float* total, float* sums, int64_t width) {
  vf highest = splat(-INFINITY);
  for (int t = 0; t < LENGTH; t += WIDTH) {
    if (t + WIDTH > count) {
      int left = count - t;
      for (int i = left < 0 ? 0 : left; i < WIDTH; i++) scores[t + i] = -INFINITY;
    }
    highest = largest(highest, load(scores + t));
  }
  float new_top = largest_of(highest);
  new_top = new_top > *top ? new_top : *top;
  if (new_top != *top) {
    float factor = std::exp(*top - new_top);
    for (int64_t i = 0; i < width; i += WIDTH) store(sums + i, load(sums + i) * splat(factor));
    *total *= factor;
    *top = new_top;
  }
  vf added = splat(0.0f);
  for (int t = 0; t < LENGTH; t += WIDTH) {
    vf weight = exp_of(load(scores + t) - splat(new_top));
    store(scores + t, weight);
    added = added + weight;
  }
  *total += sum_of(added);
}

// Heads `first .. first + HEADS` of the group over one chunk.
template <typename Q, typename C, int HEADS, int DIM>
static void attend_chunk(const AttentionShape& a, const Q* query, int64_t first_head, int64_t begin,
                         int64_t last, int count, const C* const* keys, int64_t values,
                         const C* const* next, int next_count, float* scores, float* top, float* total,
                         float* sums) {
  const int64_t dim = DIM > 0 ? DIM : a.dim, width = sums_width(dim);
  if constexpr (IN_WORDS<Q>)
    score_codes<HEADS, is_whole(DIM)>(query, query_width<Q>(dim), keys, count, dim, scores, next, next_count);
  else
    score_keys<HEADS, DIM>(query, width, keys, count, dim, scores, next, next_count);
  for (int h = 0; h < HEADS; h++) {
    float slope = a.slopes ? a.slopes[first_head + h] : 0.0f;
    for (int t = 0; t < count; t += WIDTH) {
      vf distance = splat(float(last - begin - t)) - steps();
      store(scores + h * CHUNK<C> + t, score(a, load(scores + h * CHUNK<C> + t), slope, distance));
    }
    weigh<CHUNK<C>>(scores + h * CHUNK<C>, count, top + h, total + h, sums + h * width, width);
  }
  if constexpr (IN_WORDS<Q>)
    add_codes<HEADS, DIM % (2 * WORDS) || !DIM ? 1 : 2, is_whole(DIM)>(scores, keys, count, dim, values,
                                                                       sums, width, next, next_count);
  else
    add_values<HEADS, DIM>(scores, keys, count, dim, values, sums, width, next, next_count);
}

// For so many heads, at most AT_ONCE.
template <typename Q, typename C, int DIM>
static auto chunk_function(int64_t heads) {
  switch (heads) {
    case 1: return attend_chunk<Q, C, 1, DIM>;
    case 2: return attend_chunk<Q, C, 2, DIM>;
    case 3: return attend_chunk<Q, C, AT_ONCE < 3 ? AT_ONCE : 3, DIM>;
    default: return attend_chunk<Q, C, AT_ONCE, DIM>;
  }
}

// Stores 32 dimensions in the sums of a part.
template <typename C>
INLINE void store_sums(float* sums, const float* dimensions) {
  if constexpr (REORDERED<C>) {
#if defined(__AVX512F__)
    const __m512i low = PAIR_DOT ? _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
                                 : _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(PAIR_DOT ? 4 : 1));
    __m512 a = (__m512)load(dimensions), b = (__m512)load(dimensions + 16);
    store(sums, (vf)_mm512_permutex2var_ps(a, low, b));
    store(sums + 16, (vf)_mm512_permutex2var_ps(a, high, b));
#else
    for (int first = 0; first < 32; first += 2 * WIDTH)
      for (int i = 0; i < 2 * WIDTH; i++) sums[first + i % 2 * WIDTH + i / 2] = dimensions[first + i];
#endif
    return;
  }
  for (int i = 0; i < 32; i += WIDTH) store(sums + i, load(dimensions + i));
}

// Of sums of values of C.
template <typename C, typename T>
INLINE void write_head(T* out, const float* sums, float total, int64_t dim) {
  float factor = 1.0f / total;
  if constexpr (REORDERED<C>) {
    for (int64_t i = 0; i < dim; i += 2 * WIDTH) {
      vf low = load(sums + i) * splat(factor), high = load(sums + i + WIDTH) * splat(factor);
      if (!PAIR_DOT) alternate(low, high);
      vi first = (vi)low, second = (vi)high;
      in_order(first, second);
      store_upto(out + i, (vf)first, dim - i);
      if (i + WIDTH < dim) store_upto(out + i + WIDTH, (vf)second, dim - i - WIDTH);
    }
    return;
  }
  for (int64_t i = 0; i < dim; i += WIDTH)
    store_upto(out + i, load(sums + i) * splat(factor), dim - i);
}

// Copies a head of `dim` numbers, and fills it up with zeros.
template <typename T>
INLINE void put_query(const T* head, int64_t dim, T* query) {
  int64_t width = sums_width(dim);
  for (int64_t i = 0; i < dim; i += WIDTH) store_upto(query + i, load_upto(head + i, dim - i), dim - i);
  memset((void*)(query + dim), 0, size_t(width - dim) * sizeof *query);
}
INLINE void put_query(const bf16* head, int64_t dim, int16_t* query) {
  put_words(head, dim, query, query_width<int16_t>(dim));
}

template <typename T, typename C, int DIM>
static void attend_item(const Attention<T, C>& a, const Item& item, const Item* next, float* partials,
                        char* memory) {
  int64_t group = a.group(), width = sums_width(a.dim), row = a.starts[item.sequence];
  using Query = QueryFor<T, C>;
  Query* query = (Query*)memory;
  int64_t query_stride = query_width<Query>(a.dim);
  float* scores = (float*)(memory + Workspace::bytes_for<Query>(group * query_stride));
  float* own = scores + Workspace::bytes_for<float>(group * CHUNK<C>) / 4;
  int64_t size = partial_size(group, a.dim);
  Partial state = partial_at(item.partial >= 0 ? partials + item.partial * size : own, group);
  for (int64_t g = 0; g < group; g++) {
    const T* head = a.query + row * a.query_token + (item.head * group + g) * a.query_head;
    put_query(head, a.dim, query + g * query_stride);
    state.top[g] = -INFINITY;
    state.total[g] = 0;
  }
  memset(state.sums, 0, size_t(group * width) * 4);
  // pointers of this chunk and the next; behind the last key lie some more to it
  const C* pointers[2][CHUNK<C> + WIDTH];
  int now = 0;
  auto look_up = [&](int which, int64_t begin) {
    int64_t end = std::min<int64_t>(item.end, begin + CHUNK<C>), count = end - begin;
    if (count <= 0) return 0;
    find_keys(a, item.sequence, item.head, begin, end, pointers[which]);
    for (int64_t t = count; t < CHUNK<C> + WIDTH && t < (count + WIDTH) / WIDTH * WIDTH; t++)
      pointers[which][t] = pointers[which][count - 1];
    return int(count);
  };
  int count = look_up(now, item.begin);
  for (int64_t begin = item.begin; begin < item.end; begin += CHUNK<C>) {
    int coming = look_up(1 - now, begin + CHUNK<C>), ahead = coming;
    if (!coming && next) {
      ahead = int(std::min<int64_t>(CHUNK<C>, next->end - next->begin)) & ~1;
      find_keys(a, next->sequence, next->head, next->begin, next->begin + ahead, pointers[1 - now]);
    }
    for (int64_t g = 0; g < group; g += AT_ONCE) {
      chunk_function<Query, C, DIM>(std::min<int64_t>(AT_ONCE, group - g))(
          a, query + g * query_stride, item.head * group + g, begin, a.lengths[item.sequence] - 1, count,
          pointers[now], a.value_offset(), pointers[1 - now], g == 0 ? ahead : 0, scores + g * CHUNK<C>,
          state.top + g, state.total + g, state.sums + g * width);
    }
    now = 1 - now;
    count = coming;
  }
  if (item.partial >= 0) return;
  for (int64_t g = 0; g < group; g++)
    write_head<C>(a.out + row * a.out_token + (item.head * group + g) * a.dim, state.sums + g * width,
                  with_sink(a, item.head * group + g, state.top[g], state.total[g]), a.dim);
}

// One query and the heads of one group; the first keys of the `next` item, if any, are fetched ahead.
template <typename T, typename C>
INLINE void attend_single(const Attention<T, C>& a, const Item& item, const Item* next,
                          float* partials, char* memory) {
  if (a.dim % 32) {
    attend_item<T, C, ANY>(a, item, next, partials, memory);
    return;
  }
  if constexpr (sizeof(T) == 2) {
    if (a.dim == 64) {
      attend_item<T, C, 64>(a, item, next, partials, memory);
      return;
    }
    if (a.dim == 128) {
      attend_item<T, C, 128>(a, item, next, partials, memory);
      return;
    }
  }
  attend_item<T, C, MULTIPLE>(a, item, next, partials, memory);
}

// Joins the parts of one sequence, first to last.
template <typename T, typename C>
static void join_parts(const Attention<T, C>& a, const Join& join, float* partials) {
  int64_t group = a.group(), width = sums_width(a.dim), size = partial_size(group, a.dim);
  for (int64_t g = 0; g < group; g++) {
    float top = -INFINITY, total = 0;
    for (int p = 0; p < join.count; p++) {
      float other = partial_at(partials + (join.first + p) * size, group).top[g];
      if (other > top) top = other;
    }
    float* sums = partial_at(partials + join.first * size, group).sums + g * width;
    for (int p = 0; p < join.count; p++) {
      Partial part = partial_at(partials + (join.first + p) * size, group);
      float factor = std::exp(part.top[g] - top);
      total += part.total[g] * factor;
      for (int64_t i = 0; i < width; i += WIDTH) {
        vf scaled = load(part.sums + g * width + i) * splat(factor);
        store(sums + i, p ? load(sums + i) + scaled : scaled);
      }
    }
    int64_t row = a.starts[join.sequence];
    write_head<C>(a.out + row * a.out_token + (join.head * group + g) * a.dim, sums,
                  with_sink(a, join.head * group + g, top, total), a.dim);
  }
}
