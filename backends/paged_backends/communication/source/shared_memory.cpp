// Collective operations between ranks that have mapped the same memory, for shared_memory.py.
//
// All ranks go through the same numbered steps. In each, a rank writes data to its slot, writes to
// its line which call they belong to, and publishes the number of the step there. It then waits until
// every rank has published that number, compares their calls with its own, and reads their slots.
//
// A rank has two slots and two places for calls, for even and for odd steps. A rank that
// has published a step has read all of the step before it. So when all have published step k + 1, what
// step k left behind may be overwritten, by step k + 2. No step needs a second barrier.
//
// A wait is first a loop, then one that yields the processor, then a futex, for a time slice: the
// caller looks for signals and for ranks that died, and goes on. Numbers wrap around.

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto LOOP = std::chrono::microseconds(30);    // then yield
constexpr auto YIELD = std::chrono::microseconds(200);  // then sleep; both since the wait began
constexpr long SLICE_NS = 20'000'000;
constexpr uint32_t FIRST = -64;  // of the numbers of steps: they wrap around early, in every group
constexpr int64_t CACHE_LINE = 64;
constexpr int MOST_RANKS = 32;

enum Kind : uint8_t { ALL_REDUCE, ALL_GATHER, BROADCAST };
enum Status { DONE, WAITING, LOST, DIFFERENT };

// What a rank has been asked for. All ranks of a step must have been asked for the same.
struct Call {
  Kind kind;
  uint8_t dtype;
  uint16_t source;
  uint32_t number;
  int64_t bytes;

  bool operator==(const Call& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

// Of a rank, which alone writes to it, but for the count of sleepers. On lines of its own; two,
// because processors fetch them in pairs.
struct alignas(2 * CACHE_LINE) Line {
  std::atomic<uint32_t> published;
  std::atomic<uint32_t> sleepers;  // ranks that wait for `published` in a futex
  Call calls[2];
};

// Why the group is given up: 0, or what the first rank said that found out.
struct alignas(2 * CACHE_LINE) Verdict {
  std::atomic<int64_t> value;
};

struct Group {
  Verdict* verdict;
  Line* lines;
  char* slots;
  int rank, size;
  bool may_loop;        // each rank has a processor to itself
  int64_t piece;        // bytes of a slot
  int64_t sliced_from;  // bytes of a piece from which each rank adds up a part of it
  uint32_t step;        // the last one that was published
  // of the call that is under way
  Call call;
  const char* in;
  char* out;
  int64_t begin;   // of the piece that is under way, in bytes
  bool is_second;  // of the two steps of a sliced piece
  int met;         // ranks below have published the step
  Clock::time_point since;

  int64_t length() const { return std::min(piece, call.bytes - begin); }
  bool is_sliced() const { return call.kind == ALL_REDUCE && length() >= sliced_from; }
  char* slot(int of, uint32_t at) const { return slots + ((at & 1) * size + of) * piece; }
};

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

void wake(Line& line) {
  if (line.sleepers.load() != 0) futex(line.published, FUTEX_WAKE, INT32_MAX, nullptr);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// ---------------------------------------------------------------------------------- steps

// Publish a step; its data are in the slot.
void publish(Group& group) {
  Line& line = group.lines[group.rank];
  line.calls[++group.step & 1] = group.call;
  line.published.store(group.step);  // in one order with the count of sleepers
  wake(line);
  group.met = 0;
  group.since = Clock::now();
}

bool has_published(const Group& group, int rank) {
  const uint32_t number = group.lines[rank].published.load(std::memory_order_acquire);
  return static_cast<int32_t>(number - group.step) >= 0;
}

void sleep(Group& group, int rank) {
  Line& line = group.lines[rank];
  const timespec slice{0, SLICE_NS};
  line.sleepers.fetch_add(1);
  const uint32_t number = line.published.load();
  if (static_cast<int32_t>(number - group.step) < 0) {
    futex(line.published, FUTEX_WAIT, number, &slice);
  }
  line.sleepers.fetch_sub(1);
}

bool wait_for(Group& group, int rank) {
  const auto yields_from = group.may_loop ? LOOP : LOOP.zero();
  while (true) {
    for (int turn = 0; turn < 32; ++turn) {
      if (has_published(group, rank)) return true;
      if (group.may_loop) relax();
    }
    const auto waited = Clock::now() - group.since;
    if (waited > YIELD) break;
    if (waited > yields_from) sched_yield();
  }
  sleep(group, rank);
  return has_published(group, rank);
}

// Wait until all ranks have published the step.
Status meet(Group& group) {
  for (; group.met < group.size; ++group.met) {
    if (group.met == group.rank) continue;
    if (!wait_for(group, group.met)) return group.verdict->value.load() ? LOST : WAITING;
    if (!(group.lines[group.met].calls[group.step & 1] == group.call)) return DIFFERENT;
  }
  return DONE;
}

// ---------------------------------------------------------------------------------- sums

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct Float32 {
  float bits;

  float wide() const { return bits; }
  static Float32 rounded(float value) { return {value}; }
};

struct Bfloat16 {
  uint16_t bits;

  float wide() const { return from_bits(uint32_t{bits} << 16); }

  static Bfloat16 rounded(float value) {
    const uint32_t all = bits_of(value);
    const uint32_t nearest = (all + 0x7fff + (all >> 16 & 1)) >> 16;  // of two, the even one
    return {static_cast<uint16_t>(value != value ? 0x7fc0 : nearest)};
  }
};

struct Float16 {
  uint16_t bits;

  float wide() const {
    constexpr uint32_t bias = (127 - 15) << 23;
    const uint32_t magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
    const uint32_t small = bits_of(from_bits(magnitude + bias + (1 << 23)) - from_bits(bias + (1 << 23)));
    const uint32_t usual = magnitude + bias + (magnitude >= 0x1fu << 23 ? bias : 0);  // infinities
    return from_bits(sign | (magnitude < 1 << 23 ? small : usual));
  }

  static Float16 rounded(float value) {
    constexpr uint32_t bias = (127 - 15) << 23, end = (127 + 16) << 23;
    constexpr uint32_t unit = (127 - 15 + 23 - 10 + 1) << 23;  // its last bit is that of subnormals
    const uint32_t all = bits_of(value), sign = all & 0x80000000, magnitude = all ^ sign;
    const uint32_t large = magnitude > 0xffu << 23 ? 0x7e00 : 0x7c00;
    const uint32_t small = bits_of(from_bits(magnitude) + from_bits(unit)) - unit;
    const uint32_t usual = (magnitude - bias + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const uint32_t nearest = magnitude >= end ? large : magnitude < bias + (1 << 23) ? small : usual;
    return {static_cast<uint16_t>(sign >> 16 | nearest)};
  }
};

// Add up in float32, in the order of the ranks, and round once.
template <typename Number>
__attribute__((always_inline)) inline void add(char* out, const char* const* parts, int size,
                                               int64_t bytes) {
  constexpr int64_t BLOCK = 1024;
  float total[BLOCK];
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Number));
  for (int64_t first = 0; first < count; first += BLOCK) {
    const int64_t length = std::min(BLOCK, count - first);
    for (int rank = 0; rank < size; ++rank) {
      const Number* part = reinterpret_cast<const Number*>(parts[rank]) + first;
      if (rank == 0) {
        for (int64_t i = 0; i < length; ++i) total[i] = part[i].wide();
      } else {
        for (int64_t i = 0; i < length; ++i) total[i] += part[i].wide();
      }
    }
    Number* sum = reinterpret_cast<Number*>(out) + first;
    for (int64_t i = 0; i < length; ++i) sum[i] = Number::rounded(total[i]);
  }
}

FOR_EACH_PROCESSOR void add_float32(char* out, const char* const* parts, int size, int64_t bytes) {
  add<Float32>(out, parts, size, bytes);
}

FOR_EACH_PROCESSOR void add_bfloat16(char* out, const char* const* parts, int size, int64_t bytes) {
  add<Bfloat16>(out, parts, size, bytes);
}

FOR_EACH_PROCESSOR void add_float16(char* out, const char* const* parts, int size, int64_t bytes) {
  add<Float16>(out, parts, size, bytes);
}

constexpr decltype(&add_float32) ADD[] = {add_float32, add_bfloat16, add_float16};  // by dtype

// Add up the bytes from `begin` to `end` of the piece that all ranks have offered.
void add_slots(const Group& group, char* out, int64_t begin, int64_t end) {
  const char* parts[MOST_RANKS];
  for (int rank = 0; rank < group.size; ++rank) {
    parts[rank] = group.slot(rank, group.step) + begin;
  }
  ADD[group.call.dtype](out, parts, group.size, end - begin);
}

// ---------------------------------------------------------------------------------- calls

// Where the part of a piece begins that this rank adds up; that of the next one: where it ends.
int64_t slice(const Group& group, int rank) {
  const int64_t lines = (group.length() + CACHE_LINE - 1) / CACHE_LINE;
  return std::min(group.length(), lines * rank / group.size * CACHE_LINE);
}

void offer(Group& group) {
  if (group.call.kind != BROADCAST || group.call.source == group.rank) {
    std::memcpy(group.slot(group.rank, group.step + 1), group.in + group.begin, group.length());
  }
  group.is_second = false;
  publish(group);
}

// Take what the ranks have offered; whether the piece is complete.
bool take(Group& group) {
  char* out = group.out + group.begin;
  if (group.call.kind == BROADCAST) {
    const int source = group.call.source;
    if (source != group.rank) std::memcpy(out, group.slot(source, group.step), group.length());
  } else if (group.call.kind == ALL_GATHER) {
    for (int rank = 0; rank < group.size; ++rank, out += group.call.bytes) {
      std::memcpy(out, group.slot(rank, group.step), group.length());
    }
  } else if (!group.is_sliced()) {
    add_slots(group, out, 0, group.length());
  } else if (!group.is_second) {
    const int64_t begin = slice(group, group.rank), end = slice(group, group.rank + 1);
    add_slots(group, group.slot(group.rank, group.step + 1) + begin, begin, end);
    group.is_second = true;
    publish(group);
    return false;
  } else {
    for (int rank = 0; rank < group.size; ++rank) {
      const int64_t begin = slice(group, rank), end = slice(group, rank + 1);
      std::memcpy(out + begin, group.slot(rank, group.step) + begin, end - begin);
    }
  }
  return true;
}

// ---------------------------------------------------------------------------------- memory

int64_t num_bytes(int size, int64_t piece) {
  return sizeof(Verdict) + size * sizeof(Line) + 2 * size * piece;
}

void* map(int file, int64_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
}

Line* lines_of(void* memory) { return reinterpret_cast<Line*>(static_cast<Verdict*>(memory) + 1); }

}  // namespace

// Make the memory that a group shares; a descriptor of it, or -1 and errno.
EXPORT int paged_core_create(int size, int64_t piece) {
  const int file = memfd_create("paged_core", MFD_CLOEXEC);
  if (file < 0) return -1;
  const int refused = posix_fallocate(file, 0, num_bytes(size, piece));
  void* mapped = refused ? MAP_FAILED : map(file, num_bytes(size, piece));
  if (mapped == MAP_FAILED) {
    close(file);
    return errno = refused ? refused : errno, -1;
  }
  for (int rank = 0; rank < size; ++rank) lines_of(mapped)[rank].published.store(FIRST);
  munmap(mapped, num_bytes(size, piece));
  return file;
}

// Map the memory; null, and errno: it cannot be.
EXPORT void* paged_core_join(int file, int rank, int size, int64_t piece, int64_t sliced_from,
                             int may_loop) {
  void* mapped = map(file, num_bytes(size, piece));
  if (mapped == MAP_FAILED) return nullptr;
  Group* group = new Group{};
  group->verdict = static_cast<Verdict*>(mapped);
  group->lines = lines_of(mapped);
  group->slots = reinterpret_cast<char*>(group->lines + size);
  group->rank = rank;
  group->size = size;
  group->piece = piece;
  group->sliced_from = sliced_from;
  group->may_loop = may_loop;
  group->step = FIRST;
  return group;
}

EXPORT void paged_core_leave(Group* group) {
  munmap(group->verdict, num_bytes(group->size, group->piece));
  delete group;
}

// Go on with the call that is under way, until it is done or a time slice has passed.
EXPORT int paged_core_go_on(Group* group) {
  while (true) {
    if (const Status status = meet(*group)) return status;
    if (!take(*group)) continue;
    group->begin += group->piece;
    if (group->begin >= group->call.bytes) return DONE;
    offer(*group);
  }
}

EXPORT int paged_core_run(Group* group, int kind, int dtype, int source, const char* in, char* out,
                          int64_t bytes) {
  if (group->verdict->value.load(std::memory_order_relaxed)) return LOST;
  group->call = {static_cast<Kind>(kind), static_cast<uint8_t>(dtype),
                 static_cast<uint16_t>(source), group->call.number + 1, bytes};
  group->in = in;
  group->out = out;
  group->begin = 0;
  offer(*group);
  return paged_core_go_on(group);
}

// The ranks that have not published the step that is under way: a bit each.
EXPORT uint32_t paged_core_missing(const Group* group) {
  uint32_t missing = 0;
  for (int rank = 0; rank < group->size; ++rank) {
    if (!has_published(*group, rank)) missing |= uint32_t{1} << rank;
  }
  return missing;
}

// Write the call of a rank in the step that is under way, which it has published.
EXPORT void paged_core_call_of(const Group* group, int rank, int64_t* fields) {
  const Call& call = group->lines[rank].calls[group->step & 1];
  const int64_t found[] = {call.kind, call.dtype, call.source, call.number, call.bytes};
  std::memcpy(fields, found, sizeof found);
}

// Give the group up, unless another rank has; return what the first one has said.
EXPORT int64_t paged_core_give_up(Group* group, int64_t verdict) {
  int64_t said = 0;
  if (group->verdict->value.compare_exchange_strong(said, verdict)) said = verdict;
  for (int rank = 0; rank < group->size; ++rank) wake(group->lines[rank]);
  return said;
}
