"""Component ``triton``: attention over the paged cache by our own kernels in Triton.

The cache is read head by head (see :mod:`~paged_backends.attention.cache`). Sequences that decode
one token are computed in splits of their keys, as many as keep the GPU busy; chunks of several
tokens are computed in tiles. With ``deterministic: true`` everything is computed in tiles, so that
the bits of a result depend neither on the rest of the batch nor on how a prompt is cut into chunks.

What is launched depends on the shapes of a batch and its ``max_query_len`` and ``max_seq_len``
only: nothing waits for the device, and decoding can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.cache import check_contiguous, head_major_shape
from paged_backends.attention.layers import dtype_problem, heads_problem
from paged_backends.attention.settings import TritonSettings
from paged_backends.attention.step import BlockBounds, Scratch
from paged_backends.kernels.nvidia import capability_problem
from paged_backends.kernels.triton.availability import INTERPRETER, is_interpreted
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec

if TYPE_CHECKING:
    from paged_backends.attention.triton_layer import Plan

_DTYPES = ("float32", "bfloat16", "float16")
_MAX_HEAD_DIM = 256


class TritonAttention(AttentionBackend):
    """Component ``triton``; Triton is imported when the first step is planned or layer bound."""

    def __init__(self, options: TritonSettings, context: AttentionContext) -> None:
        self._in_tiles = context.settings.deterministic
        self._scratch = Scratch()

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why ``layer`` cannot be served: device, GPU, dtype, head_dim, heads or slopes."""
        if layer.head_dim > _MAX_HEAD_DIM:
            return f"it serves a head_dim of {_MAX_HEAD_DIM} at most, and this is {layer.head_dim}"
        return (
            _device_problem(torch.device(layer.device))
            or dtype_problem(layer, _DTYPES, ["fp8_e4m3"])
            or heads_problem(layer)
        )

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """See :func:`~paged_backends.attention.cache.head_major_shape`."""
        return head_major_shape(layer, num_blocks)

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Return a plan, which copies nothing to the device."""
        is_decode = np.diff(batch.query_start_host) == 1
        return self._plan(batch, bool(is_decode.any()), BlockBounds.of(batch))

    def plan_capture(self, batch: AttentionBatch, /) -> Plan:
        """See :class:`~paged_core.interfaces.attention.SupportsGraphCapture`."""
        return self._plan(batch, True, None)

    def _plan(self, batch: AttentionBatch, has_decodes: bool, bounds: BlockBounds | None) -> Plan:
        from paged_backends.attention.triton_layer import Plan

        return Plan(
            batch,
            tile_tokens=1 if self._in_tiles else 2,
            has_decodes=has_decodes and not self._in_tiles,
            bounds=bounds,
            scratch=self._scratch,
        )

    def update_capture(self, plan: Plan, batch: AttentionBatch, /) -> None:
        """Split keys as suits the batch; the kernels read all numbers on the device."""
        plan.update(batch)

    def copy_blocks_of_layers(
        self, caches: Tensor, origins: Sequence[int], destinations: Sequence[int], /
    ) -> None:
        """See :class:`~paged_core.interfaces.attention.SupportsBlockCopies`."""
        from paged_backends.kernels.triton.cache import copy_blocks

        copy_blocks(caches, origins, destinations)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``.

        Raises:
            ValueError: the cache is not contiguous.
        """
        from paged_backends.attention.triton_layer import Gpu, TritonLayer

        check_contiguous(cache)
        return TritonLayer(layer, cache, Gpu.of(cache.device))


def _device_problem(device: torch.device) -> str | None:
    if device.type == "cpu":
        if is_interpreted():
            return None
        return (
            f"it computes on CUDA devices, and the model is on the CPU; {INTERPRETER}=1 in the "
            "environment has Triton interpret the kernels there, slowly, for tests"
        )
    if device.type != "cuda":
        return f"it computes on CUDA devices, and the model is on {device}"
    if is_interpreted():
        return f"{INTERPRETER} is set, with which Triton launches nothing on a GPU: unset it"
    return capability_problem(torch.cuda.get_device_capability(device), str(device))
