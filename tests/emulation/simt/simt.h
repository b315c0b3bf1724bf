// CUDA as far as our kernels use it, run on the CPU: what a C++17 compiler finds in the place of
// kernels/cuda/device. One source of a kernel serves both.
//
// The blocks of a grid run one after another, and the threads of a block as fibers of one system
// thread, which change at barriers and at operations of a warp only (runtime.cpp). With SIMT_CHECK
// every access to memory is looked at (check.cpp).
#pragma once

#include "cuda_names.h"

#define SIMT_KERNEL(name, Call, threads, min_blocks, shared_bytes, rows)                         \
  extern "C" SIMT_EXPORT unsigned name##_geometry[4];                                            \
  unsigned name##_geometry[4] = {unsigned(threads), unsigned(shared_bytes), unsigned(rows),      \
                                 unsigned(sizeof(Call))};                                        \
  static void name(const Call& call);                                                            \
  static const simt::Registration name##_registration{                                           \
      #name, name##_geometry, [](const void* call) { name(*static_cast<const Call*>(call)); }};  \
  static void name(const Call& call)

#define SIMT_SHARED(Type, name) Type& name = *static_cast<Type*>(simt::shared(sizeof(Type)))
