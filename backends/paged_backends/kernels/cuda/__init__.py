"""Kernels in CUDA C++ (``source``), compiled on first use for a GPU, or for its emulation.

The sources include those of ``kernels/simt``, with which a C++ compiler makes code for the CPU of
them. Python gives the kernels addresses: neither PyTorch's headers nor its libraries are needed.
"""
