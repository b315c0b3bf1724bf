// Runs kernels on the CPU: fibers, barriers, operations of a warp, copies in flight.
#include "runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "state.h"

namespace simt {

Thread* self;
uint3 block_index;
dim3 grid_size;
State state;

namespace {

struct Copy {
  void* to;
  const void* from;
  int bytes, size, group;
  Where where;
};

struct Fiber : Thread {
  Context context;
  int group = 0;  // of copies: those that are committed
  std::vector<Copy> copies;
};

/// Where some lanes of a warp come together, again and again. There are two sets of values, because
/// a lane may come for the next time while others still read.
struct Meeting {
  unsigned mask = 0, arrived = 0, round = 0;
  Where where = {};
  uint64_t values[2][32] = {};
};

struct Warp {
  unsigned ready = 0;  // lanes that can go on, without the one that runs
  unsigned members = 0;
  std::deque<Meeting> meetings;
};

struct Kernel {
  const unsigned* geometry;
  void (*body)(const void*);
};

enum class Order { kUp, kDown, kByChance };

std::mutex lock;
Order order = Order::kUp;
uint64_t random_state = 1;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
Context launcher;
const Kernel* kernel;
unsigned at_barrier, ended;
Where barrier_where;
bool failed;
std::string message;

/// All kernels by name; made on first use, which may be before this file's own objects are.
std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

// ------------------------------------------------------------------ which thread runs

Fiber& me() { return *static_cast<Fiber*>(self); }

unsigned next_random(unsigned bound) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return unsigned((random_state >> 33) % bound);
}

unsigned choose_lane(unsigned ready) {
  if (order == Order::kUp) return __builtin_ctz(ready);
  if (order == Order::kDown) return 31 - __builtin_clz(ready);
  for (unsigned skipped = next_random(__builtin_popcount(ready)); skipped; --skipped)
    ready &= ready - 1;
  return __builtin_ctz(ready);
}

/// The next thread to run, or null if none can. A warp goes on as long as it can.
Fiber* pick() {
  unsigned count = unsigned(warps.size()), first = self->warp;
  if (order == Order::kByChance) first = next_random(count);
  for (unsigned i = 0; i < count; ++i) {
    unsigned at = (order == Order::kDown ? first + count - i : first + i) % count;
    if (unsigned ready = warps[at].ready) {
      unsigned lane = choose_lane(ready);
      warps[at].ready &= ~(1u << lane);
      return &fibers[at * 32 + lane];
    }
  }
  return nullptr;
}

[[noreturn]] void fail_stuck() {
  for (Warp& warp : warps)
    for (Meeting& meeting : warp.meetings)
      if (meeting.arrived)
        fail(meeting.where, "lanes %x of warp %d wait for lanes %x, which never come",
             meeting.arrived, int(&warp - warps.data()), meeting.mask & ~meeting.arrived);
  fail(barrier_where, "%u threads wait at a barrier that %u threads never reach", at_barrier,
       unsigned(fibers.size()) - at_barrier);
}

void resume(Fiber* next) {
  Context& left = me().context;
  self = next;
  left.leave_for(next->context);
}

void wait() {
  Fiber* next = pick();
  if (!next) fail_stuck();
  resume(next);
}

void run_thread() {
  kernel->body(state.call);
  if (!me().copies.empty()) fail(me().copies[0].where, "a copy is never waited for");
  ++ended;
  if (Fiber* next = pick()) resume(next);
  if (ended != fibers.size()) fail_stuck();
  end_products();
  me().context.leave_for(launcher);
  std::abort();  // nothing resumes a thread that has ended
}

// ------------------------------------------------------------------ a launch

void prepare_block() {
  at_barrier = ended = 0;
  ++state.block_serial;
  std::memset(state.shared, 0xff, state.shared_bytes);  // NaN, if read as it is
  for (size_t at = 0; at < fibers.size(); ++at) {
    Fiber& fiber = fibers[at];
    fiber.index = {unsigned(at), 0, 0};
    fiber.lane = unsigned(at % 32), fiber.warp = unsigned(at / 32);
    fiber.group = 0;
    fiber.copies.clear();
    fiber.context.start(state.stacks + at * kStack, run_thread);
  }
  for (size_t at = 0; at < warps.size(); ++at) {
    size_t lanes = std::min<size_t>(32, fibers.size() - at * 32);
    warps[at].members = warps[at].ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warps[at].meetings.clear();
  }
  state.clocks.assign(fibers.size(), Clock{});
  state.shown.assign(fibers.size(), 0);
  state.shown_before = state.shown;
  begin_products();
}

void run_block() {
  prepare_block();
  self = &fibers[0];
  self = pick();
  launcher.leave_for(me().context);
  self = nullptr;
}

void run_grid(dim3 grid) {
  uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  for (uint64_t at = 0; at < blocks && !failed; ++at) {
    uint64_t left = order == Order::kDown ? blocks - 1 - at : at;
    block_index.x = unsigned(left % grid.x), left /= grid.x;
    block_index.y = unsigned(left % grid.y), block_index.z = unsigned(left / grid.y);
    run_block();
  }
}

char* map_memory(size_t bytes) {
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) std::abort();
  return static_cast<char*>(made);
}

/// What is wrong with a launch before it begins, or nothing.
std::string problem(const char* name, const Kernel* found, dim3 grid, unsigned threads,
                    unsigned shared_bytes) {
  if (!found) return std::string("there is no kernel ") + name;
  char text[200] = "";
  if (threads != found->geometry[0] || shared_bytes != found->geometry[1])
    std::snprintf(text, sizeof text, "%u threads and %u B of shared memory; it takes %u and %u",
                  threads, shared_bytes, found->geometry[0], found->geometry[1]);
  else if (threads == 0 || threads > kMaxThreads || shared_bytes > kMaxShared)
    std::snprintf(text, sizeof text, "%u threads and %u B of shared memory are too many", threads,
                  shared_bytes);
  else if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    std::snprintf(text, sizeof text, "a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
  return text;
}

}  // namespace

Registration::Registration(const char* name, const unsigned (&geometry)[4],
                           void (*body)(const void*)) {
  kernels()[name] = Kernel{geometry, body};
}

void* shared(size_t bytes) {
  if (bytes > state.shared_bytes)
    fail({"?", 0}, "%zu B of shared memory are used, and %zu B are there", bytes,
         state.shared_bytes);
  return state.shared;
}

void fail(Where where, const char* format, ...) {
  char text[600];
  int used = std::snprintf(text, sizeof text, "block (%u, %u, %u), thread %u: %s:%d: ",
                           block_index.x, block_index.y, block_index.z, self->index.x,
                           strrchr(where.file, '/') ? strrchr(where.file, '/') + 1 : where.file,
                           where.line);
  va_list values;
  va_start(values, format);
  std::vsnprintf(text + used, sizeof text - used, format, values);
  va_end(values);
  message = text;
  failed = true;
  me().context.leave_for(launcher);  // the stacks of all threads are abandoned
  std::abort();
}

// ------------------------------------------------------------------ barriers and warps

void barrier(Where where) {
  if (at_barrier && where.line != barrier_where.line)
    fail(where, "a barrier, while others wait at that of line %d", barrier_where.line);
  barrier_where = where;
  if (++at_barrier < fibers.size()) return wait();
  at_barrier = 0;
  for (Warp& warp : warps) warp.ready = warp.members;
  warps[self->warp].ready &= ~(1u << self->lane);
  for (Clock& clock : state.clocks) ++clock.block, clock.warp = 0;
  state.shown_before = state.shown;
}

static Meeting& find_meeting(Warp& warp, unsigned mask, Where where) {
  for (Meeting& one : warp.meetings)
    if (one.mask != mask && one.arrived & mask)
      fail(where, "mask %x, while lanes of it wait in mask %x (line %d)", mask, one.mask,
           one.where.line);
  for (Meeting& one : warp.meetings)
    if (one.mask == mask) return one;
  warp.meetings.emplace_back().mask = mask;
  return warp.meetings.back();
}

Values meet(unsigned mask, uint64_t value, Where where, void (*work)(uint64_t*)) {
  Warp& warp = warps[self->warp];
  unsigned own = 1u << self->lane;
  if (!(mask & own)) fail(where, "lane %u is not in its mask %x", self->lane, mask);
  if (mask & ~warp.members) fail(where, "mask %x names lanes that do not exist", mask);
  Meeting& meeting = find_meeting(warp, mask, where);
  if (meeting.arrived && meeting.where.line != where.line)
    fail(where, "an operation of the warp, while others wait at that of line %d",
         meeting.where.line);
  meeting.where = where;
  uint64_t* values = meeting.values[meeting.round % 2];
  values[self->lane] = value;
  meeting.arrived |= own;
  if (meeting.arrived != mask) {
    wait();
    return values;
  }
  if (work) work(values);
  meeting.arrived = 0;
  ++meeting.round;
  warp.ready |= mask & ~own;
  return values;
}

void sync_warp(unsigned mask, Where where) {
  meet(mask, 0, where);
  ++state.clocks[self->index.x].warp;
}

// ------------------------------------------------------------------ copies in flight

void async_copy(void* to, const void* from, int bytes, int size, Where where) {
  auto address = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (address % size) fail(where, "a copy of %d B from %p to %p", size, from, to);
  // from now until the wait, what is there is neither the old nor the new
  undefine(to, size, where);
  std::memset(to, 0xff, size);
  me().copies.push_back({to, from, bytes, size, me().group, where});
}

void async_commit() { ++me().group; }

void async_wait(int groups_left) {
  Fiber& fiber = me();
  size_t done = 0;
  for (; done < fiber.copies.size(); ++done) {
    const Copy& copy = fiber.copies[done];
    if (copy.group >= fiber.group - groups_left) break;
    if (copy.bytes) touch(copy.from, copy.bytes, false, copy.where);
    touch(copy.to, copy.size, true, copy.where);
    std::memset(copy.to, 0, copy.size);
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + done);
}

#ifndef SIMT_CHECK
void touch(const void*, size_t, bool, Where) {}
void touch_by_product(const void*, size_t, Where) {}
void undefine(const void*, size_t, Where) {}
extern "C" SIMT_EXPORT int simt_is_checked() { return 0; }
extern "C" SIMT_EXPORT void simt_declare(const char*, const void*, size_t) {}
extern "C" SIMT_EXPORT void simt_forget() {}
#endif

}  // namespace simt

// ------------------------------------------------------------------ what Python calls

using namespace simt;

/// Runs a kernel; returns 0, or 1 if it failed.
extern "C" SIMT_EXPORT int simt_launch(const char* name, unsigned grid_x, unsigned grid_y,
                                       unsigned grid_z, unsigned threads, unsigned shared_bytes,
                                       const void* call) {
  std::lock_guard<std::mutex> held(lock);
  auto found = kernels().find(name);
  kernel = found == kernels().end() ? nullptr : &found->second;
  grid_size = {grid_x, grid_y, grid_z};
  message = problem(name, kernel, grid_size, threads, shared_bytes);
  failed = !message.empty();
  if (failed) return 1;
  if (!state.stacks) {
    state.stacks = map_memory(kStack * kMaxThreads);
    state.shared = map_memory(kMaxShared);
  }
  fibers.resize(threads);
  warps.resize((threads + 31) / 32);
  state.threads = fibers.data(), state.threads_bytes = threads * sizeof(Fiber);
  state.shared_bytes = shared_bytes;
  state.call = call, state.call_bytes = kernel->geometry[3];
  ++state.launch_serial;
  run_grid(grid_size);
  return failed;
}

/// Why the last launch failed, or null if it did not.
extern "C" SIMT_EXPORT const char* simt_error() { return failed ? message.c_str() : nullptr; }

/// In which order threads run: 0 first to last, 1 last to first, 2 by chance.
extern "C" SIMT_EXPORT void simt_order(int chosen, uint64_t seed) {
  order = static_cast<Order>(chosen);
  random_state = seed * 2 + 1;
}
