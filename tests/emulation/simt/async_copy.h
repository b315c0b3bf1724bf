// Copies from global to shared memory that a thread starts, and waits for later, on the CPU.
#pragma once

#include "simt.h"

template <int kBytes>
void copy_async(void* to, const void* from, bool is_there, SIMT_WHERE) {
  simt::async_copy(to, from, is_there ? kBytes : 0, kBytes, where);
}
inline void copy_commit() { simt::async_commit(); }
template <int kGroups>
void copy_wait() {
  simt::async_wait(kGroups);
}
