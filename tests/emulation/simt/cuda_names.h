// CUDA's names on the CPU, as far as our kernels use them.
#pragma once

#include <cmath>

#include "runtime.h"
#include "small_floats.h"

#define __device__
#define __forceinline__ inline

// ------------------------------------------------------------------ vectors

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// ------------------------------------------------------------------ indices

#define threadIdx (simt::self->index)
#define blockIdx (simt::block_index)
#define gridDim (simt::grid_size)

// ------------------------------------------------------------------ barriers and warps

inline void __syncthreads(SIMT_WHERE) { simt::barrier(where); }
inline void __syncwarp(unsigned mask = ~0u, SIMT_WHERE) { simt::sync_warp(mask, where); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, SIMT_WHERE) {
  return simt::from_lane(mask, value, source & 31, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, SIMT_WHERE) {
  return simt::from_lane(mask, value, simt::self->lane ^ flip, where);
}
SIMT_UNCHECKED inline int __any_sync(unsigned mask, int predicate, SIMT_WHERE) {
  simt::Values all = simt::meet(mask, predicate != 0, where);
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1 && all[lane]) return 1;
  return 0;
}

// ------------------------------------------------------------------ arithmetic

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t both = uint64_t(b) << 32 | a;
  unsigned made = 0;
  for (int i = 0; i < 4; ++i) made |= unsigned(both >> (selector >> i * 4 & 7) * 8 & 0xff) << i * 8;
  return made;
}
inline float __uint_as_float(unsigned value) { return simt::bits<float>(value); }
inline unsigned __float_as_uint(float value) { return simt::bits<unsigned>(value); }
template <class T>
T __ldg(const T* place) {
  return *place;
}
