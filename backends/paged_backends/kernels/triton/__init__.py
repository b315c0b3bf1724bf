"""Kernels in Triton, compiled when they are first launched, or interpreted.

With ``TRITON_INTERPRET=1`` in the environment before Triton is imported, they are executed on the
CPU by NumPy, operation by operation: slow, and meant for tests.
"""
