// What a block of threads decodes, and putting together what its parts have found.
#pragma once

#include "row.h"
#include "softmax.h"

/// The keys and the query heads of a block.
struct Share {
  int begin, end;            // keys of the split
  int kv_head, head, heads;  // the first query head, and how many

  /// A block takes at most `most` query heads that share a key.
  static __device__ __forceinline__ Share at(const Call& call, const Row& row, int most) {
    int size = row.split_size(call), group = call.group(), parts = (group + most - 1) / most;
    int first = blockIdx.y % parts * most, kv_head = blockIdx.y / parts;
    int begin = row.first_key + blockIdx.z * size;
    return {begin, min(row.position + 1, begin + size), kv_head, kv_head * group + first,
            min(most, group - first)};
  }
};

/// In shared memory, the softmax of each part of a block, for each of its query heads.
template <int kParts, int kHeads, int kDim>
struct Joint {
  float greatest[kParts][kHeads], sum[kParts][kHeads];
  float values[kParts][kHeads][kDim + 8];  // rows begin in different banks

  /// The softmax of query head `j`, with number `d` of its values.
  __device__ __forceinline__ Softmax<1> merged(int j, int d) const {
    Softmax<1> all;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      all.raise(greatest[part][j]);
      float factor = all.weight(greatest[part][j]);
      all.sum += factor * sum[part][j];
      all.values[0] += factor * values[part][j][d];
    }
    return all;
  }

  /// The result of a block that has all keys, and otherwise that of the split; see combine.h.
  template <class T, int kThreads>
  __device__ __forceinline__ void store(const Call& call, const Row& row,
                                        const Share& share) const {
    bool is_whole = row.num_splits(call) == 1;
    for (int i = threadIdx.x; i < share.heads * call.dim; i += kThreads) {
      int j = i / call.dim, d = i % call.dim;
      Softmax<1> all = merged(j, d);
      if (is_whole) {
        long long out = static_cast<long long>(row.token) * call.heads + share.head + j;
        float factor = reciprocal(call, share.head + j, all.greatest, all.sum);
        static_cast<T*>(call.out)[out * call.dim + d] = from_float<T>(all.values[0] * factor);
        continue;
      }
      long long index = static_cast<long long>(blockIdx.x) * call.heads + share.head + j;
      float* to = call.partials + (index * call.num_splits + blockIdx.z) * (call.dim + 2);
      to[2 + d] = all.values[0];
      if (d == 0) to[0] = all.greatest, to[1] = all.sum;
    }
  }
};
