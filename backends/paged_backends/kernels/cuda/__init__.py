"""Kernels in CUDA C++ (``source``), compiled on first use for a GPU.

All that they take from outside their folder is in ``device``. Python gives the kernels addresses:
neither PyTorch's headers nor its libraries are needed.
"""
