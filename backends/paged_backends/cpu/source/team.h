// Threads that work through one call together.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "vector.h"

// What the threads of one call share.
struct Meeting {
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> round{0};
  alignas(64) std::atomic<int64_t> ticket{0};
};

struct Team {
  int rank, size;
  Meeting* meeting;

  // Waits for all others. It spins, and gives way where they have lost their processor.
  void wait() const {
    if (size == 1) return;
    int round = meeting->round.load(std::memory_order_relaxed);
    if (meeting->arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      meeting->arrived.store(0, std::memory_order_relaxed);
      meeting->round.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; meeting->round.load(std::memory_order_acquire) == round; spins++) {
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

  // Work is handed out one item after another; a wait() must lie between a reset and the first
  // take, and between the last take and the next reset.
  void reset_tickets() const {
    if (rank == 0) meeting->ticket.store(0, std::memory_order_relaxed);
  }
  int64_t take() const { return meeting->ticket.fetch_add(1, std::memory_order_relaxed); }
};

template <typename Body>
static void work_together(int threads, const Body& body) {
  Meeting meeting;
  if (threads <= 1) {
    body(Team{0, 1, &meeting});
    return;
  }
#pragma omp parallel num_threads(threads)
  body(Team{omp_get_thread_num(), omp_get_num_threads(), &meeting});
}

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
