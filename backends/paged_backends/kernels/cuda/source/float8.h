// Keys and values as 8-bit floats, in the format of attention/float8.py: E4M3 times a power of two
// for each token and head, 2^(byte - 127).
#pragma once

#include "numbers.h"

/// 2^(byte - 127), for bytes from 1 to 254.
__device__ __forceinline__ float scale_of(unsigned byte) { return __uint_as_float(byte << 23); }

/// The scale's byte for a row whose greatest magnitude has these bits, as float32; if NaN is in the
/// row, these are above those of infinity.
__device__ __forceinline__ unsigned scale_byte(unsigned greatest) {
  constexpr unsigned kInfinity = 0x7f800000;
  if (greatest > kInfinity) greatest = 0;
  if (greatest == kInfinity) greatest = kInfinity - 1;
  int byte = int(greatest >> 23) - 8 + ((greatest & 0x7fffff) > 0x600000);  // 448 = 1.75 * 2^8
  return byte < 1 ? 1 : byte;
}

/// E4M3, rounded to the nearest, ties to even; 448 stands for what is greater, and NaN for what is
/// not finite.
__device__ __forceinline__ unsigned to_e4m3(float value) {
  unsigned bits = __float_as_uint(value), size = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
  if (size >= 0x7f800000) return 0x7f;
  if (size >= 0x43e00000) return sign | 0x7e;  // 448
  if (size < 0x3c800000)  // 2^-6; the sum has as many bits as a subnormal
    return sign | (__float_as_uint(__uint_as_float(size) + 16384.0f) - 0x46800000);
  return sign | (((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3));
}

/// Two E4M3 numbers in the lower half of `pair` as floats.
__device__ __forceinline__ void from_e4m3(unsigned pair, float& first, float& second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(pair)));
  __half numbers[2];
  memcpy(numbers, &halves, 4);
  first = __half2float(numbers[0]), second = __half2float(numbers[1]);
#else
  float* to[2] = {&first, &second};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unsigned byte = pair >> i * 8, size = byte & 0x7f;
    // exponent and fraction, moved to where a float has them, are too small by 2^120
    float value = __uint_as_float((byte & 0x80) << 24 | size << 20) * 0x1p120f;
    *to[i] = size == 0x7f ? __uint_as_float(0x7fc00000) : value;
  }
#endif
}

/// The numbers of a piece, without their scale.
__device__ __forceinline__ Floats unscaled(const Piece<Float8>& piece) {
  unsigned words[2];
  memcpy(words, &piece, 8);
  Floats floats;
#pragma unroll
  for (int i = 0; i < kPiece; i += 2)
    from_e4m3(words[i / 4] >> i % 4 * 8 & 0xffff, floats.at[i], floats.at[i + 1]);
  return floats;
}
template <class T>
__device__ __forceinline__ Floats unscaled(const Piece<T>& piece) {
  return Floats::from(piece);
}

/// A piece of numbers that are multiplied by 1 / scale.
__device__ __forceinline__ Piece<Float8> to_float8(const Floats& floats, float inverse_scale) {
  unsigned words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kPiece; ++i)
    words[i / 4] |= to_e4m3(floats.at[i] * inverse_scale) << i % 4 * 8;
  Piece<Float8> piece;
  memcpy(&piece, words, 8);
  return piece;
}
