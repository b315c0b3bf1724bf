"""A layer whose operations ``torch.compile`` fuses.

Attention stays outside: what is compiled is what comes before it and what comes after it.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler
from paged_backends.runners.native.decoder import Layer, Rotaries
from paged_core.errors import SettingsError

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


def compile_layers(layers: Sequence[Layer], device: torch.device) -> list[CompiledLayer]:
    """Return what computes these layers.

    Raises:
        SettingsError: ``torch.compile`` lacks what it needs here.
    """
    reason = _obstacle(device)
    if reason is not None:
        raise SettingsError(f"runner.compile: {reason}; leave it out")
    return [CompiledLayer(layer) for layer in layers]


def _obstacle(device: torch.device) -> str | None:
    """Say why layers cannot be compiled for ``device``, or return ``None``."""
    if device.type == "cuda":
        missing = find_spec("triton") is None
        return "triton is not installed: pip install 'paged-core[gpu]'" if missing else None
    compiler = find_compiler()
    return str(compiler) if isinstance(compiler, CannotCompile) else None


class CompiledLayer:
    """Computes a layer. Its code is compiled when it is first called: once for all layers of the
    same shapes, again for the second number of tokens, and then for any."""

    def __init__(self, layer: Layer) -> None:
        self._attention = layer.attention
        self._begin = torch.compile(layer.begin)
        self._finish = torch.compile(layer.finish)

    def __call__(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> Tensor:
        """See :class:`~paged_backends.runners.native.decoder.RunsLayer`."""
        query, key, value = self._begin(hidden_TE, rotaries[self._attention.config.rope])
        return self._finish(attend(self._attention.index, query, key, value), hidden_TE)
