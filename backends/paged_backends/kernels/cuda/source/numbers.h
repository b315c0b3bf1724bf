// Numbers of a layer (float, bfloat16, half) and of its cache, eight at a time.
#pragma once

#include "simt.h"

/// A number of a cache of 8-bit floats; see float8.h.
struct Float8 {
  unsigned char byte;
};
template <class Stored>
constexpr bool kIsFloat8 = false;
template <>
constexpr bool kIsFloat8<Float8> = true;

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

/// Two numbers in a register, the first in its lower half.
template <class T>
__device__ __forceinline__ unsigned pack(float first, float second) {
  T pair[2] = {from_float<T>(first), from_float<T>(second)};
  unsigned word;
  memcpy(&word, pair, 4);
  return word;
}

/// 2^x; results below 2^-126 may be 0.
__device__ __forceinline__ float exp2_of(float x) {
#if defined(__CUDACC__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return std::exp2(x);
#endif
}

/// What is read at once: 16 bytes, if eight numbers are that many.
template <int kBytes>
struct WordOf {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};

constexpr int kPiece = 8;

/// Eight numbers that follow one another, as they are stored.
template <class Stored>
struct Piece {
  using Word = typename WordOf<kPiece * sizeof(Stored)>::Type;
  static constexpr int kWords = kPiece * sizeof(Stored) / sizeof(Word);
  Word words[kWords];

  static __device__ __forceinline__ Piece load(const Stored* from) {
    Piece piece;
#pragma unroll
    for (int i = 0; i < kWords; ++i) piece.words[i] = reinterpret_cast<const Word*>(from)[i];
    return piece;
  }
  __device__ __forceinline__ void store(Stored* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
  }
};

/// The same numbers as floats.
struct Floats {
  float at[kPiece] = {};

  template <class T>
  static __device__ __forceinline__ Floats from(const Piece<T>& piece) {
    T numbers[kPiece];
    memcpy(numbers, &piece, sizeof piece);
    Floats floats;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) floats.at[i] = to_float(numbers[i]);
    return floats;
  }
  template <class T>
  __device__ __forceinline__ Piece<T> rounded() const {
    T numbers[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) numbers[i] = from_float<T>(at[i]);
    Piece<T> piece;
    memcpy(&piece, numbers, sizeof piece);
    return piece;
  }
};
