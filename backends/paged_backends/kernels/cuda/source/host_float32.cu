// The kernels for float32 that are run on the CPU.
#define PAGED_DTYPE float32
#include "host_kernels.h"
