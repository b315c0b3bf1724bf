// Products of small matrices by a warp (mma.sync, ldmatrix; sm_80), as PTX. The layout
// of fragments is that of the PTX manual, "mma.m16n8k16" and "ldmatrix".
//
// Lane l of a warp; g = l / 4 and t = l % 4. Two numbers lie in each register.
//   A, 16 x 16:  rows g, g + 8, g, g + 8 and columns 2t, 2t, 2t + 8, 2t + 8 (and the next column)
//   B, 16 x 8:   rows 2t, 2t + 8 (and the next row), column g
//   C, 16 x 8:   floats; rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1
// C of two products side by side, rounded and packed in pairs, is an A.
#pragma once

#include "simt.h"

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
