// Tiles of warpgroups, run on the CPU.
#include "kernels.h"

PAGED_WARPGROUP_TILES(bfloat16, 64, auto)
PAGED_WARPGROUP_TILES(bfloat16, 128, auto)
PAGED_WARPGROUP_TILES(float16, 64, auto)
PAGED_WARPGROUP_TILES(float16, 128, auto)
