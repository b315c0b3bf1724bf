// Defines kernels: PAGED_DECODE(bfloat16, 128, 16, auto) is paged_decode_bfloat16_128_16_auto. Types
// and caches are named as in LayerSpec.
#pragma once

#include "combine.h"
#include "copies.h"
#include "decode.h"
#include "decode_float32.h"
#include "tiles.h"
#include "warpgroup_tiles.h"
#include "write.h"

using paged_float32 = float;
using paged_bfloat16 = __nv_bfloat16;
using paged_float16 = __half;
template <class T>
using paged_stored_auto = T;
template <class T>
using paged_stored_fp8_e4m3 = Float8;

/// The class of a decode kernel for `kGroup` query heads.
template <class T, class Stored, int kDim, int kGroup>
struct DecodeOf {
  static_assert(kGroup == Decode<T, Stored, kDim>::kRows, "one kernel serves all groups");
  using Type = Decode<T, Stored, kDim>;
};
template <class Stored, int kDim, int kGroup>
struct DecodeOf<float, Stored, kDim, kGroup> {
  using Type = DecodeFloat32<Stored, kDim, kGroup>;
};

// macros in arguments are expanded before names are made of them
#define PAGED_WRITE(dtype, cache) PAGED_WRITE_(dtype, cache)
#define PAGED_DECODE(dtype, dim, group, cache) PAGED_DECODE_(dtype, dim, group, cache)
#define PAGED_COMBINE(dtype) PAGED_COMBINE_(dtype)
#define PAGED_TILES(dtype, dim, cache) PAGED_TILES_(dtype, dim, cache)
#define PAGED_WARPGROUP_TILES(dtype, dim, cache) PAGED_WARPGROUP_TILES_(dtype, dim, cache)

// tensor cores would round float32
#define PAGED_TILES_(dtype, dim, cache) PAGED_TILES_##dtype(dim, cache)
#define PAGED_TILES_float32(dim, cache)
#define PAGED_TILES_bfloat16(dim, cache) PAGED_TILES_OF(bfloat16, dim, cache)
#define PAGED_TILES_float16(dim, cache) PAGED_TILES_OF(float16, dim, cache)

#define PAGED_WRITE_(dtype, cache)                                               \
  SIMT_KERNEL(paged_write_##dtype##_##cache, Call, kWriteWarps * 32, 1, 0, 0) {  \
    write_token<paged_##dtype, paged_stored_##cache<paged_##dtype>>(call);       \
  }

#define PAGED_DECODE_(dtype, dim, group, cache) \
  PAGED_DECODE_OF(decode_##dtype##_##dim##_##group##_##cache, dtype, dim, group, cache)
#define PAGED_DECODE_OF(name, dtype, dim, group, cache)                                         \
  using name = DecodeOf<paged_##dtype, paged_stored_##cache<paged_##dtype>, dim, group>::Type;  \
  SIMT_KERNEL(paged_##name, Call, name::kThreads, name::kBlocks, sizeof(name::Shared), group) { \
    name::run(call);                                                                            \
  }

#define PAGED_COMBINE_(dtype)                                                         \
  SIMT_KERNEL(paged_combine_##dtype, Call, kCombineThreads, 1, sizeof(Combined), 0) { \
    combine_splits<paged_##dtype>(call);                                              \
  }

#define PAGED_TILES_OF(dtype, dim, cache) \
  PAGED_ROWS_OF(Tiles, tiles_##dtype##_##dim##_##cache, dtype, dim, cache)
#define PAGED_WARPGROUP_TILES_(dtype, dim, cache) \
  PAGED_ROWS_OF(WarpgroupTiles, warpgroup_tiles_##dtype##_##dim##_##cache, dtype, dim, cache)
#define PAGED_ROWS_OF(Class, name, dtype, dim, cache)                                     \
  using name = Class<paged_##dtype, paged_stored_##cache<paged_##dtype>, dim>;            \
  SIMT_KERNEL(paged_##name, Call, name::kThreads, 2, sizeof(name::Shared), name::kRows) { \
    name::run(call);                                                                      \
  }
