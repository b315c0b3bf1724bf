// The paged cache: where a token's key and value lie, and bringing them to shared memory.
//
// A head's part of a block holds the rows of its tokens one after another, and in a cache of 8-bit
// floats then a byte for each token's scale. Such a part begins at a multiple of 8 bytes.
#pragma once

#include "async_copy.h"
#include "call.h"
#include "float8.h"

/// One sequence of the batch.
struct Sequence {
  const int* table;
  int first_token, tokens;  // in the batch
  int length;               // cached tokens included

  static __device__ __forceinline__ Sequence at(const Call& call, int index) {
    int first = call.query_start[index];
    return {call.tables + static_cast<long long>(index) * call.table_width, first,
            call.query_start[index + 1] - first, call.lengths[index]};
  }
  /// Position of its new token `token`.
  __device__ __forceinline__ int position(int token) const { return length - tokens + token; }
};

/// Which entry of its sequence's table a token's block is, and where the token is in the block.
struct Slot {
  int entry, offset;

  /// Divides by the block size (Granlund and Montgomery, 1994); right for positions below 2^31.
  static __device__ __forceinline__ Slot of(const Call& call, int position) {
    unsigned number = position;
    int entry = (__umulhi(number, call.block_factor) + number) >> call.block_shift;
    return {entry, position - entry * call.block_size};
  }
};

/// Where a token's key or value lies, and its scale if there is one, counted from the first block's
/// part of the head.
struct Place {
  long long row, scale;

  static __device__ __forceinline__ Place of(const Call& call, long long block, int offset) {
    long long part = block * call.cache_block;
    return {part + static_cast<long long>(offset) * call.dim,
            part + static_cast<long long>(call.block_size) * call.dim + offset};
  }
  static __device__ __forceinline__ Place of(const Call& call, const Sequence& sequence,
                                             int position) {
    Slot slot = Slot::of(call, position);
    return of(call, __ldg(sequence.table + slot.entry), slot.offset);
  }
};

/// In shared memory, what each thread of a block brings for itself: `kCount` pieces.
template <class Stored, int kCount, int kThreads>
struct Inbox {
  Piece<Stored> pieces[kCount][kThreads];

  /// Starts to bring piece `i` of this thread; zeros if not `is_there`.
  __device__ __forceinline__ void bring(int i, const Stored* head, const Place& place, int dim,
                                        bool is_there) {
    using Word = typename Piece<Stored>::Word;
    const Stored* from = is_there ? head + place.row + dim : head;
#pragma unroll
    for (int word = 0; word < Piece<Stored>::kWords; ++word)
      copy_async<sizeof(Word)>(&pieces[i][threadIdx.x].words[word],
                               reinterpret_cast<const Word*>(from) + word, is_there);
  }
  /// What has come and its scale, which is byte `offset % 4` of its word.
  __device__ __forceinline__ Floats take(int i, int, float& scale) const {
    scale = 1;
    return unscaled(pieces[i][threadIdx.x]);
  }
};

/// With each piece comes the word in which its row's scale is.
template <int kCount, int kThreads>
struct Inbox<Float8, kCount, kThreads> {
  Piece<Float8> pieces[kCount][kThreads];
  unsigned scales[kCount][kThreads];

  __device__ __forceinline__ void bring(int i, const Float8* head, const Place& place, int dim,
                                        bool is_there) {
    const Float8* from = is_there ? head + place.row + dim : head;
    copy_async<8>(&pieces[i][threadIdx.x], from, is_there);
    from = is_there ? head + (place.scale & ~3ll) : head;
    copy_async<4>(&scales[i][threadIdx.x], from, is_there);
  }
  __device__ __forceinline__ Floats take(int i, int offset, float& scale) const {
    scale = scale_of(scales[i][threadIdx.x] >> offset % 4 * 8 & 0xff);
    return unscaled(pieces[i][threadIdx.x]);
  }
};
