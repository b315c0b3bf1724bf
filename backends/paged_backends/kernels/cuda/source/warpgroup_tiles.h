// Attention of several new tokens as in tiles.h, by products of warpgroups (sm_90a;
// FlashAttention-3; Shah et al., 2024).
//
// Two warpgroups have 64 rows each. Queries, keys and values lie in shared memory as products of
// warpgroups read them; weights stay in registers. There are two places for keys and for values:
// the next come while the present ones are used. Threads copy them, not TMA: a block of the cache
// may have any number of tokens, and what TMA copies is at most a block, of multiples of eight.
#pragma once

#include "tile_rows.h"
#include "warpgroup.h"

/// Rows in shared memory, their pieces where products of warpgroups look for them.
template <class T, int kCount, int kDim>
struct SwizzledRows {
  static constexpr int kPanel = kCount * 128;  // bytes of 64 columns
  alignas(1024) unsigned char at[kDim / 64 * kPanel];

  __device__ __forceinline__ T* piece(int row, int dim) {
    return reinterpret_cast<T*>(at + swizzled(kCount, row, dim));
  }
};

template <class T, class Stored, int kDim>
class WarpgroupTiles : TileRows<T, Stored, kDim, 8, 1, 64> {
  using Base = TileRows<T, Stored, kDim, 8, 1, 64>;
  friend Base;
  static_assert(kDim % 64 == 0 && kDim <= 128 && !kIsFloat8<Stored>, "no product has this shape");
  static constexpr int kKeys = 64;

 public:
  using Base::kRows, Base::kThreads;
  struct Shared {
    SwizzledRows<T, kRows, kDim> queries;
    KeyTile<T, Stored, SwizzledRows<T, kKeys, kDim>, kDim, kKeys, kThreads> keys[2], values[2];
    Place places[2][kKeys];  // in bytes
  };

  static __device__ __forceinline__ void run(const Call& call) {
    Base::template run_tile<WarpgroupTiles>(call);
  }

 private:
  using Base::call, Base::kv_head, Base::first_row, Base::rows, Base::begin, Base::end;
  using Base::out, Base::scores, Base::find_places, Base::weigh, Base::position_of;
  Shared& shared;
  int last_seen;  // of the keys, by a row of the warpgroup
  unsigned weights[kKeys / 16][4];

  __device__ __forceinline__ WarpgroupTiles(const Call& call, const Sequence& sequence,
                                            Shared& shared, int tile)
      : Base(call, sequence, tile), shared(shared) {
    int first = first_row + threadIdx.x / 128 * 64;
    last_seen = first < rows ? position_of(min(first + 64, rows) - 1) : -1;
  }

  /// Which of two places is that of the keys from `first` on.
  static __device__ __forceinline__ int turn_of(int first) { return first / kKeys % 2; }

  __device__ __forceinline__ void bring_keys(int first) {
    bring(first, static_cast<const Stored*>(call.keys), shared.keys[turn_of(first)]);
  }
  __device__ __forceinline__ void bring_values(int first) {
    bring(first, static_cast<const Stored*>(call.values), shared.values[turn_of(first)]);
  }
  /// Starts a group of copies, empty if there are no such keys.
  template <class Tile>
  __device__ __forceinline__ void bring(int first, const Stored* from, Tile& to) {
    if (first < end)
      to.bring(call, from + kv_head * call.cache_head, shared.places[turn_of(first)]);
    else
      copy_commit();
  }

  __device__ __forceinline__ void attend() {
    find_places(begin, shared.places[turn_of(begin)]);
    find_places(begin + kKeys, shared.places[turn_of(begin + kKeys)]);
    __syncthreads();  // the first places are there
    bring_keys(begin), bring_values(begin);
    for (int first = begin; first < end; first += kKeys) {
      const int turn = turn_of(first);
      bool sees = first <= last_seen;
      copy_wait<1>();
      show_products();
      __syncthreads();  // the keys are there, and all have used those before
      bring_keys(first + kKeys);
      find_places(first + 2 * kKeys, shared.places[turn]);
      if (sees) {
        multiply_queries_and_keys(shared.keys[turn].rows);
        weigh(first);
        round_weights();
      }
      copy_wait<1>();
      show_products();
      __syncthreads();  // the values are there, and all have used those before
      bring_values(first + kKeys);
      if (sees) multiply_weights_and_values(shared.values[turn].rows);
    }
  }

  template <class Rows>
  __device__ __forceinline__ void multiply_queries_and_keys(const Rows& keys) {
    SharedMatrix a = SharedMatrix::at(shared.queries.at + threadIdx.x / 128 * 64 * 128);
    SharedMatrix b = SharedMatrix::at(keys.at);
    hand_over(scores[0]);
#pragma unroll
    for (int dim = 0; dim < kDim; dim += 16) {
      int column = dim % 64 * 2;
      start_product<T>(scores[0], a.plus(dim / 64 * kRows * 128 + column),
                       b.plus(dim / 64 * kKeys * 128 + column), dim > 0);
    }
    commit_products();
    wait_for_products<0>(scores[0]);
  }

  __device__ __forceinline__ void round_weights() {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &scores[0][step * 2 + i / 2][i % 2 * 2];
        weights[step][i] = pack<T>(pair[0], pair[1]);
      }
  }

  template <class Rows>
  __device__ __forceinline__ void multiply_weights_and_values(const Rows& values) {
    SharedMatrix b = SharedMatrix::at(values.at, kKeys * 128);
    hand_over(out[0], weights);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      start_product<T>(out[0], weights[step], b.plus(step * 16 * 128));
    commit_products();
    wait_for_products<0>(out[0], weights);
  }
};
