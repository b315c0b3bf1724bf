// The kernel that decodes for one kind of layer, which PAGED_DTYPE, PAGED_DIM, PAGED_GROUP and
// PAGED_CACHE name: compiled for a GPU on first use, beside others.cu.
#include "kernels.h"

PAGED_DECODE(PAGED_DTYPE, PAGED_DIM, PAGED_GROUP, PAGED_CACHE)
