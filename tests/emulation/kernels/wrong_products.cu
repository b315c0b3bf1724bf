// Products of warpgroups with a mistake each; `right` has none.
#include "warpgroup_tiles.h"

struct Numbers {
  float* data;
};
struct Shared {
  SwizzledRows<__nv_bfloat16, 64, 64> at;
};
using T = __nv_bfloat16;

#define KERNEL(name) SIMT_KERNEL(name, Numbers, 128, 1, sizeof(Shared), 0)
#define BEGIN()                                                                      \
  SIMT_SHARED(Shared, shared);                                                       \
  float c[8][4] = {};                                                                \
  unsigned a[4] = {};                                                                \
  SharedMatrix b = SharedMatrix::at(shared.at.at);                                   \
  for (int i = 0; i < 16; ++i)                                                       \
    reinterpret_cast<unsigned*>(shared.at.at)[i * 128 + threadIdx.x] = 0x3f803f80;

KERNEL(right) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  start_product<T>(c, b, b, true);
  commit_products();
  wait_for_products<0>(c, a);
  call.data[threadIdx.x] = c[0][0];
}
KERNEL(not_shown) {
  BEGIN();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(c, a);
}
KERNEL(shown_after_the_barrier) {
  BEGIN();
  __syncthreads();
  show_products();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(c, a);
}
KERNEL(no_barrier) {
  BEGIN();
  show_products();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(c, a);
}
KERNEL(not_handed_over) {
  BEGIN();
  show_products();
  __syncthreads();
  start_product<T>(c, b, b, false);
  commit_products();
  wait_for_products<0>(c);
}
KERNEL(changed_after_it_was_handed_over) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  a[1] = 1;
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(c, a);
}
KERNEL(not_handed_over_again) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(c, a);
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(c, a);
}
KERNEL(result_read_too_soon) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  for (int i = 0; i < 4; ++i) c[0][i] *= 2;
  wait_for_products<0>(c, a);
}
KERNEL(never_committed) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  wait_for_products<0>(c, a);
}
KERNEL(never_waited_for) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
}
KERNEL(weights_changed_too_soon) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  a[0] = 1;
  wait_for_products<0>(c, a);
}
KERNEL(not_taken_back) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(a);
}
KERNEL(overwritten_too_soon) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  __syncthreads();
  reinterpret_cast<unsigned*>(shared.at.at)[threadIdx.x] = 0;
  wait_for_products<0>(c, a);
}
KERNEL(beyond_shared_memory) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b.plus(7 * 1024));
  commit_products();
  wait_for_products<0>(c, a);
}
KERNEL(different_warps) {
  BEGIN();
  show_products();
  __syncthreads();
  hand_over(c, a);
  start_product<T>(c, a, b.plus(threadIdx.x / 64 * 1024));
  commit_products();
  wait_for_products<0>(c, a);
}
KERNEL(a_warp_alone) {
  BEGIN();
  show_products();
  __syncthreads();
  if (threadIdx.x >= 32) return;
  hand_over(c, a);
  start_product<T>(c, a, b);
  commit_products();
  wait_for_products<0>(c, a);
}
