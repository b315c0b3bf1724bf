// The kernels for bfloat16 that are run on the CPU.
#define PAGED_DTYPE bfloat16
#include "host_kernels.h"
