// The kernels for bfloat16 that are run on the CPU.
#define PAGED_DTYPE bfloat16
#define PAGED_HOST_DECODE(dim, cache) PAGED_DECODE(bfloat16, dim, 16, cache)
#include "host_kernels.h"
