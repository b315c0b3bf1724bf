// The kernels for float32 that are run on the CPU: fewer groups than on a GPU, since larger ones are
// computed in parts.
#define PAGED_DTYPE float32
#define PAGED_HOST_DECODE(dim, cache)  \
  PAGED_DECODE(float32, dim, 1, cache) \
  PAGED_DECODE(float32, dim, 4, cache)
#include "host_kernels.h"
