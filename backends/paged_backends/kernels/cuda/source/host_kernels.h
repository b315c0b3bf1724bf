// The kernels for PAGED_DTYPE that are run on the CPU: all kinds of layer, but fewer groups than on
// a GPU, since larger ones are computed in parts.
#include "kernels.h"

#define PAGED_HOST_GROUPS(dim, cache)       \
  PAGED_DECODE(PAGED_DTYPE, dim, 1, cache)  \
  PAGED_DECODE(PAGED_DTYPE, dim, 4, cache)  \
  PAGED_TILES(PAGED_DTYPE, dim, cache)

#define PAGED_HOST_CACHE(cache)   \
  PAGED_WRITE(PAGED_DTYPE, cache) \
  PAGED_HOST_GROUPS(64, cache)    \
  PAGED_HOST_GROUPS(96, cache)    \
  PAGED_HOST_GROUPS(128, cache)   \
  PAGED_HOST_GROUPS(256, cache)

PAGED_HOST_CACHE(auto)
PAGED_HOST_CACHE(fp8_e4m3)
PAGED_COMBINE(PAGED_DTYPE)
