// All kernels but that of decode.cu for one kind of layer, whatever its group.
#include "kernels.h"

PAGED_WRITE(PAGED_DTYPE, PAGED_CACHE)
PAGED_COMBINE(PAGED_DTYPE)
#if defined(PAGED_WGMMA)
PAGED_WARPGROUP_TILES(PAGED_DTYPE, PAGED_DIM, PAGED_CACHE)
#else
PAGED_TILES(PAGED_DTYPE, PAGED_DIM, PAGED_CACHE)
#endif
PAGED_COPY_BLOCKS()
