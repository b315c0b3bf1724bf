// bfloat16 and half on the CPU: conversions that round to the nearest, ties to even, as a GPU's do.
#pragma once

#include <cmath>

#include "runtime.h"

struct __nv_bfloat16 {
  uint16_t word;
};
struct __half {
  uint16_t word;
};

inline float __bfloat162float(__nv_bfloat16 it) {
  return simt::bits<float>(uint32_t(it.word) << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  uint32_t word = simt::bits<uint32_t>(value);
  if (value != value) return {0x7fff};
  return {uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16)};
}

inline float __half2float(__half it) {
  // exponent and fraction, moved to where a float has them, are too small by 2^112
  uint32_t size = it.word & 0x7fff, sign = uint32_t(it.word & 0x8000) << 16;
  float value = simt::bits<float>(size << 13) * 0x1p112f;
  uint32_t word = size >= 0x7c00 ? 0x7f800000 | size << 13 : simt::bits<uint32_t>(value);
  return simt::bits<float>(word | sign);
}

inline __half __float2half_rn(float value) {
  uint32_t word = simt::bits<uint32_t>(value), sign = word >> 16 & 0x8000;
  float size = std::fabs(value);
  if (!(size < 65520.0f)) return {uint16_t(sign | (size > 0 ? 0x7c00 : 0x7fff))};
  if (size < 0x1p-14f)  // the sum with 0.5 has as many bits of fraction as a subnormal half
    return {uint16_t(sign | (simt::bits<uint32_t>(size + 0.5f) - 0x3f000000))};
  word &= 0x7fffffff;
  return {uint16_t(sign | (((word + 0xfff + (word >> 13 & 1)) >> 13) - (112 << 10)))};
}
