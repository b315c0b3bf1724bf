// What both kinds of attention share: the cache, the batch, and the list of work.
//
// A layer's cache is [blocks, 2, kv_heads, block_size, dim]: keys of a block, then its values.
// A sequence whose batch has one token of it is read key by key (decode.h), any other in tiles of
// queries and keys (tiles.h). How a sequence is cut into work follows from its own length alone, and
// parts are put together in their order: its result does not depend on other sequences, nor on the
// number of threads.
#pragma once

#include <algorithm>
#include <vector>

#include "team.h"

template <typename T>
struct Attention {
  // rows of tokens; strides count numbers, dim is contiguous
  const T *query, *key, *value;  // [tokens, heads or kv_heads, dim]
  T* out;                        // [tokens, heads, dim], a row `out_token` after the other
  int64_t query_token, query_head, key_token, key_head, value_token, value_head, out_token;
  T* cache;
  const int32_t* starts;   // [sequences + 1]
  const int32_t* lengths;  // [sequences]
  const int32_t* tables;   // [sequences, table_width]
  const int64_t* slots;    // [tokens]
  int64_t table_width, tokens, heads, kv_heads, dim, block_size;
  int64_t window;  // keys that a query sees, or 0: all
  float scale;
  float soft_cap;       // or 0
  const float* slopes;  // [heads] or null

  int64_t group() const { return heads / kv_heads; }
  int64_t value_offset() const { return kv_heads * block_size * dim; }
  T* key_head_at(int64_t block, int64_t head) const {
    return cache + (block * 2 * kv_heads + head) * block_size * dim;
  }
  // the first key that the query at `position` sees
  int64_t first_key(int64_t position) const {
    return window && position >= window ? position - window + 1 : 0;
  }
};

// Pointers to the keys `begin .. end` of a sequence, for one head; values lie `value_offset` after.
template <typename T>
INLINE void find_keys(const Attention<T>& a, int64_t sequence, int64_t head, int64_t begin,
                      int64_t end, const T** keys) {
  const int32_t* table = a.tables + sequence * a.table_width;
  int64_t block = begin / a.block_size, offset = begin % a.block_size;
  while (begin < end) {
    const T* key = a.key_head_at(table[block], head) + offset * a.dim;
    int64_t count = std::min(a.block_size - offset, end - begin);
    for (int64_t i = 0; i < count; i++) *keys++ = key + i * a.dim;
    begin += count;
    block++;
    offset = 0;
  }
}

template <typename T>
INLINE vf score(const Attention<T>& a, vf product, float slope, vf distance) {
  vf result = product * splat(a.scale);
  if (a.soft_cap) result = tanh_of(result / splat(a.soft_cap)) * splat(a.soft_cap);
  if (slope) result = result - splat(slope) * distance;
  return result;
}

// One item of work. `partial` numbers the places where parts of a sequence wait to be put together.
struct Item {
  int32_t sequence, head;
  int32_t begin, end;  // keys, of a single query; else queries, counted from the batch's first
  int32_t partial;     // of a part: its place; -1: all of the sequence; -2: a tile
};

// Where the parts of one sequence and head lie.
struct Join {
  int32_t sequence, head, first, count;
};

struct Work {
  std::vector<Item> items;
  std::vector<Join> joins;
  int64_t partials = 0;
};

// Keys of a part: many enough to hide what putting together costs.
INLINE int64_t part_length(int64_t keys) { return keys <= 4096 ? 256 : 512; }

constexpr int64_t MANY_ROWS = 256;  // of a tile: then packing its keys hardly counts
constexpr int64_t FEW_ROWS = 48;

// `tiles_from`: 1, every sequence is computed in tiles; 2, those of several queries.
static Work plan_work(const int32_t* starts, const int32_t* lengths, int64_t sequences,
                      int64_t heads, int64_t kv_heads, int64_t window, int64_t tiles_from,
                      int threads) {
  Work work;
  int64_t group = heads / kv_heads, queries_in_tiles = 0;
  for (int64_t s = 0; s < sequences; s++) {
    int64_t count = starts[s + 1] - starts[s];
    if (count >= tiles_from) queries_in_tiles += count;
  }
  // tiles are as large as leaves some for every thread
  int64_t rows = MANY_ROWS;
  while (rows > FEW_ROWS && queries_in_tiles * group * kv_heads < 3 * threads * rows) rows /= 2;
  int64_t queries = std::max<int64_t>(1, rows / group);
  std::vector<std::pair<int64_t, Item>> tiles;
  for (int32_t s = 0; s < sequences; s++) {
    int32_t count = starts[s + 1] - starts[s];
    if (count < tiles_from) continue;
    for (int32_t q = 0; q < count; q += int32_t(queries)) {
      int32_t end = std::min(count, q + int32_t(queries));
      int64_t seen = lengths[s] - count + end;
      if (window) seen = std::min(seen, window + (end - q));
      for (int32_t h = 0; h < kv_heads; h++) tiles.push_back({seen * (end - q), {s, h, q, end, -2}});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& tile : tiles) work.items.push_back(tile.second);
  for (int32_t s = 0; s < sequences; s++) {
    int32_t count = starts[s + 1] - starts[s];
    if (count >= tiles_from) continue;
    int32_t end = lengths[s];
    int32_t begin = window && end > window ? int32_t(end - window) : 0;
    int32_t part = int32_t(part_length(end - begin));
    int32_t parts = (end - begin + part - 1) / part;
    for (int32_t h = 0; h < kv_heads; h++) {
      if (parts == 1) {
        work.items.push_back({s, h, begin, end, -1});
        continue;
      }
      work.joins.push_back({s, h, int32_t(work.partials), parts});
      for (int32_t p = 0; p < parts; p++)
        work.items.push_back({s, h, begin + p * part, std::min(end, begin + (p + 1) * part),
                              int32_t(work.partials++)});
    }
  }
  return work;
}

// Key and value of one token go to their slot.
template <typename T>
INLINE void write_token(const Attention<T>& a, int64_t t) {
  size_t bytes = size_t(a.dim) * sizeof(T);
  int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size;
  for (int64_t h = 0; h < a.kv_heads; h++) {
    T* place = a.key_head_at(block, h) + offset * a.dim;
    memcpy((void*)place, a.key + t * a.key_token + h * a.key_head, bytes);
    memcpy((void*)(place + a.value_offset()), a.value + t * a.value_token + h * a.value_head,
           bytes);
  }
}

// What Python fills in; see `library.py`.
struct AttentionCall {
  const void *query, *key, *value;
  void *out, *cache;
  int64_t query_token, query_head, key_token, key_head, value_token, value_head, out_token;
  const int32_t *starts, *lengths, *tables;
  const int64_t* slots;
  int64_t table_width, tokens, heads, kv_heads, dim, block_size, window;
  const float* slopes;
  const Item* items;
  const Join* joins;
  float* partials;
  int64_t num_items, num_joins;
  float scale, soft_cap;
  int32_t type, threads;
};

template <typename T>
INLINE Attention<T> view(const AttentionCall& c) {
  return {(const T*)c.query, (const T*)c.key, (const T*)c.value, (T*)c.out, c.query_token,
          c.query_head,      c.key_token,     c.key_head,        c.value_token, c.value_head,
          c.out_token,       (T*)c.cache,     c.starts,          c.lengths, c.tables,
          c.slots,           c.table_width,   c.tokens,          c.heads,   c.kv_heads,
          c.dim,             c.block_size,    c.window,          c.scale,   c.soft_cap,
          c.slopes};
}

// Bytes of memory that each thread needs for `attend`.
template <typename T>
size_t attention_bytes(const AttentionCall& call);

// Attends, once the whole batch is in the cache: a wait must lie between writing it and this, and
// another before the result is read.
template <typename T>
void attend(const Team& team, const Attention<T>& a, const AttentionCall& call, char* memory);
