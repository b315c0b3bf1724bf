// Products of small matrices by a warp on the CPU: what kernels/cuda/device/tensor_core.h has for a
// GPU, fragments laid out as it says.
#pragma once

#include "simt.h"

namespace simt {

inline float as_float(__half it) { return __half2float(it); }
inline float as_float(__nv_bfloat16 it) { return __bfloat162float(it); }

/// Where a lane's fragments lie.
struct Fragments {
  float* c;
  const unsigned *a, *b;
};

/// The number at `which` of those packed in `words`.
template <class T>
SIMT_UNCHECKED float unpacked(const unsigned* words, int which) {
  return as_float(T{uint16_t(words[which / 2] >> which % 2 * 16)});
}

/// What the warp does when its last lane has come; `lanes` are the addresses of their Fragments.
template <class T>
SIMT_UNCHECKED void multiply_add_all(uint64_t* lanes) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Fragments& it = *reinterpret_cast<Fragments*>(lanes[lane]);
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 8; ++i)
      a[g + i / 2 % 2 * 8][t * 2 + i % 2 + i / 4 * 8] = unpacked<T>(it.a, i);
    for (int i = 0; i < 4; ++i) b[t * 2 + i % 2 + i / 2 * 8][g] = unpacked<T>(it.b, i);
    for (int i = 0; i < 4; ++i) c[g + i / 2 * 8][t * 2 + i % 2] = it.c[i];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane) {
    float* to = reinterpret_cast<Fragments*>(lanes[lane])->c;
    for (int i = 0; i < 4; ++i) to[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

struct MatrixRow {
  const char* row;
  unsigned* to;
  Where where;
};

/// The eight rows of a matrix are read at once only if they lie in different banks.
SIMT_UNCHECKED inline void check_banks(const uint64_t* lanes) {
  for (int lane = 0; lane < 32; ++lane)
    for (int other = lane / 8 * 8; other < lane; ++other) {
      const MatrixRow& one = *reinterpret_cast<MatrixRow*>(lanes[lane]);
      long long apart = one.row - reinterpret_cast<MatrixRow*>(lanes[other])->row;
      if (apart && apart % 128 == 0) fail(one.where, "rows of a matrix lie in the same banks");
    }
}

template <bool kTransposed>
SIMT_UNCHECKED void load_all(uint64_t* lanes) {
  check_banks(lanes);
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix)
      for (int i = 0; i < 2; ++i) {
        int row = lane / 4, column = lane % 4 * 2 + i;
        if (kTransposed) row = lane % 4 * 2 + i, column = lane / 4;
        const char* from = reinterpret_cast<MatrixRow*>(lanes[matrix * 8 + row])->row;
        unsigned* to = reinterpret_cast<MatrixRow*>(lanes[lane])->to + matrix;
        std::memcpy(reinterpret_cast<char*>(to) + i * 2, from + column * 2, 2);
      }
}

template <bool kTransposed>
void load(unsigned* to, const void* row, Where where) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fail(where, "a row of a matrix at %p", row);
  touch(row, 16, false, where);
  MatrixRow mine{static_cast<const char*>(row), to, where};
  meet(~0u, reinterpret_cast<uint64_t>(&mine), where, load_all<kTransposed>);
}

}  // namespace simt

template <class T>
void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, SIMT_WHERE) {
  unsigned b[2] = {b0, b1};
  simt::Fragments mine{c, a, b};
  simt::meet(~0u, reinterpret_cast<uint64_t>(&mine), where, simt::multiply_add_all<T>);
}
inline void load_matrices(unsigned (&to)[4], const void* row, SIMT_WHERE) {
  simt::load<false>(to, row, where);
}
inline void load_transposed(unsigned (&to)[4], const void* row, SIMT_WHERE) {
  simt::load<true>(to, row, where);
}
