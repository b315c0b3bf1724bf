// Copies of blocks, run on the CPU.
#include "copies.h"

PAGED_COPY_BLOCKS()
