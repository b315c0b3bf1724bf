// Products of two matrices by a warp. In `product` fragments are laid out by strides as NVIDIA's
// CuTe states them for SM80_16x8x16: a second source, independent of the comments of tensor_core.h.
#include "tensor_core.h"

/// C[16, columns] += A[16, 16] B[columns, 16]^T; `other` is C again.
struct Matrices {
  const void *a, *b;
  float *c, *other;
};

template <class T>
__device__ __forceinline__ unsigned two(const T* numbers, int first, int second) {
  T pair[2] = {numbers[first], numbers[second]};
  unsigned word;
  memcpy(&word, pair, 4);
  return word;
}

template <class T>
__device__ __forceinline__ void product(const Matrices& call) {
  const T *a = static_cast<const T*>(call.a), *b = static_cast<const T*>(call.b);
  int t = threadIdx.x % 4, g = threadIdx.x / 4;
  unsigned a_words[4], b_words[2];
  for (int i = 0; i < 4; ++i) {  // (T32, V8) -> (m + 16 k): ((32, 1), (16, 8, 128))
    int at = t * 32 + g + i % 2 * 8 + i / 2 * 128, next = at + 16;
    a_words[i] = two(a, at % 16 * 16 + at / 16, next % 16 * 16 + next / 16);
  }
  for (int i = 0; i < 2; ++i) {  // (T32, V4) -> (n + 8 k): ((16, 1), (8, 64))
    int at = t * 16 + g + i * 64, next = at + 8;
    b_words[i] = two(b, at % 8 * 16 + at / 8, next % 8 * 16 + next / 8);
  }
  float sums[4] = {};
  multiply_add<T>(sums, a_words, b_words[0], b_words[1]);
  for (int i = 0; i < 4; ++i) {  // (T32, V4) -> (m + 16 n): ((32, 1), (16, 8))
    int at = t * 32 + g + i % 2 * 16 + i / 2 * 8;
    call.c[at % 16 * 8 + at / 16] = sums[i];
  }
}

SIMT_KERNEL(product_bfloat16, Matrices, 32, 1, 0, 0) { product<__nv_bfloat16>(call); }
SIMT_KERNEL(product_float16, Matrices, 32, 1, 0, 0) { product<__half>(call); }

/// Fragments from shared memory, as tiles.h loads them: of B by load_matrices, and for `other`
/// by load_transposed from its transpose.
struct Shared {
  alignas(16) __nv_bfloat16 a[16][24], b[16][24], transposed[16][24];
};

__device__ __forceinline__ void multiply(float* c, const unsigned (&a)[4], const unsigned (&b)[4]) {
  float sums[2][4] = {};
  multiply_add<__nv_bfloat16>(sums[0], a, b[0], b[1]);
  multiply_add<__nv_bfloat16>(sums[1], a, b[2], b[3]);
  int t = threadIdx.x % 4, g = threadIdx.x / 4;
  for (int j = 0; j < 2; ++j)
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 16 + j * 8 + t * 2 + i % 2] = sums[j][i];
}

SIMT_KERNEL(product_from_shared_memory, Matrices, 32, 1, sizeof(Shared), 0) {
  SIMT_SHARED(Shared, shared);
  int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) {
    shared.a[i / 16][i % 16] = static_cast<const __nv_bfloat16*>(call.a)[i];
    shared.b[i / 16][i % 16] = static_cast<const __nv_bfloat16*>(call.b)[i];
    shared.transposed[i % 16][i / 16] = static_cast<const __nv_bfloat16*>(call.b)[i];
  }
  __syncthreads();
  unsigned a[4], b[4];
  load_matrices(a, &shared.a[lane % 16][lane / 16 * 8]);
  load_matrices(b, &shared.b[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
  multiply(call.c, a, b);
  load_transposed(b, &shared.transposed[lane % 16][lane / 16 * 8]);
  multiply(call.other, a, b);
}
