"""Kernels for CPUs: C++ sources (``source``), compiled on first use, and their Python bindings.

Use :class:`~paged_backends.kernels.cpu.tensor_kernels.Kernels`, which takes tensors.
"""
