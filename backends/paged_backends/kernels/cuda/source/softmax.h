// Scores and their softmax, computed as the keys come (Milakov and Gimelshein, 2018). Scores are
// multiplied by log2(e), so that 2^x serves as e^x.
#pragma once

#include "call.h"
#include "numbers.h"

/// What makes a score of the product of a query and a key.
struct Scorer {
  float inner, outer;
  bool is_capped, is_biased;

  static __device__ __forceinline__ Scorer of(const Call& call) {
    constexpr float kLog2E = 1.4426950408889634f;
    bool is_capped = call.soft_cap != 0;
    return {is_capped ? call.scale / call.soft_cap : call.scale * kLog2E, call.soft_cap * kLog2E,
            is_capped, call.slopes != nullptr};
  }
  /// Whether a score is the product times `inner`, and the greatest of both are the same.
  __device__ __forceinline__ bool is_product() const {
    return !is_capped && !is_biased && inner > 0;
  }
  /// Of a query head; 0 if there is no bias.
  __device__ __forceinline__ float slope(const Call& call, int head) const {
    return is_biased ? call.slopes[head] * 1.4426950408889634f : 0;
  }
  /// Without the bias, which is the slope times the distance.
  __device__ __forceinline__ float score(float product) const {
    float value = product * inner;
    return is_capped ? outer * tanhf(value) : value;
  }
};

/// An unfinished softmax: the greatest score, the sum of the weights 2^(score - greatest), and of
/// the values times these.
template <int kSize>
struct Softmax {
  float greatest = -INFINITY, sum = 0, values[kSize] = {};

  /// What is subtracted from scores: not -inf, as long as no key was seen.
  __device__ __forceinline__ float base() const { return greatest == -INFINITY ? 0 : greatest; }

  /// Makes `score` the greatest, if it is.
  __device__ __forceinline__ void raise(float score) {
    float old = greatest;
    greatest = fmaxf(greatest, score);
    float factor = exp2_of(old - base());
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] *= factor;
  }
  /// The weight of a score that is not above the greatest.
  __device__ __forceinline__ float weight(float score) const { return exp2_of(score - base()); }
};

/// What weighted values of a query head are multiplied by at the end, where its sink, if any, joins
/// the sum of the weights; 0 where no key was seen.
__device__ __forceinline__ float reciprocal(const Call& call, int head, float greatest, float sum) {
#if !defined(PAGED_WGMMA)  // whose registers are all taken: layers with sinks have other tiles
  if (call.sinks) sum += exp2_of(call.sinks[head] * 1.4426950408889634f - greatest);
#endif
  return sum == 0 ? 0 : 1 / sum;
}
