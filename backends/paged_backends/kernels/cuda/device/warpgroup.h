// Products of larger matrices by a warpgroup, four warps whose first is a multiple of four (wgmma;
// sm_90a), as PTX. They read shared memory on their own, and end when they are waited for. The
// layouts are those of the PTX manual, "Asynchronous Warpgroup Level
// Matrix Multiply-Accumulate Instructions".
//
// A is 64 x 16, B 16 x 8n, C 64 x 8n; a warp has 16 rows of C, and of A if it is in registers, as
// fragments of tensor_core.h.
#pragma once

#include "simt.h"

__device__ __forceinline__ unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

#include "swizzle.h"

#define SIMT_NAMES_32                                                      \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19," \
  "%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define SIMT_NAMES_64                                                        \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,"   \
  "%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37," \
  "%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
  "%56,%57,%58,%59,%60,%61,%62,%63"
#define SIMT_PLACES_4(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define SIMT_PLACES_16(c, j) \
  SIMT_PLACES_4(c[j]), SIMT_PLACES_4(c[j + 1]), SIMT_PLACES_4(c[j + 2]), SIMT_PLACES_4(c[j + 3])
#define SIMT_PLACES_32(c) SIMT_PLACES_16(c, 0), SIMT_PLACES_16(c, 4)
#define SIMT_PLACES_64(c) SIMT_PLACES_32(c), SIMT_PLACES_16(c, 8), SIMT_PLACES_16(c, 12)

#define SIMT_PRODUCTS(T, type)                                                                     \
  __device__ __forceinline__ void product(T, float (&c)[8][4], SharedMatrix a, SharedMatrix b,     \
                                          bool adds) {                                             \
    asm volatile(                                                                                  \
        "{ .reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %34, 0; "                                  \
        "mov.b64 a, {%32, %35}; mov.b64 b, {%33, %35}; "                                           \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" SIMT_NAMES_32             \
        "}, a, b, p, 1, 1, 0, 0; }"                                                                \
        : SIMT_PLACES_32(c)                                                                        \
        : "r"(a.lower), "r"(b.lower), "r"(int(adds)), "n"(SharedMatrix::kUpper));                  \
  }                                                                                                \
  __device__ __forceinline__ void product(T, float (&c)[8][4], const unsigned (&a)[4],             \
                                          SharedMatrix b) {                                        \
    asm volatile(                                                                                  \
        "{ .reg .pred p; .reg .b64 b; setp.eq.b32 p, 0, 0; mov.b64 b, {%36, %37}; "                \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" SIMT_NAMES_32             \
        "}, {%32,%33,%34,%35}, b, p, 1, 1, 1; }"                                                   \
        : SIMT_PLACES_32(c)                                                                        \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.lower), "n"(SharedMatrix::kUpper));    \
  }                                                                                                \
  __device__ __forceinline__ void product(T, float (&c)[16][4], const unsigned (&a)[4],            \
                                          SharedMatrix b) {                                        \
    asm volatile(                                                                                  \
        "{ .reg .pred p; .reg .b64 b; setp.eq.b32 p, 0, 0; mov.b64 b, {%68, %69}; "                \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" SIMT_NAMES_64            \
        "}, {%64,%65,%66,%67}, b, p, 1, 1, 1; }"                                                   \
        : SIMT_PLACES_64(c)                                                                        \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.lower), "n"(SharedMatrix::kUpper));    \
  }
SIMT_PRODUCTS(__nv_bfloat16, "bf16")
SIMT_PRODUCTS(__half, "f16")

/// Starts C (+)= A B, C having 64 columns, of rows of A and B that are k; C is 0 if not `adds`.
template <class T>
__device__ __forceinline__ void start_product(float (&c)[8][4], SharedMatrix a, SharedMatrix b,
                                              bool adds) {
  product(T(), c, a, b, adds);
}
/// Starts C += A B, where B is transposed, and C has 64 or 128 columns.
template <class T, int kColumns>
__device__ __forceinline__ void start_product(float (&c)[kColumns][4], const unsigned (&a)[4],
                                              SharedMatrix b) {
  product(T(), c, a, b);
}

/// Nothing that is computed with these registers is moved across.
template <int kRows, int kCount>
__device__ __forceinline__ void settle(float (&registers)[kRows][kCount]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[row][i])::"memory");
}
template <int kRows, int kCount>
__device__ __forceinline__ void settle(unsigned (&registers)[kRows][kCount]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[row][i])::"memory");
}

/// Hands registers over to products: all that they use, unless products use them already.
template <class... Registers>
__device__ __forceinline__ void hand_over(Registers&... registers) {
  (settle(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Ends a group of products.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all products but those of the last `kGroups` groups, and takes registers back.
template <int kGroups, class... Registers>
__device__ __forceinline__ void wait_for_products(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
  (settle(registers), ...);
}
/// Shows products what this thread has written to shared memory.
__device__ __forceinline__ void show_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
