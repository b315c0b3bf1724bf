"""Names of the instruction sets, for settings: light, because every listing imports them."""

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
"""See :mod:`paged_backends.kernels.cpu.compiler`."""
