// Attention of several queries of a sequence: tiles of queries against tiles of keys.
//
// The rows of a tile are queries times the heads of a group. Keys and values are packed into panels
// as a weight is (matmul.h), KEYS at a time, and serve all rows of the tile. Tiles of keys begin at
// multiples of KEYS in the sequence, so that a row's bits do not depend on how a prompt is cut.
#pragma once

#include "decode.h"
#include "vector_tiles.h"
#if AMX
#include "amx_tiles.h"
#endif

template <typename T>
struct TileFor {
  using Kind = VectorTile<T>;
};
#if AMX
template <>
struct TileFor<bf16> {
  using Kind = AmxTile;
};
#endif
template <typename T>
using Tile = typename TileFor<T>::Kind;

// Memory of a tile, and of keys and values that are unpacked before it packs them.
template <typename T>
INLINE size_t tile_bytes(int64_t rows, int64_t dim, bool is_coded) {
  size_t unpacked = is_coded ? Workspace::bytes_for<typename Tile<T>::P>(2 * KEYS * dim) : 0;
  return Tile<T>::bytes(rows, dim) + unpacked;
}

// The keys and values that follow those of a tile: they are fetched while it is computed. They lie in a piece for
// each block, and packing them would wait for each.
template <typename C>
struct Coming {
  const C* keys[KEYS];
  int64_t count = 0, value_offset, bytes;  // bytes of a row

  // Fetches one of `parts` parts into the next cache.
  void fetch(int64_t part, int64_t parts) const {
    for (int64_t k = count * part / parts; k < count * (part + 1) / parts; k++)
      for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const char*)keys[k] + i, 0, 2);
        __builtin_prefetch((const char*)(keys[k] + value_offset) + i, 0, 2);
      }
  }
};

template <typename T, typename C>
static void attend_tile(const Attention<T, C>& a, const AttentionCall& call, const Item& item,
                        char* memory) {
  const Share* share = item.partial == SHARED ? call.shares + item.sequence : nullptr;
  const Member* members = share ? call.members + share->members + item.begin : nullptr;
  int64_t group = a.group(), queries = item.end - item.begin, rows = queries * group;
  int64_t s = share ? members[0].sequence : item.sequence;
  Tile<T> tile(memory, rows, a.dim);
  for (int64_t q = 0; q < queries; q++) {
    int64_t own = share ? members[q].sequence : s, place = share ? 0 : item.begin + q;
    tile.batch_rows[q] = a.starts[own] + place;
    tile.positions[q] = a.lengths[own] - (a.starts[own + 1] - a.starts[own]) + place;
  }
  int64_t begin = share ? share->begin : a.first_key(tile.positions[0]);
  int64_t end = share ? share->end : tile.positions[queries - 1] + 1;
  for (int64_t r = 0; r < rows; r++)
    tile.put_query(r, a.query + tile.batch_rows[r / group] * a.query_token +
                          (item.head * group + r % group) * a.query_head);
  Coming<C> coming;
  coming.value_offset = a.value_offset();
  coming.bytes = row_stride<C>(a.dim) * int64_t(sizeof(C));
  for (int64_t start = begin / KEYS * KEYS; start < end; start += KEYS) {
    // keys outside are masked: they count as zero
    const C *keys[KEYS] = {}, *values[KEYS] = {};
    int64_t from = std::max(begin, start), to = std::min<int64_t>(end, start + KEYS);
    find_keys(a, s, item.head, from, to, keys + (from - start));
    for (int64_t k = from - start; k < to - start; k++) values[k] = keys[k] + a.value_offset();
    int count = int((to - start + PANEL - 1) / PANEL * PANEL);
    if constexpr (IS_CODE<C>) {
      using P = typename Tile<T>::P;
      const P *unpacked_keys[KEYS], *unpacked_values[KEYS];
      P* unpacked = (P*)(memory + Tile<T>::bytes(rows, a.dim));
      unpack_rows(keys, count, a.dim, unpacked, unpacked_keys);
      unpack_rows(values, count, a.dim, unpacked + KEYS * a.dim, unpacked_values);
      tile.put_keys(unpacked_keys, unpacked_values, count);
    } else {
      tile.put_keys(keys, values, count);
    }
    coming.count = std::min<int64_t>(KEYS, end - to);
    if (coming.count > 0) find_keys(a, s, item.head, to, to + coming.count, coming.keys);
    tile.attend(a, item.head, rows, start, count, end, coming);
  }
  for (int64_t r = 0; r < rows; r++) {
    int64_t q = r / group, g = r % group;
    if (share) {
      int64_t place = members[q].partial + item.head * members[q].parts + share->part;
      Partial part = partial_at(call.partials + place * partial_size(group, a.dim), group);
      part.top[g] = tile.top(r);
      part.total[g] = tile.total(r);
      for (int64_t i = 0; i < a.dim; i += PANEL)
        store_sums<C>(part.sums + g * sums_width(a.dim) + i, tile.sums(r, i));
      continue;
    }
    T* out = a.out + tile.batch_rows[q] * a.out_token + (item.head * group + g) * a.dim;
    vf factor = splat(1.0f / with_sink(a, item.head * group + g, tile.top(r), tile.total(r)));
    for (int64_t i = 0; i < a.dim; i += WIDTH)
      store_upto(out + i, load(tile.sums(r, i)) * factor, a.dim - i);
  }
}
