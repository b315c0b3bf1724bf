// Copies of whole blocks, in the caches of all layers at once.
#pragma once

#include "simt.h"

/// Copies each of `pairs` from each source to its target. Blocks of threads run in any order: no
/// destination may be an origin, or in two pairs, where source and target are the same.
struct BlockCopies {
  const unsigned long long *sources, *targets;  // [num_caches]: addresses, multiples of 8
  const long long* block_bytes;                 // [num_caches]: multiples of 8
  const long long* pairs;                       // [num_pairs, 2]: origin, destination
  int num_caches, num_pairs;
};

constexpr int kCopyThreads = 256;

template <class Word>
__device__ __forceinline__ void copy_words(unsigned long long from, unsigned long long to,
                                           long long bytes) {
  const Word* source = reinterpret_cast<const Word*>(from);
  Word* target = reinterpret_cast<Word*>(to);
#pragma unroll 4
  for (long long i = threadIdx.x; i < bytes / static_cast<long long>(sizeof(Word));
       i += kCopyThreads)
    target[i] = source[i];
}

/// A block of threads copies one pair in one cache.
__device__ __forceinline__ void copy_block(const BlockCopies& call) {
  long long bytes = call.block_bytes[blockIdx.y];
  const long long* pair = call.pairs + blockIdx.x * 2ll;
  unsigned long long from = call.sources[blockIdx.y] + pair[0] * bytes;
  unsigned long long to = call.targets[blockIdx.y] + pair[1] * bytes;
  if ((from | to | bytes) % 16 == 0)
    copy_words<uint4>(from, to, bytes);
  else
    copy_words<uint2>(from, to, bytes);
}

#define PAGED_COPY_BLOCKS() \
  SIMT_KERNEL(paged_copy_blocks, BlockCopies, kCopyThreads, 1, 0, 0) { copy_block(call); }
