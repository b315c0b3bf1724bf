"""Reasons not to serve a layer that several backends have in common."""

from __future__ import annotations

from collections.abc import Collection

from paged_core.interfaces.layer import LayerSpec


def heads_problem(layer: LayerSpec) -> str | None:
    """Return why the numbers of heads or slopes do not match, if they do not."""
    if layer.num_heads % layer.num_kv_heads:
        return (
            f"{layer.num_heads} query heads cannot be shared evenly among "
            f"{layer.num_kv_heads} key/value heads"
        )
    if layer.alibi_slopes is not None and len(layer.alibi_slopes) != layer.num_heads:
        return f"{len(layer.alibi_slopes)} ALiBi slopes for {layer.num_heads} query heads"
    return None


def dtype_problem(layer: LayerSpec, dtypes: Collection[str], *, float8: bool = False) -> str | None:
    """Return why ``layer`` cannot be served by what computes in ``dtypes``, if so.

    Args:
        float8: whether it serves ``kv_cache_dtype: fp8_e4m3``.
    """
    if layer.dtype not in dtypes:
        return f"it computes in {' and '.join(dtypes)}, and the layers are {layer.dtype}"
    if layer.kv_cache_dtype != "auto" and not float8:
        return f"it has no {layer.kv_cache_dtype} cache; set kv_cache_dtype to auto"
    return None
