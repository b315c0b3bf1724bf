// CUDA as a kernel includes it, under nvcc and NVRTC. The files of this folder are all that a kernel
// takes from outside its own: with others of the same names it is compiled for another machine.
//
// A kernel is defined by SIMT_KERNEL and takes one struct, named `call`; its shared memory is what
// SIMT_SHARED names. Other than that it is CUDA.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDACC_RTC__)  // NVRTC brings no headers of the system
#define INFINITY __int_as_float(0x7f800000)
#endif

/// Defines kernel `name`, launched with so many `threads` and bytes of shared memory, at least
/// `min_blocks` of them on a multiprocessor. `name_geometry` tells the host what to launch it with;
/// `rows` is for the kernel's own use.
#define SIMT_KERNEL(name, Call, threads, min_blocks, shared_bytes, rows)                        \
  extern "C" __device__ unsigned name##_geometry[4] = {unsigned(threads), unsigned(shared_bytes), \
                                                       unsigned(rows), unsigned(sizeof(Call))}; \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks)                             \
      name(const __grid_constant__ Call call)

/// The block's shared memory, as a `Type`; it begins at an atom of warpgroup.h.
#define SIMT_SHARED(Type, name)                                   \
  extern __shared__ __align__(1024) unsigned char simt_dynamic[]; \
  Type& name = *reinterpret_cast<Type*>(simt_dynamic)
