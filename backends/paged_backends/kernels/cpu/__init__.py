"""Kernels for CPUs: C++ sources, how they are compiled on first use, and what they offer to Python.

:class:`~paged_backends.kernels.cpu.kernels.Kernels` is the door; ``source`` holds the C++.
"""
