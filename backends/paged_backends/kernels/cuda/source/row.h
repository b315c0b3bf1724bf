// A row of decode.h: one new token of a sequence, and how the keys that it sees are split.
#pragma once

#include "cache.h"

struct Row {
  Sequence sequence;
  int token, position;  // in the batch; in its sequence
  int first_key;        // the first that it sees
  bool is_here;         // otherwise tiles.h computes it

  static __device__ __forceinline__ Row at(const Call& call, int index) {
    Row row;
    if (call.rows_are_tokens) {
      row.sequence = Sequence::at(call, find(call, index));
      row.token = index;
      row.is_here = true;
    } else {
      row.sequence = Sequence::at(call, index);
      row.token = row.sequence.first_token;
      row.is_here = row.sequence.tokens == 1;
    }
    row.position = row.sequence.position(row.token - row.sequence.first_token);
    row.first_key = call.window ? max(0, row.position + 1 - call.window) : 0;
    return row;
  }

  /// Keys of a split. The partition depends on the row alone, so that its result does, too.
  __device__ __forceinline__ int split_size(const Call& call) const {
    int even = (num_keys() + call.max_splits - 1) / call.max_splits;
    return max(*call.split, (even + 15) / 16 * 16);
  }
  /// At least one, even if no key is seen; at most call.num_splits.
  __device__ __forceinline__ int num_splits(const Call& call) const {
    int size = split_size(call);
    return max(1, (num_keys() + size - 1) / size);
  }

 private:
  __device__ __forceinline__ int num_keys() const { return position + 1 - first_key; }

  /// The sequence of a token.
  static __device__ __forceinline__ int find(const Call& call, int token) {
    int low = 0, high = call.sequences;
    while (high - low > 1) {
      int middle = (low + high) / 2;
      (call.query_start[middle] <= token ? low : high) = middle;
    }
    return low;
  }
};
