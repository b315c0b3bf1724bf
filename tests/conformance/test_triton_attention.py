"""The Triton kernels, interpreted on the CPU, keep the contract of an attention component."""

from __future__ import annotations

from paged_core.testing import AttentionConformance


class Interpreted(AttentionConformance):
    component = "triton"
    max_examples = 15


class TestTriton(Interpreted):
    pass


class TestTritonFloat8(Interpreted):
    dtypes = ("bfloat16",)
    kv_cache_dtype = "fp8_e4m3"


class TestTritonInTiles(Interpreted):
    dtypes = ("bfloat16",)
    deterministic = True
    keeps_bits = True
