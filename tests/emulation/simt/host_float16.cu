// The kernels for float16 that are run on the CPU.
#define PAGED_DTYPE float16
#define PAGED_HOST_DECODE(dim, cache) PAGED_DECODE(float16, dim, 16, cache)
#include "host_kernels.h"
