"""Reasons not to serve a layer that several backends have in common."""

from __future__ import annotations

from collections.abc import Collection

from paged_core.interfaces.layer import KVCacheDtype, LayerSpec


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


def dtype_problem(
    layer: LayerSpec, dtypes: Collection[str], cache_dtypes: Collection[KVCacheDtype] = ()
) -> str | None:
    """Return why ``layer`` cannot be served by what computes in ``dtypes``, if so.

    Args:
        cache_dtypes: what it serves of ``kv_cache_dtype``, besides ``auto``.
    """
    if layer.dtype not in dtypes:
        computed = " and ".join(dtypes)
        return f"it computes in {computed}, and the layers are {layer.dtype}; set dtype to that"
    return cache_problem(layer, cache_dtypes)


def cache_problem(layer: LayerSpec, cache_dtypes: Collection[KVCacheDtype]) -> str | None:
    """Return why the ``kv_cache_dtype`` of ``layer`` is not served, if it is neither ``auto`` nor
    one of ``cache_dtypes``."""
    if layer.kv_cache_dtype in ("auto", *cache_dtypes):
        return None
    remedy = " or ".join(("auto", *cache_dtypes))
    return f"it has no {layer.kv_cache_dtype} cache; set kv_cache_dtype to {remedy}"
