// Permission to use tile registers, which a process must have before one of its threads does.
//
// paged_core_ask_permission() returns 0 where it is granted or not needed, else the system's error number.
// Linux saves tile registers only for processes that have asked for them, once; children have what their
// parent has, until they exec. It refuses where an alternative signal stack is too small to save them on.
#include <cerrno>

#include "amx.h"

#if AMX && !defined(EMULATE_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#pragma GCC visibility push(default)
extern "C" int paged_core_ask_permission() {
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, and the number of the state
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? 0 : errno;
}
#pragma GCC visibility pop
#else
extern "C" __attribute__((visibility("default"))) int paged_core_ask_permission() { return 0; }
#endif
