// Products of larger matrices by a warpgroup, four warps whose first is a multiple of four (wgmma;
// sm_90a), as PTX and on the CPU (warpgroup.cpp). They read shared memory on their own, and end when
// they are waited for. The layouts are those of the PTX manual, "Asynchronous Warpgroup Level
// Matrix Multiply-Accumulate Instructions".
//
// A is 64 x 16, B 16 x 8n, C 64 x 8n; a warp has 16 rows of C, and of A if it is in registers, as
// fragments of tensor_core.h. In shared memory, pieces of 8 numbers lie in rows of 128 bytes, eight
// of which are an atom of 1,024 bytes; piece p of row r is at place p ^ r % 8 of its row.
#pragma once

#include "simt.h"

#if defined(__CUDACC__)
__device__ __forceinline__ unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
#else
/// As on a GPU, whose driver has the first KiB to itself.
inline unsigned shared_address(const void* place) {
  return unsigned(static_cast<const char*>(place) - static_cast<char*>(simt::shared(0))) + 1024;
}
#endif

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

#if defined(__CUDACC__)

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

#else

namespace simt {

/// A product as a lane starts it. Of C the lane has `columns` / 8 times four numbers.
struct Product {
  float* c;
  const unsigned* a;  // of the lane, or null
  SharedMatrix shared_a, shared_b;
  int columns;
  bool is_transposed, adds;
  float (*widen)(uint16_t);
};
void start(const Product& product, Where where);
/// Registers of a lane that are handed over, or taken back.
struct Registers {
  const void* at;
  size_t bytes;
};
void hand_over(const Registers* registers, int count, Where where);
void commit(Where where);
void wait_for(int groups_left, const Registers* registers, int count, Where where);
void show(Where where);

inline float widened(__half, uint16_t word) { return __half2float({word}); }
inline float widened(__nv_bfloat16, uint16_t word) { return __bfloat162float({word}); }

}  // namespace simt

template <class T>
void start_product(float (&c)[8][4], SharedMatrix a, SharedMatrix b, bool adds, SIMT_WHERE) {
  simt::start({c[0], nullptr, a, b, 64, false, adds,
               [](uint16_t word) { return simt::widened(T(), word); }}, where);
}
template <class T, int kColumns>
void start_product(float (&c)[kColumns][4], const unsigned (&a)[4], SharedMatrix b, SIMT_WHERE) {
  simt::start({c[0], a, {}, b, kColumns * 8, true, true,
               [](uint16_t word) { return simt::widened(T(), word); }}, where);
}
template <class... Arrays>
void hand_over(Arrays&... arrays) {
  simt::Registers all[] = {{arrays, sizeof arrays}...};
  simt::hand_over(all, sizeof...(arrays), {"hand_over", 0});
}
inline void commit_products(SIMT_WHERE) { simt::commit(where); }
template <int kGroups, class... Arrays>
void wait_for_products(Arrays&... arrays) {
  simt::Registers all[] = {{arrays, sizeof arrays}...};
  simt::wait_for(kGroups, all, sizeof...(arrays), {"wait_for_products", 1});
}
inline void show_products(SIMT_WHERE) { simt::show(where); }

#endif
