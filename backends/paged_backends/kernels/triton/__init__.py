"""Kernels in Triton, for GPUs; Triton's interpreter executes them on a CPU."""
