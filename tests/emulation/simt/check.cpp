// Looks at every access that a kernel makes. Kernels are compiled with -fsanitize=thread,alignment,
// bounds,signed-integer-overflow: the compiler then calls the functions below, and no library of the sanitizers is linked,
// so that a plain Python can load the result.
//
// Found are accesses outside of every buffer that was declared, of shared memory and of the
// thread's own stack; shared memory that is read before it was written; two threads' accesses to a
// byte, one of which writes, with no barrier between; addresses that are not aligned; indices
// outside of an array; sums and products of ints beyond 32 bits. Of several threads that read a byte
// since a barrier, enough are known that one of them is not the thread that writes it.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "state.h"

extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;  // this library

namespace simt {
namespace {

/// Who has last written or read a byte; its serial is that of the launch or, of shared memory, of
/// the block, and 0 if there is none.
struct Access {
  uint32_t serial, block;
  uint32_t shown;  // of the thread: what it had shown to products before
  uint16_t thread;
  Clock clock;
};
struct Byte {
  Access write, read;
  Access mate, foreign;  // the last reads by another lane of the reader's warp, and another warp
};

/// What is known of each byte of a piece of memory, zeros at first.
class Record {
 public:
  explicit Record(size_t bytes)
      : bytes_(static_cast<Byte*>(std::calloc(bytes + 1, sizeof(Byte))), std::free) {}
  Byte* operator+(size_t at) const { return bytes_.get() + at; }

 private:
  std::unique_ptr<Byte, void (*)(void*)> bytes_;
};

struct Buffer {
  std::string name;
  const char *begin, *end;
  Record record;
};

std::vector<Buffer> buffers;
Record shared_record(kMaxShared);

/// An access: where it is in the sources is looked up only if something is wrong with it.
struct Look {
  const char* at;
  size_t bytes;
  bool is_write;
  const void* caller;
  Where where;

  const char* verb() const { return is_write ? "written" : "read"; }
  bool is_within(const void* begin, size_t size) const {
    return at >= begin && at < static_cast<const char*>(begin) + size;
  }
};

/// The line that `caller` was compiled from, as the debug information says.
Where find_line(const void* caller) {
  static char text[400];
  Dl_info info;
  if (!dladdr(caller, &info) || !info.dli_fname) return {"?", 0};
  char command[600];
  size_t offset = static_cast<const char*>(caller) - static_cast<char*>(info.dli_fbase) - 1;
  std::snprintf(command, sizeof command, "addr2line -s -e '%s' 0x%zx", info.dli_fname, offset);
  FILE* pipe = popen(command, "r");
  if (!pipe) return {"?", 0};
  bool is_read = std::fgets(text, sizeof text, pipe);
  pclose(pipe);
  char* colon = is_read ? std::strrchr(text, ':') : nullptr;
  if (!colon) return {"?", 0};
  *colon = 0;
  return {text, std::atoi(colon + 1)};
}

Where place(const Look& look) { return look.caller ? find_line(look.caller) : look.where; }

bool is_ordered(const Access& before, const Access& now, bool is_shared) {
  if (!is_shared && before.block != now.block) return false;
  if (before.thread == now.thread || before.clock.block != now.clock.block) return true;
  return before.thread / 32 == now.thread / 32 && before.clock.warp < now.clock.warp;
}

void look_at_byte(Byte& byte, const Access& now, const Look& look, bool is_shared, const char* name,
                  size_t at) {
  bool was_written = byte.write.serial == now.serial;
  if (is_shared && !look.is_write && !was_written)
    fail(place(look), "byte %zu of %s is read, and was never written", at, name);
  if (was_written && !is_ordered(byte.write, now, is_shared))
    fail(place(look), "byte %zu of %s is %s, and thread %u of block %u has written it with no "
         "barrier between", at, name, look.verb(), byte.write.thread, byte.write.block);
  for (const Access& read : {byte.read, byte.mate, byte.foreign})
    if (look.is_write && read.serial == now.serial && !is_ordered(read, now, is_shared))
      fail(place(look), "byte %zu of %s is written, and thread %u of block %u has read it with no "
           "barrier between", at, name, read.thread, read.block);
  if (look.is_write) {
    byte.write = now;
    return;
  }
  if (byte.read.block != now.block || byte.read.thread / 32 != now.thread / 32)
    byte.foreign = byte.read;
  else if (byte.read.thread != now.thread)
    byte.mate = byte.read;
  byte.read = now;
}

void look_at_bytes(Byte* bytes, const Access& now, const Look& look, bool is_shared,
                   const char* name, size_t at) {
  for (size_t i = 0; i < look.bytes; ++i)
    look_at_byte(bytes[i], now, look, is_shared, name, at + i);
}

[[noreturn]] void fail_outside(const Look& look) {
  const Buffer* nearest = nullptr;
  for (Buffer& buffer : buffers)
    if (buffer.begin <= look.at && (!nearest || buffer.begin > nearest->begin)) nearest = &buffer;
  if (!nearest)
    fail(place(look), "%zu B at %p are %s, and no buffer is there", look.bytes, look.at,
         look.verb());
  fail(place(look), "%zu B are %s %td B beyond the end of %s", look.bytes, look.verb(),
       look.at + look.bytes - nearest->end, nearest->name.c_str());
}

void look_at(const Look& look) {
  if (!self) return;
  unsigned thread = self->index.x;
  if (look.is_within(state.stacks, kStack * kMaxThreads)) {
    if (look.is_within(state.stacks + thread * kStack, kStack)) return;
    fail(place(look), "the stack of another thread is %s", look.verb());
  }
  unsigned block = (block_index.z * grid_size.y + block_index.y) * grid_size.x + block_index.x;
  Access now{state.launch_serial, block, state.shown[thread], uint16_t(thread),
             state.clocks[thread]};
  if (look.is_within(state.shared, kMaxShared)) {
    now.serial = state.block_serial;
    size_t at = look.at - state.shared;
    if (at + look.bytes > state.shared_bytes)
      fail(place(look), "%zu B are %s beyond the end of shared memory", look.bytes, look.verb());
    return look_at_bytes(shared_record + at, now, look, true, "shared memory", at);
  }
  for (Buffer& buffer : buffers)
    if (look.at >= buffer.begin && look.at + look.bytes <= buffer.end) {
      size_t at = look.at - buffer.begin;
      return look_at_bytes(buffer.record + at, now, look, false, buffer.name.c_str(), at);
    }
  if (!look.is_write) {
    if (look.is_within(&__ehdr_start, &_end - &__ehdr_start)) return;  // constants
    if (look.is_within(state.call, state.call_bytes)) return;
    if (look.is_within(state.threads, state.threads_bytes)) return;
  }
  fail_outside(look);
}

}  // namespace

void touch(const void* address, size_t bytes, bool is_write, Where where) {
  look_at({static_cast<const char*>(address), bytes, is_write, nullptr, where});
}

void touch_by_product(const void* address, size_t bytes, Where where) {
  touch(address, bytes, false, where);
  size_t at = static_cast<const char*>(address) - state.shared;
  for (size_t i = at; i < at + bytes; ++i) {
    const Access& write = (shared_record + i)->write;
    const auto& shown = write.thread == self->index.x ? state.shown : state.shown_before;
    if (shown[write.thread] == write.shown)
      fail(where, "byte %zu of shared memory is read by a product, and thread %u has written it "
           "and not shown it to products", i, write.thread);
  }
}

void undefine(const void* address, size_t bytes, Where where) {
  touch(address, bytes, true, where);
  size_t at = static_cast<const char*>(address) - state.shared;
  for (size_t i = 0; i < bytes; ++i) (shared_record + at + i)->write.serial = 0;
}

}  // namespace simt

// ------------------------------------------------------------------ what Python calls

extern "C" SIMT_EXPORT int simt_is_checked() { return 1; }

/// Tells of a buffer that kernels may use from now on.
extern "C" SIMT_EXPORT void simt_declare(const char* name, const void* begin, size_t bytes) {
  const char* at = static_cast<const char*>(begin);
  simt::buffers.push_back({name, at, at + bytes, simt::Record(bytes)});
}

extern "C" SIMT_EXPORT void simt_forget() { simt::buffers.clear(); }

// ------------------------------------------------------------------ what the compiler calls

#define SIMT_HOOK(name, size, is_write)                                               \
  extern "C" SIMT_EXPORT void __tsan_##name(void* at) {                               \
    simt::look_at({static_cast<char*>(at), size, is_write, __builtin_return_address(0), {}}); \
  }
#define SIMT_HOOKS(size)                          \
  SIMT_HOOK(read##size, size, false)              \
  SIMT_HOOK(write##size, size, true)              \
  SIMT_HOOK(unaligned_read##size, size, false)    \
  SIMT_HOOK(unaligned_write##size, size, true)
SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)

extern "C" SIMT_EXPORT void __tsan_read_range(void* at, unsigned long size) {
  simt::look_at({static_cast<char*>(at), size, false, __builtin_return_address(0), {}});
}
extern "C" SIMT_EXPORT void __tsan_write_range(void* at, unsigned long size) {
  simt::look_at({static_cast<char*>(at), size, true, __builtin_return_address(0), {}});
}
extern "C" SIMT_EXPORT void __tsan_init() {}
extern "C" SIMT_EXPORT void __tsan_func_entry(void*) {}
extern "C" SIMT_EXPORT void __tsan_func_exit() {}

namespace {
struct Location {
  const char* file;
  int line, column;
};
struct Mismatch {
  Location location;
  const void* type;
  unsigned char log_alignment, kind;
};
}  // namespace

extern "C" SIMT_EXPORT void __ubsan_handle_type_mismatch_v1(Mismatch* what, unsigned long address) {
  if (simt::self)
    simt::fail({what->location.file, what->location.line}, "address %#lx is not a multiple of %u",
               address, 1u << what->log_alignment);
}
extern "C" SIMT_EXPORT void __ubsan_handle_out_of_bounds(Location* location, unsigned long index) {
  if (simt::self)
    simt::fail({location->file, location->line}, "index %ld is outside of its array", long(index));
}

namespace {
[[noreturn]] void fail_beyond(Location* location, const char* what, unsigned long a,
                              unsigned long b) {
  simt::fail({location->file, location->line}, "a %s of %d and %d has more than 32 bits", what,
             int(a), int(b));
}
}  // namespace

#define SIMT_OVERFLOW(name, what)                                                             \
  extern "C" SIMT_EXPORT void __ubsan_handle_##name##_overflow(Location* where, unsigned long a, \
                                                               unsigned long b) {             \
    if (simt::self) fail_beyond(where, what, a, b);                                           \
  }
SIMT_OVERFLOW(add, "sum")
SIMT_OVERFLOW(sub, "difference")
SIMT_OVERFLOW(mul, "product")
SIMT_OVERFLOW(divrem, "quotient")
extern "C" SIMT_EXPORT void __ubsan_handle_negate_overflow(Location* where, unsigned long a) {
  if (simt::self) fail_beyond(where, "difference", 0, a);
}
