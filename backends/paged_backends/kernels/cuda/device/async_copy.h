// Copies from global to shared memory that a thread starts, and waits for later (cp.async, sm_80).
#pragma once

#include "simt.h"

/// Starts to copy `kBytes` (4, 8 or 16); zeros if not `is_there`, and then nothing is read.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool is_there) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  int bytes = is_there ? kBytes : 0;
  if constexpr (kBytes == 16)  // past the first cache, which would not be hit again
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
}

/// Ends a group of copies.
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for this thread's copies, but those of its last `kGroups` groups.
template <int kGroups>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
