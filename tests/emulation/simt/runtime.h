// What runtime.cpp does for kernels on the CPU, and what cuda_names.h makes CUDA's names of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#define SIMT_EXPORT __attribute__((visibility("default")))
/// A function whose accesses are not looked at: it stands for hardware.
#define SIMT_UNCHECKED __attribute__((no_sanitize("thread")))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace simt {

struct Thread {
  uint3 index;
  unsigned lane, warp;
};
extern Thread* self;
extern uint3 block_index;
extern dim3 grid_size;

/// A place in the sources.
struct Where {
  const char* file;
  int line;
};
/// Last parameter of a function: the place where it is called.
#define SIMT_WHERE simt::Where where = {__builtin_FILE(), __builtin_LINE()}

/// Makes a kernel known to simt_launch. `geometry`: threads, shared bytes, rows, bytes of its
/// struct.
struct Registration {
  Registration(const char* name, const unsigned (&geometry)[4], void (*body)(const void* call));
};

/// Ends the launch, which returns an error; simt_error() returns the message.
[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(Where where, const char* format, ...);

/// The block's shared memory.
void* shared(size_t bytes);

void barrier(Where where);

/// Waits until all lanes of `mask` have come to this operation; returns the values of all lanes,
/// valid until the next one. The last to come calls `work` on them first.
using Values = const uint64_t*;
Values meet(unsigned mask, uint64_t value, Where where, void (*work)(uint64_t*) = nullptr);
void sync_warp(unsigned mask, Where where);

/// Starts a copy of `size` bytes to shared memory, the first `bytes` of which are read, and the
/// others zero. They are there when the thread has waited for them, and until then poison is.
void async_copy(void* to, const void* from, int bytes, int size, Where where);
void async_commit();
void async_wait(int groups_left);

/// An access that the compiler does not see.
void touch(const void* address, size_t bytes, bool is_write, Where where);

template <class To, class From>
inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "another size");
  To out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

template <class T>
SIMT_UNCHECKED T from_lane(unsigned mask, T value, unsigned lane, Where where) {
  static_assert(sizeof(T) <= 8, "more than a register holds");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  Values all = meet(mask, word, where);
  if (!(mask >> lane & 1)) fail(where, "lane %u is read, and is not in mask %x", lane, mask);
  std::memcpy(&value, &all[lane], sizeof value);
  return value;
}

}  // namespace simt
