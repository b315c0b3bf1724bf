// What the processor and the operating system support. Compiled without any -m flag.
//
// paged_core_instruction_sets() returns a sum of bits: 1 for AVX2 with FMA, 64 for its dot products of bytes
// (VNNI), 2 for AVX-512 (F, BW, DQ, VL), 32 for its VNNI, 4 for its BF16 beside VNNI, 8 where BF16 is slower
// than float32 (Intel's), 16 for AMX with BF16 and bytes, for which a process needs the system's permission besides
// (permission.cpp). 0 everywhere but on x86-64.
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t saved_registers() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

static bool has(uint32_t word, int bit) { return word >> bit & 1; }

extern "C" __attribute__((visibility("default"))) int paged_core_instruction_sets() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  bool fma = has(c, 12), saves = has(c, 27), avx = has(c, 28);
  if (!saves || !avx || !fma) return 0;
  uint64_t saved = saved_registers();
  if ((saved & 0x6) != 0x6) return 0;  // the lower halves of 256 bits, and the upper ones
  uint32_t b7, a71 = 0;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c, &d)) return 0;
  uint32_t leaves = a, c7 = c, d7 = d;
  if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
  int found = has(b7, 5) ? 1 : 0;
  if (found && has(a71, 4)) found |= 64;
  bool avx512 = has(b7, 16) && has(b7, 17) && has(b7, 30) && has(b7, 31);  // F, DQ, BW, VL
  if (!found || !avx512 || (saved & 0xe6) != 0xe6) return found;  // the masks, and 512 bits
  found |= 2;
  if (has(c7, 11)) found |= 32;
  bool bf16 = has(c7, 11) && has(a71, 5);
  if (bf16) found |= 4;
  bool amx = has(d7, 22) && has(d7, 24) && has(d7, 25);  // bfloat16, tiles, bytes
  if (bf16 && amx && (saved & 0x60000) == 0x60000) found |= 16;  // both states of tiles
  uint32_t vendor;
  if (__get_cpuid(0, &a, &vendor, &c, &d) && vendor == 0x756e6547) found |= 8;  // "Genu"ineIntel
  return found;
}
#else
extern "C" __attribute__((visibility("default"))) int paged_core_instruction_sets() { return 0; }
#endif
