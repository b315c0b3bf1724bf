// What a launch of the attention kernels is told; cuda/structs.py has the same fields.
#pragma once

struct Call {
  // rows of numbers, contiguous: [T, heads, dim], [T, kv_heads, dim] twice
  const void *query, *key, *value;
  void* out;                            // [T, heads, dim], contiguous
  void *keys, *values;                  // of the cache: those of the first block's first head
  const int* query_start;               // [S + 1]
  const int* lengths;                   // [S]; tokens after this step
  const int* tables;                    // [S, table_width]
  const long long* slots;               // [T]; negative: nothing is written
  const float *slopes, *sinks;          // [heads], or null
  float* partials;                      // [rows, heads, num_splits, dim + 2], see combine.h
  const int* split;                     // [1]: keys of a split at least, see row.h
  long long query_token, query_head;    // strides, in numbers
  long long key_token, key_head;
  long long value_token, value_head;
  long long cache_block, cache_head;    // in numbers of the cache
  int table_width, tokens, sequences, heads, kv_heads, dim;
  int block_size;
  unsigned block_factor, block_shift;   // for dividing by block_size, see cache.h
  int window;                           // keys that a query sees; 0: all
  int rows_are_tokens;                  // of decode.h; otherwise they are sequences
  int tiles_from;                       // sequences of so many new tokens are left to tiles.h
  int max_splits, num_splits;           // see row.h
  float scale;
  float soft_cap;                       // 0: none

  __device__ __forceinline__ int group() const { return heads / kv_heads; }
};
