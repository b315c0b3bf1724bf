"""The layout of a cache that is read head by head: all of a block's tokens of one head together.

A block holds first its keys, then its values, of each key/value head ``block_size`` rows of
``head_dim`` numbers. In float8 the numbers of a head are bytes, row by row, and the scale bytes of
its rows follow, one each (see :mod:`~paged_backends.attention.float8`), padded to a multiple of
16 bytes so that the next head begins where a wide load may.
"""

from __future__ import annotations

from paged_core.interfaces.layer import LayerSpec

_ALIGNMENT = 16


def head_major_shape(layer: LayerSpec, num_blocks: int) -> tuple[int, ...]:
    """Return ``(num_blocks, 2, num_kv_heads, block_size, head_dim)``, of the layer's dtype, or in
    float8 ``(num_blocks, 2, num_kv_heads, bytes of a head)``, of bytes."""
    heads = (num_blocks, 2, layer.num_kv_heads)
    if layer.kv_cache_dtype == "auto":
        return (*heads, layer.block_size, layer.head_dim)
    scale_bytes = -(-layer.block_size // _ALIGNMENT) * _ALIGNMENT
    return (*heads, layer.block_size * layer.head_dim + scale_bytes)
