"""Kernels for CPUs: C++ sources (``source``), compiled on first use, and their Python bindings.

Use :class:`~paged_backends.kernels.cpu.tensor_kernels.Kernels`, which takes tensors. What is here
itself is for settings: light, because every listing imports it.
"""

from typing import Literal

InstructionSetName = Literal[
    "avx512_amx",
    "avx512_bf16",
    "avx512_bf16_mixed",
    "avx512_vnni",
    "avx512",
    "avx2_vnni",
    "avx2",
    "portable",
    "avx512_amx_emulated",
    "portable_amx_emulated",
]
"""See :data:`paged_backends.kernels.cpu.compiler.SETS`."""

ProductsName = Literal["widened", "integer"]
"""Arithmetic of products with quantised weights: codes become bfloat16, or activations become
codes too."""
