// Attention of several new tokens of a sequence on tensor cores, over the paged cache
// (FlashAttention-2; Dao, 2023).
//
// A block of threads computes a tile of rows of one key/value head of one sequence; a row is a
// token and one of the query heads that share the key, so that keys are read once for all of them.
// Keys and values come through shared memory, some tokens at a time: while the scores are computed
// the values arrive, and while the result is, the next keys. Which keys are taken together depends
// on their positions alone, so that a row's result does not depend on what else is in the batch.
#pragma once

#include "tensor_core.h"
#include "tile_rows.h"

template <class T, class Stored, int kDim>
struct TilesShape {
  static constexpr int kWarps = 4, kKeys = kDim <= 128 ? 64 : 32;
  /// Times 16: rows of a warp. With two, what is loaded of keys and values is used twice.
  static constexpr int kBands = kDim <= 128 ? 2 : 1;
  using Rows = TileRows<T, Stored, kDim, kWarps, kBands, kKeys>;
};

template <class T, class Stored, int kDim>
class Tiles : TilesShape<T, Stored, kDim>::Rows {
  using Shape = TilesShape<T, Stored, kDim>;
  using Base = typename Shape::Rows;
  friend Base;
  static constexpr int kBands = Shape::kBands, kKeys = Shape::kKeys;
  using Base::kColumns, Base::kDims;

 public:
  using Base::kRows, Base::kThreads;
  struct Shared {
    GappedRows<T, kRows, kDim> queries;
    KeyTile<T, Stored, GappedRows<T, kKeys, kDim>, kDim, kKeys, kThreads> keys, values;
    Place places[2][kKeys];  // in bytes: of the keys that are used, and of the next ones
  };

  static __device__ __forceinline__ void run(const Call& call) {
    Base::template run_tile<Tiles>(call);
  }

 private:
  using Base::call, Base::kv_head, Base::warp_row, Base::begin, Base::end, Base::last_position;
  using Base::out, Base::scores, Base::find_places, Base::weigh;
  Shared& shared;

  __device__ __forceinline__ Tiles(const Call& call, const Sequence& sequence, Shared& shared,
                                   int tile)
      : Base(call, sequence, tile), shared(shared) {}

  __device__ __forceinline__ void attend() {
    const Stored* keys = static_cast<const Stored*>(call.keys) + kv_head * call.cache_head;
    const Stored* values = static_cast<const Stored*>(call.values) + kv_head * call.cache_head;
    find_places(begin, shared.places[0]);
    __syncthreads();  // the first places are there
    shared.keys.bring(call, keys, shared.places[0]);
    for (int first = begin, turn = 0; first < end; first += kKeys, turn ^= 1) {
      const Place *places = shared.places[turn], *next = shared.places[turn ^ 1];
      bool sees = first <= last_position;  // the same for all lanes of a warp
      shared.values.bring(call, values, places);
      find_places(first + kKeys, shared.places[turn ^ 1]);
      copy_wait<1>();
      shared.keys.arrive(places);
      __syncthreads();  // the keys are there
      if (sees) multiply_queries_and_keys();
      __syncthreads();  // all have used the keys
      if (first + kKeys < end)
        shared.keys.bring(call, keys, next);
      else
        copy_commit();
      if (sees) weigh(first);
      copy_wait<1>();
      shared.values.arrive(places);
      __syncthreads();  // the values are there
      if (sees) multiply_weights_and_values();
      __syncthreads();  // all have used the values
    }
  }

  __device__ __forceinline__ void multiply_queries_and_keys() {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int band = 0; band < kBands; ++band)
#pragma unroll
      for (int column = 0; column < kColumns; ++column)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[band][column][i] = 0;
    constexpr int kUnrolled = kFewRegisters == 120 ? 4 : kDim / 16;
#pragma unroll kUnrolled
    for (int step = 0; step < kDim; step += 16) {
      unsigned a[kBands][4];
#pragma unroll
      for (int band = 0; band < kBands; ++band)
        load_matrices(a[band], shared.queries.piece(warp_row + band * 16 + lane % 16,
                                                      step + lane / 16 * 8));
#pragma unroll
      for (int column = 0; column < kColumns; column += 2) {
        unsigned b[4];
        load_matrices(b, shared.keys.rows.piece(column * 8 + lane / 16 * 8 + lane % 8,
                                                step + lane / 8 % 2 * 8));
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          multiply_add<T>(scores[band][column], a[band], b[0], b[1]);
          multiply_add<T>(scores[band][column + 1], a[band], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_weights_and_values() {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      unsigned a[kBands][4];  // rounded
#pragma unroll
      for (int band = 0; band < kBands; ++band)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &scores[band][step * 2 + i / 2][i % 2 * 2];
          a[band][i] = pack<T>(pair[0], pair[1]);
        }
#pragma unroll
      for (int j = 0; j < kDims; j += 2) {
        unsigned b[4];
        load_transposed(b, shared.values.rows.piece(step * 16 + lane % 16, j * 8 + lane / 16 * 8));
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          multiply_add<T>(out[band][j], a[band], b[0], b[1]);
          multiply_add<T>(out[band][j + 1], a[band], b[2], b[3]);
        }
      }
    }
  }
};
