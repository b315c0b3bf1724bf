// Puts the splits of a row together: of each split of a row and head there are, in `partials`,
// the greatest score, the sum of the weights, and the weighted values.
#pragma once

#include "joint.h"

constexpr int kCombineWarps = 4, kCombineThreads = kCombineWarps * 32;
constexpr int kCombineDim = 256;  // at most
using Combined = Joint<kCombineWarps, 1, kCombineDim>;

/// A block of threads for each row and head. A warp puts every fourth split together, a lane every
/// 32nd number of them; then the warps are.
template <class T>
__device__ __forceinline__ void combine_splits(const Call& call) {
  Row row = Row::at(call, blockIdx.x);
  if (!row.is_here) return;
  int splits = row.num_splits(call), head = blockIdx.y;
  if (splits == 1) return;
  SIMT_SHARED(Combined, combined);
  constexpr int kNumbers = kCombineDim / 32;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  long long index = static_cast<long long>(blockIdx.x) * call.heads + head;
  const float* from = call.partials + index * call.num_splits * (call.dim + 2);
  Softmax<kNumbers> all;
  for (int split = warp; split < splits; split += kCombineWarps) {
    const float* partial = from + static_cast<long long>(split) * (call.dim + 2);
    all.raise(partial[0]);
    float factor = all.weight(partial[0]);
    all.sum += factor * partial[1];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i)
      if (lane + i * 32 < call.dim) all.values[i] += factor * partial[2 + lane + i * 32];
  }
  if (lane == 0) combined.greatest[warp][0] = all.greatest, combined.sum[warp][0] = all.sum;
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) combined.values[warp][0][lane + i * 32] = all.values[i];
  __syncthreads();  // all warps are there
  long long out = static_cast<long long>(row.token) * call.heads + head;
  for (int d = threadIdx.x; d < call.dim; d += kCombineThreads) {
    Softmax<1> whole = combined.merged(0, d);
    static_cast<T*>(call.out)[out * call.dim + d] =
        from_float<T>(whole.values[0] * reciprocal(call, head, whole.greatest, whole.sum));
  }
}
