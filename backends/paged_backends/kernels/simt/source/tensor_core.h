// Products of small matrices by a warp (mma.sync, ldmatrix; sm_80), as PTX and on the CPU. The
// layout of fragments is that of the PTX manual, "mma.m16n8k16" and "ldmatrix".
//
// Lane l of a warp; g = l / 4 and t = l % 4. Two numbers lie in each register.
//   A, 16 x 16:  rows g, g + 8, g, g + 8 and columns 2t, 2t, 2t + 8, 2t + 8 (and the next column)
//   B, 16 x 8:   rows 2t, 2t + 8 (and the next row), column g
//   C, 16 x 8:   floats; rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1
// C of two products side by side, rounded and packed in pairs, is an A.
#pragma once

#include "simt.h"

#if defined(__CUDACC__)

__device__ __forceinline__ void multiply_add(__half, float (&c)[4], const unsigned (&a)[4],
                                             unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(__nv_bfloat16, float (&c)[4], const unsigned (&a)[4],
                                             unsigned b0, unsigned b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// C += A B, in numbers of type T.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  multiply_add(T(), c, a, b0, b1);
}

/// Four 8 x 8 matrices of 2-byte numbers in shared memory; lane l names row l % 8 of matrix l / 8,
/// and gets the numbers 2t, 2t + 1 of row g of each.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
/// The same, transposed: the numbers g of rows 2t, 2t + 1.
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const void* row) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}

#else

namespace simt {

inline float as_float(__half it) { return __half2float(it); }
inline float as_float(__nv_bfloat16 it) { return __bfloat162float(it); }

/// Where a lane's fragments lie.
struct Fragments {
  float* c;
  const unsigned *a, *b;
};

/// The number at `which` of those packed in `words`.
template <class T>
SIMT_UNCHECKED float unpacked(const unsigned* words, int which) {
  return as_float(T{uint16_t(words[which / 2] >> which % 2 * 16)});
}

/// What the warp does when its last lane has come; `lanes` are the addresses of their Fragments.
template <class T>
SIMT_UNCHECKED void multiply_add_all(uint64_t* lanes) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Fragments& it = *reinterpret_cast<Fragments*>(lanes[lane]);
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 8; ++i)
      a[g + i / 2 % 2 * 8][t * 2 + i % 2 + i / 4 * 8] = unpacked<T>(it.a, i);
    for (int i = 0; i < 4; ++i) b[t * 2 + i % 2 + i / 2 * 8][g] = unpacked<T>(it.b, i);
    for (int i = 0; i < 4; ++i) c[g + i / 2 * 8][t * 2 + i % 2] = it.c[i];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane) {
    float* to = reinterpret_cast<Fragments*>(lanes[lane])->c;
    for (int i = 0; i < 4; ++i) to[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

struct MatrixRow {
  const char* row;
  unsigned* to;
};

template <bool kTransposed>
SIMT_UNCHECKED void load_all(uint64_t* lanes) {
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix)
      for (int i = 0; i < 2; ++i) {
        int row = lane / 4, column = lane % 4 * 2 + i;
        if (kTransposed) row = lane % 4 * 2 + i, column = lane / 4;
        const char* from = reinterpret_cast<MatrixRow*>(lanes[matrix * 8 + row])->row;
        unsigned* to = reinterpret_cast<MatrixRow*>(lanes[lane])->to + matrix;
        std::memcpy(reinterpret_cast<char*>(to) + i * 2, from + column * 2, 2);
      }
}

template <bool kTransposed>
void load(unsigned* to, const void* row, Where where) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fail(where, "a row of a matrix at %p", row);
  touch(row, 16, false, where);
  MatrixRow mine{static_cast<const char*>(row), to};
  meet(~0u, reinterpret_cast<uint64_t>(&mine), where, load_all<kTransposed>);
}

}  // namespace simt

template <class T>
void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, SIMT_WHERE) {
  unsigned b[2] = {b0, b1};
  simt::Fragments mine{c, a, b};
  simt::meet(~0u, reinterpret_cast<uint64_t>(&mine), where, simt::multiply_add_all<T>);
}
inline void load_matrices(unsigned (&to)[4], const void* row, SIMT_WHERE) {
  simt::load<false>(to, row, where);
}
inline void load_transposed(unsigned (&to)[4], const void* row, SIMT_WHERE) {
  simt::load<true>(to, row, where);
}

#endif
