"""Component ``triton``: our own kernels in Triton."""
