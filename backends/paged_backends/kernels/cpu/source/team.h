// The threads of one call.
#pragma once

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "vector.h"

// State that the threads of one call share.
struct Barrier {
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> round{0};
  alignas(64) std::atomic<int64_t> tickets[3] = {};
};

class Team {
 public:
  const int rank, size;

  Team(int rank, int size, Barrier* barrier) : rank(rank), size(size), barrier(barrier) {}

  // Waits for all others. It spins, and yields if they have been descheduled.
  void wait() const {
    if (size == 1) return;
    int round = barrier->round.load(std::memory_order_relaxed);
    if (barrier->arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      barrier->arrived.store(0, std::memory_order_relaxed);
      barrier->round.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; barrier->round.load(std::memory_order_acquire) == round; spins++) {
#if defined(__x86_64__)
      _mm_pause();
#endif
      if (spins > 512) sched_yield();
    }
  }

  // This thread's share of 0 .. count.
  void share(int64_t count, int64_t& begin, int64_t& end) const {
    begin = count * rank / size;
    end = count * (rank + 1) / size;
  }

  // Calls `work(i)` for each i of 0 .. count, in this thread or another: at once, or where there is much of it
  // a few at a time, since a processor may be slower than the others. As `open()`, it follows a wait().
  template <typename Work>
  void distribute(int64_t count, const Work& work) const {
    constexpr int64_t SOME = 16;
    int64_t begin, end;
    if (size == 1 || count < 4 * SOME * size) {
      share(count, begin, end);
      for (int64_t i = begin; i < end; i++) work(i);
      return;
    }
    open();
    while ((begin = take() * SOME) < count)
      for (int64_t i = begin; i < std::min(count, begin + SOME); i++) work(i);
  }

  // Work is distributed item by item, with take(). All threads call open() first, after a wait() that
  // follows the previous distribution. It clears the next counter, which is not in use.
  void open() const {
    opened = (opened + 1) % 3;
    if (rank == 0) barrier->tickets[(opened + 1) % 3].store(0, std::memory_order_relaxed);
  }
  int64_t take() const { return barrier->tickets[opened].fetch_add(1, std::memory_order_relaxed); }

 private:
  Barrier* barrier;
  mutable int opened = 0;
};

template <typename Body>
static void work_together(int threads, const Body& body) {
  Barrier barrier;
  if (threads <= 1) {
    body(Team(0, 1, &barrier));
    return;
  }
#pragma omp parallel num_threads(threads)
  body(Team(omp_get_thread_num(), omp_get_num_threads(), &barrier));
}

// Small work is not worth waking other threads for.
INLINE int threads_for(int64_t numbers, int threads) { return numbers < 8192 ? 1 : threads; }

// Memory of one thread, aligned to a cache line, contents undefined.
class Workspace {
 public:
  explicit Workspace(size_t bytes) {
    if (posix_memalign((void**)&memory_, 64, bytes ? bytes : 64)) abort();
  }
  ~Workspace() { free(memory_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // The next `count` of T, which begin at a cache line.
  template <typename T>
  T* take(int64_t count) {
    T* place = (T*)(memory_ + used_);
    used_ += bytes_for<T>(count);
    return place;
  }
  template <typename T>
  static size_t bytes_for(int64_t count) {
    return (size_t(count) * sizeof(T) + 63) / 64 * 64;
  }

 private:
  char* memory_ = nullptr;
  size_t used_ = 0;
};

// Divides memory into arrays that begin at cache lines; from null, to learn how many bytes they take.
class Division {
 public:
  explicit Division(char* memory) : memory_(memory) {}

  template <typename T>
  void take(T*& place, int64_t count) {
    place = (T*)(memory_ + bytes_);
    bytes_ += Workspace::bytes_for<T>(count);
  }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  size_t bytes_ = 0;
};
