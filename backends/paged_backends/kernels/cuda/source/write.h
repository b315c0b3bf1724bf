// Keys and values of the batch into their slots of the cache.
#pragma once

#include "cache.h"

constexpr int kWriteWarps = 4;

/// Writes a row, which a warp has in its lanes, as it is.
template <class T>
__device__ __forceinline__ void write_row(const T* from, T* to, T*, int dim) {
  int first = threadIdx.x % 32 * kPiece;
  if (first < dim) Piece<T>::load(from + first).store(to + first);
}

/// Writes a row as 8-bit floats, and the byte of its scale.
template <class T>
__device__ __forceinline__ void write_row(const T* from, Float8* to, Float8* scale, int dim) {
  int first = threadIdx.x % 32 * kPiece;
  Floats floats;
  if (first < dim) floats = Floats::from(Piece<T>::load(from + first));
  unsigned greatest = 0;  // the order of magnitudes is that of their bits
#pragma unroll
  for (int i = 0; i < kPiece; ++i)
    greatest = max(greatest, __float_as_uint(floats.at[i]) & 0x7fffffff);
#pragma unroll
  for (int flip = 16; flip; flip /= 2)
    greatest = max(greatest, __shfl_xor_sync(~0u, greatest, flip));
  unsigned byte = scale_byte(greatest);
  if (first < dim) to_float8(floats, scale_of(254 - byte)).store(to + first);
  if (first == 0) scale->byte = byte;
}

/// A block of threads writes one token, and a warp of it one head's key or value at a time.
template <class T, class Stored>
__device__ __forceinline__ void write_token(const Call& call) {
  long long token = blockIdx.x, slot = call.slots[token];
  if (slot < 0) return;
  Place place = Place::of(call, slot / call.block_size, int(slot % call.block_size));
  for (int row = threadIdx.x / 32; row < 2 * call.kv_heads; row += kWriteWarps) {
    bool is_key = row < call.kv_heads;
    int head = is_key ? row : row - call.kv_heads;
    const T* from =
        is_key ? static_cast<const T*>(call.key) + token * call.key_token + head * call.key_head
               : static_cast<const T*>(call.value) + token * call.value_token +
                     head * call.value_head;
    Stored* to = static_cast<Stored*>(is_key ? call.keys : call.values) + head * call.cache_head;
    write_row(from, to + place.row, to + place.scale, call.dim);
  }
}
