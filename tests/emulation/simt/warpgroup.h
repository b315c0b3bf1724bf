// Products of warpgroups on the CPU (warpgroup.cpp): what kernels/cuda/device/warpgroup.h has for a
// GPU.
#pragma once

#include "simt.h"

/// As on a GPU, whose driver has the first KiB to itself.
inline unsigned shared_address(const void* place) {
  return unsigned(static_cast<const char*>(place) - static_cast<char*>(simt::shared(0))) + 1024;
}

#include "swizzle.h"

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
