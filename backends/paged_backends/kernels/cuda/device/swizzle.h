// Where products of warpgroups find their operands in shared memory: pieces of 8 numbers lie in rows
// of 128 bytes, eight of which are an atom of 1,024 bytes; piece p of row r is at place p ^ r % 8 of
// its row. warpgroup.h includes this, and has `shared_address` before it.
#pragma once

/// Where a matrix begins in shared memory: the lower half of its descriptor. A row of 128 bytes has
/// 64 numbers, which differ in k, or in n if B is transposed.
struct SharedMatrix {
  unsigned lower;
  /// The other half: atoms of 1,024 bytes, in the swizzle of 128 bytes.
  static constexpr unsigned kUpper = 1u << 30 | 1024 >> 4;

  /// `apart`: bytes between 64 columns of n and the next ones, if B is transposed.
  static __device__ __forceinline__ SharedMatrix at(const void* place, int apart = 0) {
    return {unsigned(apart >> 4) << 16 | (shared_address(place) & 0x3ffff) >> 4};
  }
  __device__ __forceinline__ SharedMatrix plus(int bytes) const { return {lower + (bytes >> 4)}; }
};

/// Where the piece of a row from `dim` on lies, in bytes from the beginning: after 64 numbers of
/// each of the `rows` rows come the next 64.
__device__ __forceinline__ int swizzled(int rows, int row, int dim) {
  return dim / 64 * rows * 128 + row * 128 + (dim % 64 / 8 ^ row % 8) * 16;
}
