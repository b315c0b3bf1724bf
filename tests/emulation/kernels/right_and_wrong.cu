// Kernels for tests of the shim: right ones, and each with one mistake.
#include "async_copy.h"
#include "tensor_core.h"

struct Numbers {
  float* data;  // [size]
  int size;
};

/// Shared memory of every kernel here.
struct Shared {
  alignas(16) float at[64];
  float more[64];
};

#define KERNEL(name) SIMT_KERNEL(name, Numbers, 64, 1, sizeof(Shared), 0)
#define SHARED() SIMT_SHARED(Shared, shared)

// ------------------------------------------------------------------ right

/// Thread after thread, as they are run: each takes the next number.
KERNEL(order_of_threads) {
  int place = int(call.data[64]);
  call.data[64] = place + 1;
  call.data[place] = threadIdx.x;
}

KERNEL(reversed_by_shared_memory) {
  SHARED();
  shared.at[threadIdx.x] = call.data[threadIdx.x];
  __syncthreads();
  call.data[threadIdx.x] = shared.at[63 - threadIdx.x];
}

KERNEL(sums_of_warps) {
  float sum = call.data[threadIdx.x];
  for (int flip = 16; flip; flip /= 2) sum += __shfl_xor_sync(~0u, sum, flip);
  call.data[threadIdx.x] = __shfl_sync(~0u, sum + threadIdx.x % 32, 3);
}

KERNEL(halves_of_a_warp) {
  unsigned mask = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
  float value = call.data[threadIdx.x];
  if (mask == 0xffffu)
    value = __shfl_sync(mask, value, 0);
  else
    value = __shfl_sync(mask, value, 16);
  call.data[threadIdx.x] = value;
}

KERNEL(neighbours_in_a_warp) {
  SHARED();
  shared.at[threadIdx.x] = call.data[threadIdx.x];
  __syncwarp();
  call.data[threadIdx.x] = shared.at[threadIdx.x ^ 1];
}

KERNEL(two_groups_of_copies) {
  SHARED();
  bool is_mine = threadIdx.x < 16;
  int at = threadIdx.x % 16 * 4;
  if (is_mine) copy_async<16>(&shared.at[at], call.data + at, true);
  copy_commit();
  if (is_mine) copy_async<16>(&shared.more[at], call.data + at, threadIdx.x % 2 == 0);
  copy_commit();
  copy_wait<1>();
  __syncthreads();
  float value = shared.at[threadIdx.x];
  copy_wait<0>();
  __syncthreads();
  call.data[threadIdx.x] = value + 100 * shared.more[threadIdx.x];
}

/// To half and back, and to bfloat16 and back.
KERNEL(rounded) {
  for (int i = blockIdx.x * 64 + threadIdx.x; i < call.size / 2; i += gridDim.x * 64) {
    float value = call.data[i];
    call.data[i] = __half2float(__float2half_rn(value));
    call.data[call.size / 2 + i] = __bfloat162float(__float2bfloat16_rn(value));
  }
}

// ------------------------------------------------------------------ wrong, in any build

KERNEL(divergent_barrier) {
  if (threadIdx.x < 40) __syncthreads();
}
KERNEL(two_barriers) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}
KERNEL(lane_outside_mask) {
  if (threadIdx.x % 32 < 16) call.data[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
KERNEL(lane_not_in_its_mask) { call.data[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 0); }
KERNEL(lanes_that_never_come) {
  if (threadIdx.x % 32 < 16) call.data[threadIdx.x] = __shfl_sync(~0u, 1.0f, 0);
}
KERNEL(two_shuffles) {
  if (threadIdx.x % 2)
    call.data[threadIdx.x] = __shfl_sync(~0u, 1.0f, 0);
  else
    call.data[threadIdx.x] = __shfl_sync(~0u, 1.0f, 0);
}
KERNEL(masks_that_overlap) {
  unsigned mask = threadIdx.x % 2 ? ~0u : 0x55555555u | 2u;
  call.data[threadIdx.x] = __shfl_sync(mask, 1.0f, 0);
}
KERNEL(copy_never_waited_for) {
  SHARED();
  if (threadIdx.x == 0) copy_async<16>(shared.at, call.data, true);
  copy_commit();
}
KERNEL(copy_to_an_odd_place) {
  SHARED();
  if (threadIdx.x == 0) copy_async<16>(&shared.at[1], call.data, true);
  copy_wait<0>();
}
KERNEL(matrix_at_an_odd_place) {
  SHARED();
  unsigned to[4];
  load_matrices(to, &shared.at[1]);
}
KERNEL(rows_in_the_same_banks) {
  SHARED();
  shared.at[threadIdx.x] = shared.more[threadIdx.x] = 0;
  __syncthreads();
  unsigned to[4];
  load_matrices(to, threadIdx.x % 2 ? &shared.at[0] : &shared.more[0]);
}
SIMT_KERNEL(too_little_shared_memory, Numbers, 64, 1, 16, 0) {
  SHARED();
  shared.at[threadIdx.x] = 0;
}

// ------------------------------------------------------------------ what depends on an order

KERNEL(last_block) {
  if (threadIdx.x == 0) call.data[0] = blockIdx.x;
}
