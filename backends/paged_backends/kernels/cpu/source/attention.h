// The cache, the batch and the work list, common to both kinds of attention.
//
// A layer's cache is [blocks, 2, kv_heads, block_size, row]: keys of a block, then its values; a row is
// described in cache_rows.h.
// A sequence with one token in the batch is read key by key (decode.h), any other in tiles of
// queries and keys (tiles.h). If several of the former begin with the same blocks, as after a common
// prompt, these are read once, in tiles of all their queries; the idea is that of Hydragen (Juravsky et
// al., 2024) and of cascade attention in FlashInfer. Partial results are joined in order. Except for
// common blocks, the partition of a sequence depends on its length alone: its result depends neither
// on other sequences nor on the number of threads.
#pragma once

#include <algorithm>
#include <vector>

#include "amx.h"
#include "cache_rows.h"
#include "team.h"

// What does not depend on the type of numbers.
struct AttentionShape {
  const int32_t* starts;   // [sequences + 1]
  const int32_t* lengths;  // [sequences]
  const int32_t* tables;   // [sequences, table_width]
  const int64_t* slots;    // [tokens]
  int64_t table_width, tokens, heads, kv_heads, dim, block_size;
  int64_t window;  // keys that a query sees, or 0: all
  float scale;
  float soft_cap;       // or 0
  const float* slopes;  // [heads] or null
  const float* sinks;   // [heads] or null

  int64_t group() const { return heads / kv_heads; }
  // the first key that the query at `position` sees
  int64_t first_key(int64_t position) const {
    return window && position >= window ? position - window + 1 : 0;
  }
};

// Of numbers T, over a cache of C: of T too, or of codes.
template <typename T, typename C>
struct Attention : AttentionShape {
  // rows of tokens; strides count numbers, dim is contiguous
  const T *query, *key, *value;  // [tokens, heads or kv_heads, dim]
  T* out;                        // [tokens, heads, dim], a row `out_token` after the other
  int64_t query_token, query_head, key_token, key_head, value_token, value_head, out_token;
  C* cache;

  int64_t value_offset() const { return kv_heads * block_size * row_stride<C>(dim); }
  C* key_at(int64_t block, int64_t head, int64_t offset) const {
    return cache + ((block * 2 * kv_heads + head) * block_size + offset) * row_stride<C>(dim);
  }
};

// Pointers to the keys `begin .. end` of a sequence, for one head; values lie `value_offset` after.
template <typename T, typename C>
INLINE void find_keys(const Attention<T, C>& a, int64_t sequence, int64_t head, int64_t begin,
                      int64_t end, const C** keys) {
  const int32_t* table = a.tables + sequence * a.table_width;
  int64_t block = begin / a.block_size, offset = begin % a.block_size;
  while (begin < end) {
    const C* key = a.key_at(table[block], head, offset);
    int64_t count = std::min(a.block_size - offset, end - begin);
    for (int64_t i = 0; i < count; i++) *keys++ = key + i * row_stride<C>(a.dim);
    begin += count;
    block++;
    offset = 0;
  }
}

INLINE vf score(const AttentionShape& a, vf product, float slope, vf distance) {
  vf result = product * splat(a.scale);
  if (a.soft_cap) result = tanh_of(result / splat(a.soft_cap)) * splat(a.soft_cap);
  if (slope) result = result - splat(slope) * distance;
  return result;
}

// The sum of all weights of a head, of which the greatest score is `top`: with that of its sink, if it has one.
INLINE float with_sink(const AttentionShape& a, int64_t head, float top, float total) {
  return a.sinks ? total + std::exp(a.sinks[head] - top) : total;
}

// One item of work. `partial` is the index of a partial result that is joined later.
struct Item {
  int32_t sequence, head;
  int32_t begin, end;  // keys, of a single query; else queries, counted from the batch's first
  int32_t partial;     // of a part: its index; or one of the following
};
constexpr int WHOLE = -1;   // all of a sequence with a single query
constexpr int TILE = -2;    // queries of one sequence
constexpr int SHARED = -3;  // `sequence` is a share, and `begin .. end` are some of its members

// Keys that several sequences have in common, or a part of them.
struct Share {
  int32_t members;     // the first of them
  int32_t begin, end;  // keys
  int32_t part;        // which of a member's parts this is
};

// A sequence with a single query that begins as others do. The parts of its heads lie one head after
// the other.
struct Member {
  int32_t sequence, partial, parts;
};

// The partial results of one sequence and head.
struct Join {
  int32_t sequence, head, first, count;
};

struct Work {
  std::vector<Item> items;
  std::vector<Join> joins;
  std::vector<Share> shares;
  std::vector<Member> members;
  int64_t partials = 0;
};

// Keys of a part: enough to hide the cost of joining.
INLINE int64_t part_length(int64_t keys) { return keys <= 4096 ? 256 : 512; }

constexpr int64_t MANY_ROWS = AMX ? 512 : 256;  // of a tile: then packing its keys hardly counts
constexpr int64_t FEW_ROWS = 48;

constexpr int64_t FEW_ROWS_SHARED = 16;  // queries of a group's heads for which it pays to share keys
constexpr int64_t FEW_KEYS = 128;        // that are worth it
constexpr int64_t SHARED_PART = 256;     // keys at least, of a part of those in common

// The batch as its plan needs it.
struct Layout {
  const int32_t *starts, *lengths, *tables;
  int64_t sequences, table_width, block_size, heads, kv_heads, window;
  int64_t tiles_from;  // 1: every sequence is computed in tiles; 2: those of several queries
  int threads;

  int32_t queries(int32_t s) const { return starts[s + 1] - starts[s]; }
  bool is_single(int32_t s) const { return queries(s) < tiles_from; }
  const int32_t* table(int32_t s) const { return tables + s * table_width; }
  int64_t group() const { return heads / kv_heads; }
};

struct Family {
  std::vector<int32_t> sequences;
  int64_t keys;
};

// Families of sequences that begin with the same blocks, of those in `some`, which agree on the first
// `agreed` blocks. A block that is not full yet is not shared.
static void find_families(const Layout& l, const std::vector<int32_t>& some, int64_t agreed,
                          std::vector<Family>& found) {
  if (int64_t(some.size()) * l.group() < FEW_ROWS_SHARED) return;
  int64_t common = l.table_width;
  for (int32_t s : some) {
    common = std::min<int64_t>(common, (l.lengths[s] - 1) / l.block_size);
    for (int64_t b = agreed; b < common; b++)
      if (l.table(s)[b] != l.table(some[0])[b]) common = b;
  }
  if (common * l.block_size >= FEW_KEYS) {
    found.push_back({some, common * l.block_size});
    return;
  }
  std::vector<int32_t> rest;
  for (int32_t s : some)
    if ((l.lengths[s] - 1) / l.block_size > common) rest.push_back(s);
  auto differs = [&](int32_t a, int32_t b) { return l.table(a)[common] < l.table(b)[common]; };
  std::stable_sort(rest.begin(), rest.end(), differs);
  for (auto begin = rest.begin(), end = begin; begin != rest.end(); begin = end) {
    end = std::upper_bound(begin, rest.end(), *begin, differs);
    find_families(l, std::vector<int32_t>(begin, end), common + 1, found);
  }
}

// Lists the work on a family's common keys; the other fields of its members are set later.
static void share_keys(const Layout& l, const Family& family, Work& work) {
  int64_t count = int64_t(family.sequences.size()), at_once = std::max<int64_t>(1, MANY_ROWS / l.group());
  int64_t tiles = l.kv_heads * ((count + at_once - 1) / at_once);
  int64_t parts = (3 * l.threads + tiles - 1) / tiles;
  parts = std::max<int64_t>(1, std::min(parts, family.keys / SHARED_PART));
  int64_t length = (family.keys / parts + 127) / 128 * 128;
  parts = (family.keys + length - 1) / length;
  int32_t first = int32_t(work.members.size());
  for (int64_t p = 0; p < parts; p++) {
    int32_t share = int32_t(work.shares.size());
    work.shares.push_back({first, int32_t(p * length),
                           int32_t(std::min(family.keys, (p + 1) * length)), int32_t(p)});
    for (int32_t h = 0; h < l.kv_heads; h++)
      for (int64_t m = 0; m < count; m += at_once)
        work.items.push_back({share, h, int32_t(m), int32_t(std::min(count, m + at_once)), SHARED});
  }
  for (int32_t s : family.sequences) work.members.push_back({s, 0, int32_t(parts)});
}

static void plan_tiles(const Layout& l, Work& work) {
  int64_t group = l.group(), queries_in_tiles = 0;
  for (int32_t s = 0; s < l.sequences; s++)
    if (!l.is_single(s)) queries_in_tiles += l.queries(s);
  // the largest tiles that give every thread some
  int64_t rows = MANY_ROWS;
  while (rows > FEW_ROWS && queries_in_tiles * group * l.kv_heads < 3 * l.threads * rows) rows /= 2;
  int64_t queries = std::max<int64_t>(1, rows / group);
  std::vector<std::pair<int64_t, Item>> tiles;
  for (int32_t s = 0; s < l.sequences; s++) {
    if (l.is_single(s)) continue;
    int32_t count = l.queries(s);
    for (int32_t q = 0; q < count; q += int32_t(queries)) {
      int32_t end = std::min<int32_t>(count, q + int32_t(queries));
      int64_t seen = l.lengths[s] - count + end;
      if (l.window) seen = std::min(seen, l.window + (end - q));
      for (int32_t h = 0; h < l.kv_heads; h++)
        tiles.push_back({seen * (end - q), {s, h, q, end, TILE}});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& tile : tiles) work.items.push_back(tile.second);
}

// Sequence `s`, whose first `shared` keys are computed elsewhere, in so many parts; -> its first part's
// place.
static int32_t plan_single(const Layout& l, int32_t s, int32_t shared, int32_t shared_parts,
                           Work& work) {
  int32_t end = l.lengths[s], place = int32_t(work.partials);
  int32_t begin = l.window && end > l.window ? int32_t(end - l.window) : shared;
  int32_t part = int32_t(part_length(end - begin)), parts = (end - begin + part - 1) / part;
  for (int32_t h = 0; h < l.kv_heads; h++) {
    if (parts + shared_parts == 1) {
      work.items.push_back({s, h, begin, end, WHOLE});
      continue;
    }
    work.joins.push_back({s, h, int32_t(work.partials), parts + shared_parts});
    work.partials += shared_parts;
    for (int32_t p = 0; p < parts; p++)
      work.items.push_back({s, h, begin + p * part, std::min(end, begin + (p + 1) * part),
                            int32_t(work.partials++)});
  }
  return place;
}

static Work plan_work(const Layout& l) {
  Work work;
  std::vector<Family> families;
  if (!l.window) {
    std::vector<int32_t> singles;
    for (int32_t s = 0; s < l.sequences; s++)
      if (l.is_single(s)) singles.push_back(s);
    find_families(l, singles, 0, families);
  }
  std::vector<bool> planned(size_t(l.sequences), false);
  for (const Family& family : families) share_keys(l, family, work);
  plan_tiles(l, work);
  size_t member = 0;
  for (const Family& family : families)
    for (int32_t s : family.sequences) {
      Member& own = work.members[member++];
      int32_t shared_parts = own.parts, joins = int32_t(work.joins.size());
      own.partial = plan_single(l, s, int32_t(family.keys), shared_parts, work);
      own.parts = work.joins[size_t(joins)].count;
      planned[size_t(s)] = true;
    }
  for (int32_t s = 0; s < l.sequences; s++)
    if (l.is_single(s) && !planned[size_t(s)]) plan_single(l, s, 0, 0, work);
  return work;
}

// Writes key and value of one token to their slot.
template <typename T, typename C>
INLINE void write_token(const Attention<T, C>& a, int64_t t) {
  int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size;
  for (int64_t h = 0; h < a.kv_heads; h++) {
    C* place = a.key_at(block, h, offset);
    write_row(place, a.key + t * a.key_token + h * a.key_head, a.dim);
    write_row(place + a.value_offset(), a.value + t * a.value_token + h * a.value_head, a.dim);
  }
}

// Arguments, filled in by Python: `bindings.py` has the same fields.
struct AttentionCall {
  const void *query, *key, *value;
  void *out, *cache;
  int64_t query_token, query_head, key_token, key_head, value_token, value_head, out_token;
  const int32_t *starts, *lengths, *tables;
  const int64_t* slots;
  int64_t table_width, tokens, heads, kv_heads, dim, block_size, window;
  const float *slopes, *sinks;
  const Item* items;
  const Join* joins;
  const Share* shares;
  const Member* members;
  float* partials;
  int64_t num_items, num_joins;
  float scale, soft_cap;
  int32_t type, threads;
  int32_t is_coded, reserved;  // whether the cache is of codes
};

template <typename T, typename C>
INLINE Attention<T, C> view(const AttentionCall& c) {
  return {{c.starts, c.lengths, c.tables, c.slots, c.table_width, c.tokens, c.heads, c.kv_heads, c.dim,
           c.block_size, c.window, c.scale, c.soft_cap, c.slopes, c.sinks},
          (const T*)c.query, (const T*)c.key, (const T*)c.value, (T*)c.out,
          c.query_token, c.query_head, c.key_token, c.key_head, c.value_token, c.value_head,
          c.out_token, (C*)c.cache};
}

// Calls `body` with the view of `c`, which depends on the type of its cache.
template <typename T, typename Body>
INLINE void with_view(const AttentionCall& c, const Body& body) {
  if (c.is_coded)
    body(view<T, CacheCode>(c));
  else
    body(view<T, T>(c));
}

// Bytes of memory that each thread needs for `attend`.
template <typename T>
size_t attention_bytes(const AttentionCall& call);

// Attends, once the whole batch is in the cache: a wait must lie between writing it and this, and
// another before the result is read.
template <typename T, typename C>
void attend(const Team& team, const Attention<T, C>& a, const AttentionCall& call, char* memory);
