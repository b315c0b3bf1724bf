// Attention of single tokens in float32, which tensor cores would round: products on CUDA cores.
//
// A key is read by as many lanes as it has pieces of eight numbers; each of them keeps the same
// piece of the queries and of the result. So a warp reads several keys at once, and each part of it
// has a softmax of its own. They are put together at the end: through shared memory, then by
// combine.h.
//
// Each thread brings the pieces that it needs itself, several steps ahead, to places in shared
// memory that no other thread uses: no barrier is needed, and no registers hold what is in flight.
#pragma once

#include "joint.h"

template <class Stored, int kDim, int kGroup>
class DecodeFloat32 {
 public:
  static constexpr int kWarps = 4, kThreads = kWarps * 32;
  static constexpr int kBlocks = kGroup <= 2 ? 4 : 2;  // on a multiprocessor, at least

 private:
  static constexpr int kLanes = kDim <= 64 ? 8 : kDim <= 128 ? 16 : 32;  // of a key
  static constexpr int kParts = 32 / kLanes;                             // of a warp
  static constexpr int kAhead = 2;                                       // keys of a part in a step
  static constexpr int kStages = 4;                                      // steps in flight, and one
  static constexpr int kStep = kParts * kAhead;                          // keys of a warp in a step

  /// As many lanes have a key of 96 numbers as one of 128.
  static constexpr int kPlaces = kLanes * kPiece;

  struct Stage {
    Inbox<Stored, kAhead, kThreads> keys, values;
  };

 public:
  union Shared {
    Stage stages[kStages];
    Joint<kWarps * kParts, kGroup, kPlaces> joint;
  };

  static __device__ __forceinline__ void run(const Call& call) {
    Row row = Row::at(call, blockIdx.x);
    if (!row.is_here || int(blockIdx.z) >= row.num_splits(call)) return;
    SIMT_SHARED(Shared, shared);
    DecodeFloat32 decode(call, row, shared);
    decode.load_queries();
    decode.attend();
    __syncthreads();  // the stages are used no more
    decode.leave_joint();
    __syncthreads();  // the joint is complete
    shared.joint.template store<float, kThreads>(call, row, decode.share);
  }

 private:
  const Call& call;
  const Row& row;
  Shared& shared;
  Scorer scorer;
  Share share;
  int warp, part, dim;  // this lane's part of the warp, and its first number of a key
  bool holds;           // whether it has any
  Floats query[kGroup];
  float slope[kGroup];
  Softmax<kPiece> state[kGroup];

  __device__ __forceinline__ DecodeFloat32(const Call& call, const Row& row, Shared& shared)
      : call(call), row(row), shared(shared), scorer(Scorer::of(call)),
        share(Share::at(call, row, kGroup)) {
    int lane = threadIdx.x % 32;
    warp = threadIdx.x / 32;
    part = lane / kLanes;
    dim = lane % kLanes * kPiece;
    holds = dim < call.dim;
  }

  __device__ __forceinline__ void load_queries() {
    const float* from = static_cast<const float*>(call.query) + row.token * call.query_token;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      slope[j] = j < share.heads ? scorer.slope(call, share.head + j) : 0;
      if (!holds || j >= share.heads) continue;
      query[j] = Floats::from(
          Piece<float>::load(from + (share.head + j) * call.query_head + dim));
    }
  }

  /// The position of key `i` of a step, for this lane.
  __device__ __forceinline__ int key_at(int step, int i) const {
    return share.begin + (step * kWarps + warp) * kStep + i * kParts + part;
  }

  __device__ __forceinline__ void attend() {
    int steps = (share.end - share.begin - warp * kStep + kWarps * kStep - 1) / (kWarps * kStep);
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) bring(step);
    for (int step = 0; step < steps; ++step) {
      copy_wait<kStages - 2>();  // this step's pieces are there
      bring(step + kStages - 1);
      use(step);
    }
  }

  __device__ __forceinline__ void bring(int step) {
    Stage& stage = shared.stages[step % kStages];
    long long first = share.kv_head * call.cache_head;
    const Stored* keys = static_cast<const Stored*>(call.keys) + first;
    const Stored* values = static_cast<const Stored*>(call.values) + first;
    if (key_at(step, 0) - part < share.end) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        int position = key_at(step, i);
        bool is_there = holds && position < share.end;
        Place place = {0, 0};
        if (is_there) place = Place::of(call, row.sequence, position);
        stage.keys.bring(i, keys, place, dim, is_there);
        stage.values.bring(i, values, place, dim, is_there);
      }
    }
    copy_commit();
  }

  __device__ __forceinline__ void use(int step) {
    const Stage& stage = shared.stages[step % kStages];
    Floats key[kAhead], value[kAhead];
    float key_scale[kAhead], value_scale[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      int offset = Slot::of(call, key_at(step, i)).offset;
      key[i] = stage.keys.take(i, offset, key_scale[i]);
      value[i] = stage.values.take(i, offset, value_scale[i]);
    }
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      float scores[kAhead], top = -INFINITY;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        float product = key_scale[i] * dot(query[j], key[i]);
        int position = key_at(step, i);
        scores[i] = scorer.score(product) - slope[j] * (row.position - position);
        if (position >= share.end) scores[i] = -INFINITY;
        top = fmaxf(top, scores[i]);
      }
      state[j].raise(top);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        float weight = state[j].weight(scores[i]);
        state[j].sum += weight;
        weight *= value_scale[i];
#pragma unroll
        for (int d = 0; d < kPiece; ++d) state[j].values[d] += weight * value[i].at[d];
      }
    }
  }

  /// The product of a query and a key, of which each lane of a part has a piece.
  static __device__ __forceinline__ float dot(const Floats& query, const Floats& key) {
    float product = 0;
#pragma unroll
    for (int d = 0; d < kPiece; ++d) product += query.at[d] * key.at[d];
#pragma unroll
    for (int flip = kLanes / 2; flip; flip /= 2) product += __shfl_xor_sync(~0u, product, flip);
    return product;
  }

  __device__ __forceinline__ void leave_joint() {
    int place = warp * kParts + part;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (dim == 0) {
        shared.joint.greatest[place][j] = state[j].greatest;
        shared.joint.sum[place][j] = state[j].sum;
      }
#pragma unroll
      for (int d = 0; d < kPiece; ++d) shared.joint.values[place][j][dim + d] = state[j].values[d];
    }
  }
};
