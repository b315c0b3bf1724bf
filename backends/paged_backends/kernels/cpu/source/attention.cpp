// Attention over the paged cache: C functions without state.
//
// `type` is 0 for float32 and 1 for bfloat16; strides count numbers; `threads` work on a call.
#include "attention.h"

#include "decode.h"
#include "tiles.h"

template <typename T>
size_t attention_bytes(const AttentionCall& call) {
  int64_t rows = 0, group = call.heads / call.kv_heads;
  for (int64_t i = 0; i < call.num_items && call.items[i].partial <= TILE; i++)
    rows = std::max<int64_t>(rows, (call.items[i].end - call.items[i].begin) * group);
  size_t tiles = rows ? tile_bytes<T>(rows, call.dim, call.is_coded) : 0;
  return std::max(tiles, decode_bytes(group, call.dim));
}

template <typename T, typename C>
void attend(const Team& team, const Attention<T, C>& a, const AttentionCall& call, char* memory) {
  team.open();
  for (int64_t i = team.take(), next; i < call.num_items; i = next) {
    if (call.items[i].partial <= TILE) {
      attend_tile(a, call, call.items[i], memory);
      next = team.take();
    } else {
      next = team.take();  // its keys are fetched meanwhile
      attend_single(a, call.items[i], next < call.num_items ? call.items + next : nullptr,
                    call.partials, memory);
    }
  }
  if (call.num_joins == 0) return;
  team.wait();
  int64_t begin, end;
  team.share(call.num_joins, begin, end);
  for (int64_t i = begin; i < end; i++) join_parts(a, call.joins[i], call.partials);
}

template size_t attention_bytes<float>(const AttentionCall&);
template size_t attention_bytes<bf16>(const AttentionCall&);
template void attend(const Team&, const Attention<float, float>&, const AttentionCall&, char*);
template void attend(const Team&, const Attention<float, CacheCode>&, const AttentionCall&, char*);
template void attend(const Team&, const Attention<bf16, bf16>&, const AttentionCall&, char*);
template void attend(const Team&, const Attention<bf16, CacheCode>&, const AttentionCall&, char*);

// Writes the batch into the cache, then attends.
template <typename T>
static void attend_batch(const AttentionCall& call) {
  size_t bytes = attention_bytes<T>(call);
  work_together(call.threads, [&](const Team& team) {
    TileConfig tiles;
    Workspace memory(bytes);
    with_view<T>(call, [&](const auto& a) {
      team.distribute(a.tokens, [&](int64_t t) { write_token(a, t); });
      team.wait();
      attend(team, a, call, memory.take<char>(int64_t(bytes)));
    });
  });
}

#pragma GCC visibility push(default)
extern "C" {

// Plans the work of layers of one shape. `sizes` receives the numbers of items, joins, shares, members,
// and floats of partial results; a call with null lists only counts.
void paged_core_plan(const int32_t* starts, const int32_t* lengths, const int32_t* tables,
                     int64_t sequences, int64_t table_width, int64_t block_size, int64_t heads,
                     int64_t kv_heads, int64_t dim, int64_t window, int64_t tiles_from, int threads,
                     Item* items, Join* joins, Share* shares, Member* members, int64_t* sizes) {
  Work work = plan_work({starts, lengths, tables, sequences, table_width, block_size, heads, kv_heads,
                         window, tiles_from, threads});
  sizes[0] = int64_t(work.items.size());
  sizes[1] = int64_t(work.joins.size());
  sizes[2] = int64_t(work.shares.size());
  sizes[3] = int64_t(work.members.size());
  sizes[4] = work.partials * partial_size(heads / kv_heads, dim);
  if (!items) return;
  std::copy(work.items.begin(), work.items.end(), items);
  std::copy(work.joins.begin(), work.joins.end(), joins);
  std::copy(work.shares.begin(), work.shares.end(), shares);
  std::copy(work.members.begin(), work.members.end(), members);
}

void paged_core_attend(const AttentionCall* call) {
  if (call->type)
    attend_batch<bf16>(*call);
  else
    attend_batch<float>(*call);
}

}  // extern "C"
#pragma GCC visibility pop
