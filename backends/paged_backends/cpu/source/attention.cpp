// Attention over the paged cache: plain C functions. They keep nothing between calls.
//
// `type` is 0 for float32 and 1 for bfloat16; strides count numbers; `threads` work on a call.
#include "attention.h"

#include "decode.h"
#include "tiles.h"

// Memory of one thread for the attention of one layer.
template <typename T>
static size_t attention_bytes(const Attention<T>& a, const Item* items, int64_t count) {
  int64_t rows = 0;
  for (int64_t i = 0; i < count && items[i].partial == -2; i++)
    rows = std::max<int64_t>(rows, (items[i].end - items[i].begin) * a.group());
  size_t tiles = rows ? TileMemory<T>::bytes(rounded_rows(rows), a.dim) : 0;
  return std::max(tiles, decode_bytes<T>(a.group(), a.dim));
}

// Writes the batch into the cache, then attends.
template <typename T>
static void attend(const Team& team, const Attention<T>& a, const Item* items, int64_t num_items,
                   const Join* joins, int64_t num_joins, float* partials, char* memory) {
  write_cache(team, a);
  team.reset_tickets();
  team.wait();
  for (int64_t i = team.take(); i < num_items; i = team.take()) {
    if (items[i].partial == -2)
      attend_tile(a, items[i], memory);
    else
      attend_single(a, items[i], partials, memory);
  }
  if (num_joins == 0) return;
  team.wait();
  int64_t begin, end;
  team.share(num_joins, begin, end);
  for (int64_t i = begin; i < end; i++) join_parts(a, joins[i], partials);
}

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
static Attention<T> view(const AttentionCall& c) {
  return {(const T*)c.query, (const T*)c.key, (const T*)c.value, (T*)c.out, c.query_token,
          c.query_head,      c.key_token,     c.key_head,        c.value_token, c.value_head,
          c.out_token,       (T*)c.cache,     c.starts,          c.lengths, c.tables,
          c.slots,           c.table_width,   c.tokens,          c.heads,   c.kv_heads,
          c.dim,             c.block_size,    c.window,          c.scale,   c.soft_cap,
          c.slopes};
}

template <typename T>
static void attend_batch(const AttentionCall& c) {
  Attention<T> a = view<T>(c);
  size_t bytes = attention_bytes(a, c.items, c.num_items);
  work_together(c.threads, [&](const Team& team) {
    Workspace memory(bytes);
    attend(team, a, c.items, c.num_items, c.joins, c.num_joins, c.partials,
           memory.take<char>(int64_t(bytes)));
  });
}

extern "C" {

// Plans the work of layers of one shape. `sizes` receives the numbers of items, joins, and floats of
// partial results; a call with null lists only counts.
void paged_core_plan(const int32_t* starts, const int32_t* lengths, int64_t sequences,
                     int64_t heads, int64_t kv_heads, int64_t dim, int64_t window,
                     int64_t tiles_from, int threads, Item* items, Join* joins, int64_t* sizes) {
  Work work =
      plan_work(starts, lengths, sequences, heads, kv_heads, window, tiles_from, threads);
  sizes[0] = int64_t(work.items.size());
  sizes[1] = int64_t(work.joins.size());
  sizes[2] = work.partials * partial_size(heads / kv_heads, dim);
  if (!items) return;
  std::copy(work.items.begin(), work.items.end(), items);
  std::copy(work.joins.begin(), work.joins.end(), joins);
}

void paged_core_attend(const AttentionCall* call) {
  if (call->type)
    attend_batch<bf16>(*call);
  else
    attend_batch<float>(*call);
}

}  // extern "C"
