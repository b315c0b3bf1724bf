// Products of a warpgroup: C [64, 64] of A [64, 128] and B [64, 128], numbers of k in rows, from shared
// memory; and the other [64, 128] of A [64, 64] in registers and V [64, 128], transposed.
#include "warpgroup_tiles.h"

struct Matrices {
  const void *a, *b;
  float *c, *other;
};

template <class T>
struct Shared {
  SwizzledRows<T, 64, 128> a, b;
};

template <class T>
__device__ __forceinline__ void fill(SwizzledRows<T, 64, 128>& to, const void* from) {
  for (int i = threadIdx.x; i < 64 * 16; i += 128) {
    Piece<T> piece = Piece<T>::load(static_cast<const T*>(from) + i * 8);
    piece.store(to.piece(i / 16, i % 16 * 8));
  }
}

template <int kColumns>
__device__ __forceinline__ void store(float* to, const float (&c)[kColumns][4]) {
  int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int j = 0; j < kColumns; ++j)
    for (int i = 0; i < 4; ++i)
      to[(row + i / 2 * 8) * kColumns * 8 + j * 8 + column + i % 2] = c[j][i];
}

template <class T>
__device__ __forceinline__ void multiply(const Matrices& call, Shared<T>& shared) {
  fill(shared.a, call.a), fill(shared.b, call.b);
  show_products();
  __syncthreads();
  float c[8][4], other[16][4] = {};
  SharedMatrix a = SharedMatrix::at(shared.a.at), b = SharedMatrix::at(shared.b.at);
  hand_over(c);
#pragma unroll
  for (int k = 0; k < 128; k += 16)
    start_product<T>(c, a.plus(k / 64 * 64 * 128 + k % 64 * 2),
                     b.plus(k / 64 * 64 * 128 + k % 64 * 2), k > 0);
  commit_products();
  unsigned held[4][4];
  const T* rows = static_cast<const T*>(call.a);
  int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      memcpy(&held[step][i], rows + (row + i % 2 * 8) * 128 + step * 16 + column + i / 2 * 8, 4);
  SharedMatrix v = SharedMatrix::at(shared.b.at, 64 * 128);
  hand_over(other, held);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    start_product<T>(other, held[step], v.plus(step * 16 * 128));
  commit_products();
  wait_for_products<1>(c);
  store(call.c, c);
  wait_for_products<0>(other, held);
  store(call.other, other);
}

SIMT_KERNEL(products_bfloat16, Matrices, 128, 1, sizeof(Shared<__nv_bfloat16>), 0) {
  SIMT_SHARED(Shared<__nv_bfloat16>, shared);
  multiply(call, shared);
}
SIMT_KERNEL(products_float16, Matrices, 128, 1, sizeof(Shared<__half>), 0) {
  SIMT_SHARED(Shared<__half>, shared);
  multiply(call, shared);
}
