// Numbers rounded to signed codes of 8 bits: what rows of the cache and activations have in common.
#pragma once

#include "vector.h"

typedef int8_t vc __attribute__((vector_size(WIDTH)));

// The whole numbers next to those of magnitudes below 2^22.
INLINE vi whole(vf numbers) {
  const vf shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  return (vi)(numbers + shift) - (vi)shift;
}

// Whole numbers from -128 to 127 as codes.
INLINE vc codes_of(vi numbers) { return __builtin_convertvector(numbers, vc); }

// The greatest magnitude, or NaN if a number is not finite.
template <typename T>
INLINE float greatest_of(const T* numbers, int64_t count) {
  vf highest = splat(0.0f), difference = splat(0.0f);
  for (int64_t i = 0; i < count; i += WIDTH) {
    vf some = load_upto(numbers + i, count - i);
    highest = largest(highest, largest(some, -some));
    difference = difference + (some - some);  // NaN, unless all are finite
  }
  return largest_of(highest) + sum_of(difference);
}
