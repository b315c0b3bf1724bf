"""The providers, in the order in which they are tried."""

from __future__ import annotations

from paged_backends.attention.flash_attn.fa2 import FlashAttn2
from paged_backends.attention.flash_attn.fa3 import FlashAttn3
from paged_backends.attention.flash_attn.fa4 import FlashAttn4
from paged_backends.attention.flash_attn.provider import Provider
from paged_backends.attention.flash_attn.torch_varlen import TorchVarlen

PROVIDERS: tuple[type[Provider], ...] = (FlashAttn3, FlashAttn2, FlashAttn4, TorchVarlen)


def providers(name: str, *, deterministic: bool) -> list[Provider]:
    """Return the provider called ``name``, or all of them for ``auto``."""
    return [kind(deterministic=deterministic) for kind in PROVIDERS if name in ("auto", kind.name)]
