// What runtime.cpp knows of the launch and the block that run, for check.cpp.
#pragma once

#include <vector>

#include "fiber.h"
#include "runtime.h"

namespace simt {

constexpr size_t kMaxThreads = 1024;
/// Shared memory that a block may have on an H100.
constexpr size_t kMaxShared = 227 << 10;

/// How many barriers of its block, and since the last of them of its warp, a thread has passed.
struct Clock {
  uint16_t block = 0, warp = 0;
};

struct State {
  char* stacks = nullptr;  // of kMaxThreads fibers
  char* shared = nullptr;
  size_t shared_bytes = 0;
  const void* call = nullptr;  // the kernel's argument
  size_t call_bytes = 0;
  const void* threads = nullptr;  // where threadIdx lies
  size_t threads_bytes = 0;
  std::vector<Clock> clocks;
  /// How often each thread has shown products what it wrote, until now and before the last barrier.
  std::vector<uint32_t> shown, shown_before;
  uint32_t launch_serial = 0, block_serial = 0;
};
extern State state;

/// Products of warpgroups (warpgroup.cpp), before the threads of a block run and after they ended.
void begin_products();
void end_products();

/// A product reads shared memory: see touch().
void touch_by_product(const void* address, size_t bytes, Where where);

/// Forgets that shared memory was written: nothing may read it until it is written again.
void undefine(const void* address, size_t bytes, Where where);

}  // namespace simt
