// The kernels for float16 that are run on the CPU.
#define PAGED_DTYPE float16
#include "host_kernels.h"
