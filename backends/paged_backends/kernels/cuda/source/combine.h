// Puts the splits of a row together: of each split of a row and head there are, in `partials`,
// the greatest score, the sum of the weights, and the weighted values.
#pragma once

#include "row.h"
#include "softmax.h"

constexpr int kCombineThreads = 128;

/// A block of threads for each row and head.
template <class T>
__device__ __forceinline__ void combine_splits(const Call& call) {
  Row row = Row::at(call, blockIdx.x);
  if (!row.is_here) return;
  int splits = row.num_splits(call), head = blockIdx.y;
  if (splits == 1) return;
  long long index = static_cast<long long>(blockIdx.x) * call.heads + head;
  const float* from = call.partials + index * call.num_splits * (call.dim + 2);
  long long out = static_cast<long long>(row.token) * call.heads + head;
  for (int d = threadIdx.x; d < call.dim; d += kCombineThreads) {
    Softmax<1> all;
    for (int split = 0; split < splits; ++split) {
      const float* partial = from + static_cast<long long>(split) * (call.dim + 2);
      all.raise(partial[0]);
      float factor = all.weight(partial[0]);
      all.sum += factor * partial[1];
      all.values[0] += factor * partial[2 + d];
    }
    static_cast<T*>(call.out)[out * call.dim + d] =
        from_float<T>(all.values[0] * reciprocal(all.sum));
  }
}
