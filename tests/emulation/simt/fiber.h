// A thread of control with a stack of its own, which runs until it leaves for another one.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

/// Bytes of a stack. Not a power of two: else the tops of all stacks would compete for a few lines
/// of the processor's cache.
constexpr size_t kStack = (64 << 10) + 5 * 64;

#if defined(__x86_64__)

// what a function must preserve is pushed, the stacks are exchanged, and what lies there is popped
asm(R"(
    .text
    .type simt_switch, @function
simt_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    popq %rcx
    jmpq *%rcx
)");
extern "C" void simt_switch(void** from, void* to);

class Context {
 public:
  /// Prepares to run `entry`, which never returns, on `stack`.
  void start(char* stack, void (*entry)()) {
    void** place = reinterpret_cast<void**>(stack + kStack) - 2;
    *place = reinterpret_cast<void*>(entry);
    top_ = place - 6;
  }
  void leave_for(Context& other) { simt_switch(&top_, other.top_); }

 private:
  void* top_ = nullptr;
};

#else

class Context {
 public:
  void start(char* stack, void (*entry)()) {
    getcontext(&kept_);
    kept_.uc_stack.ss_sp = stack;
    kept_.uc_stack.ss_size = kStack;
    kept_.uc_link = nullptr;
    makecontext(&kept_, entry, 0);
  }
  void leave_for(Context& other) { swapcontext(&kept_, &other.kept_); }

 private:
  ucontext_t kept_;
};

#endif

}  // namespace simt
