// Attention of single tokens over the paged cache. The keys of a row are split among blocks of
// threads (Flash-Decoding; Dao et al., 2023), and read once for all query heads that share them.
//
// A key is read by as many lanes as it has pieces of eight numbers; each of them keeps the same
// piece of the queries and of the result. So a warp reads several keys at once, and each part of it
// has a softmax of its own. They are put together at the end: through shared memory, then by
// combine.h.
//
// Each thread brings the pieces that it needs itself, several steps ahead, to places in shared
// memory that no other thread uses: no barrier is needed, and no registers hold what is in flight.
#pragma once

#include "row.h"
#include "softmax.h"

template <class T, class Stored, int kDim, int kGroup>
class Decode {
 public:
  static constexpr int kWarps = 4, kThreads = kWarps * 32;

 private:
  static constexpr int kLanes = kDim <= 64 ? 8 : kDim <= 128 ? 16 : 32;  // of a key
  static constexpr int kParts = 32 / kLanes;                             // of a warp
  static constexpr int kAhead = 2;                                       // keys of a part in a step
  static constexpr int kStages = 4;                                      // steps in flight, and one
  static constexpr int kStep = kParts * kAhead;                          // keys of a warp in a step

  struct Stage {
    Inbox<Stored, kAhead, kThreads> keys, values;
  };
  struct Joint {
    float greatest[kGroup][kWarps * kParts], sum[kGroup][kWarps * kParts];
    float values[kGroup][kWarps * kParts][kDim];
  };

 public:
  union Shared {
    Stage stages[kStages];
    Joint joint;
  };

  static __device__ __forceinline__ void run(const Call& call) {
    Row row = Row::at(call, blockIdx.x);
    if (!row.is_here || int(blockIdx.z) >= row.num_splits(call)) return;
    SIMT_SHARED(Shared, shared);
    Decode decode(call, row, shared);
    decode.load_queries();
    decode.attend();
    __syncthreads();  // the stages are used no more
    decode.leave_joint();
    __syncthreads();  // the joint is complete
    decode.store();
  }

 private:
  const Call& call;
  const Row& row;
  Shared& shared;
  Scorer scorer;
  int begin, end;            // keys of the split
  int kv_head, head, heads;  // the first query head, and how many
  int warp, part, dim;       // this lane's part of the warp, and its first number of a key
  bool holds;                // whether it has any
  Floats query[kGroup];
  float slope[kGroup];
  Softmax<kPiece> state[kGroup];

  __device__ __forceinline__ Decode(const Call& call, const Row& row, Shared& shared)
      : call(call), row(row), shared(shared), scorer(Scorer::of(call)) {
    int size = row.split_size(call);
    begin = row.first_key + blockIdx.z * size;
    end = min(row.position + 1, begin + size);
    int group = call.group(), parts = (group + kGroup - 1) / kGroup;
    int first = blockIdx.y % parts * kGroup;
    kv_head = blockIdx.y / parts;
    head = kv_head * group + first;
    heads = min(kGroup, group - first);
    int lane = threadIdx.x % 32;
    warp = threadIdx.x / 32;
    part = lane / kLanes;
    dim = lane % kLanes * kPiece;
    holds = dim < call.dim;
  }

  __device__ __forceinline__ void load_queries() {
    const T* from = static_cast<const T*>(call.query) + row.token * call.query_token;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      slope[j] = j < heads ? scorer.slope(call, head + j) : 0;
      if (!holds || j >= heads) continue;
      query[j] = Floats::from(Piece<T>::load(from + (head + j) * call.query_head + dim));
    }
  }

  /// The position of key `i` of a step, for this lane.
  __device__ __forceinline__ int key_at(int step, int i) const {
    return begin + (step * kWarps + warp) * kStep + i * kParts + part;
  }

  __device__ __forceinline__ void attend() {
    int steps = (end - begin - warp * kStep + kWarps * kStep - 1) / (kWarps * kStep);
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
    const Stored* keys = static_cast<const Stored*>(call.keys) + kv_head * call.cache_head;
    const Stored* values = static_cast<const Stored*>(call.values) + kv_head * call.cache_head;
    if (key_at(step, 0) - part < end) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        int position = key_at(step, i);
        bool is_there = holds && position < end;
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
        if (position >= end) scores[i] = -INFINITY;
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
    if (dim >= kDim) return;
    int place = warp * kParts + part;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (dim == 0) {
        shared.joint.greatest[j][place] = state[j].greatest;
        shared.joint.sum[j][place] = state[j].sum;
      }
#pragma unroll
      for (int d = 0; d < kPiece; ++d) shared.joint.values[j][place][dim + d] = state[j].values[d];
    }
  }

  /// Puts the parts of all warps together; the result, or that of a split.
  __device__ __forceinline__ void store() const {
    const Joint& joint = shared.joint;
    bool is_whole = row.num_splits(call) == 1;
    for (int i = threadIdx.x; i < heads * call.dim; i += kThreads) {
      int j = i / call.dim, d = i % call.dim;
      Softmax<1> all;
#pragma unroll
      for (int place = 0; place < kWarps * kParts; ++place) {
        all.raise(joint.greatest[j][place]);
        float factor = all.weight(joint.greatest[j][place]);
        all.sum += factor * joint.sum[j][place];
        all.values[0] += factor * joint.values[j][place][d];
      }
      if (is_whole) {
        long long out = static_cast<long long>(row.token) * call.heads + head + j;
        static_cast<T*>(call.out)[out * call.dim + d] =
            from_float<T>(all.values[0] * reciprocal(all.sum));
        continue;
      }
      long long index = static_cast<long long>(blockIdx.x) * call.heads + head + j;
      float* to = call.partials + (index * call.num_splits + blockIdx.z) * (call.dim + 2);
      to[2 + d] = all.values[0];
      if (d == 0) to[0] = all.greatest, to[1] = all.sum;
    }
  }
};
