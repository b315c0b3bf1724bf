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

/// Four E4M3 numbers as floats.
__device__ __forceinline__ void from_e4m3(unsigned word, float* to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned pairs[2];
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(word));
  __half numbers[4];
  memcpy(numbers, pairs, 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __half2float(numbers[i]);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned byte = word >> i * 8, size = byte & 0x7f;
    // exponent and fraction, moved to where a float has them, are too small by 2^120
    float value = __uint_as_float((byte & 0x80) << 24 | size << 20) * 0x1p120f;
    to[i] = size == 0x7f ? __uint_as_float(0x7fc00000) : value;
  }
#endif
}

/// The same, packed as T, in which they are exact.
template <class T>
__device__ __forceinline__ void widen(unsigned word, unsigned& low, unsigned& high) {
  float numbers[4];
  from_e4m3(word, numbers);
  low = pack<T>(numbers[0], numbers[1]), high = pack<T>(numbers[2], numbers[3]);
}

/// The numbers of a piece, without their scale.
__device__ __forceinline__ Floats unscaled(const Piece<Float8>& piece) {
  unsigned words[2];
  memcpy(words, &piece, 8);
  Floats floats;
#pragma unroll
  for (int i = 0; i < 2; ++i) from_e4m3(words[i], floats.at + i * 4);
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
