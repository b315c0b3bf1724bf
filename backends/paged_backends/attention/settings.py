"""Options of the attention backends; light, because every listing imports them."""

from __future__ import annotations

from typing import Literal

from paged_core.component import ComponentSettings


class TorchSettings(ComponentSettings):
    """Attention in plain PyTorch, on any device: the reference for every other backend."""

    name: Literal["torch"] = "torch"
