// The kernels for PAGED_DTYPE that are run on the CPU: all kinds of layer. PAGED_HOST_DECODE defines
// those that decode.
#include "kernels.h"

#define PAGED_HOST_DIM(dim, cache) \
  PAGED_HOST_DECODE(dim, cache)    \
  PAGED_TILES(PAGED_DTYPE, dim, cache)

#define PAGED_HOST_CACHE(cache)   \
  PAGED_WRITE(PAGED_DTYPE, cache) \
  PAGED_HOST_DIM(64, cache)       \
  PAGED_HOST_DIM(96, cache)       \
  PAGED_HOST_DIM(128, cache)      \
  PAGED_HOST_DIM(256, cache)

PAGED_HOST_CACHE(auto)
PAGED_HOST_CACHE(fp8_e4m3)
PAGED_COMBINE(PAGED_DTYPE)
