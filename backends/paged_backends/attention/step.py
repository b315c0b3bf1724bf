"""The batch of a step as attention components take it, and the attention of all layers in it."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_core.errors import PluginError, blame
from paged_core.interfaces.attention import AttentionBatch, LayerAttention


class StepAttention:
    """Called as ``attend(layer, query, key, value)``.

    It is a :class:`~paged_core.interfaces.runner.SupportsFusedLayers`.
    """

    __slots__ = ("layers", "plan")

    def __init__(self, layers: Sequence[LayerAttention], plan: Any) -> None:
        """
        Args:
            layers: the bound layers, the same list in every step.
            plan: of this step.
        """
        self.layers = layers
        self.plan = plan

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention of ``layer``.

        Raises:
            PluginError: it is not as the queries are.
        """
        bound = self.layers[layer]
        try:
            out: Any = bound.forward(query, key, value, self.plan)
            if (
                out.dtype is not query.dtype
                or out.shape != query.shape
                or out.device != query.device
            ):
                raise PluginError(
                    f"forward() returned {list(out.shape)} in {out.dtype} on {out.device}; it has "
                    f"to return {list(query.shape)} in {query.dtype} on {query.device}, as the "
                    "queries are"
                )
        except Exception as error:
            blame(error, "attention", bound)
            raise
        checked: Tensor = out
        return checked


class KernelBatch:
    """The arrays of a batch as kernels read them, by address: contiguous, in int32, slots in int64.

    Tensors that are so already are used as they are; all are kept alive. Nothing is read from them,
    so that the device need not be waited for.
    """

    def __init__(self, batch: AttentionBatch) -> None:
        self.starts = batch.query_start.int().contiguous()
        """[S + 1]: running sums of the numbers of queries."""
        self.lengths = batch.seq_lens.int().contiguous()
        """[S]: tokens of each sequence, the new ones included."""
        self.tables = batch.block_tables.int().contiguous()
        """[S, W]: block ids."""
        self.slots = batch.slot_mapping.long().contiguous()
        """[T]: where the new tokens are written."""
        self.num_tokens = len(self.slots)
        self.num_sequences = len(self.lengths)
        self.max_query_len = batch.max_query_len
        self.max_seq_len = batch.max_seq_len


class Scratch:
    """Memory for results of splits before they are merged: one piece for all layers and steps of a
    component, since a stream runs them one after another."""

    def __init__(self) -> None:
        self._held: dict[torch.device, Tensor] = {}

    def take(self, count: int, device: torch.device) -> Tensor:
        """Return ``count`` numbers of float32; what was taken before may be the same memory."""
        held = self._held.get(device)
        if held is None or len(held) < count:
            held = self._held[device] = torch.empty(count, dtype=torch.float32, device=device)
        if device.type == "cpu":
            held.fill_(nan)  # reading what was not written shows
        return held[:count]


class BlockBounds:
    """The extreme block ids and slots of one step's batch, found once, for caches of any size.

    Args:
        tables: block ids [S, W].
        lengths: tokens of each sequence [S].
        slots: where tokens are written [T]; ``None``: not known on the host.
    """

    def __init__(
        self,
        tables: NDArray[np.int32],
        lengths: NDArray[np.int32],
        slots: NDArray[np.int64] | None,
    ) -> None:
        self._width = tables.shape[1]
        self._longest = int(lengths.max(initial=0))
        self._blocks = int(tables.min(initial=0)), int(tables.max(initial=0))
        self._slots = (0, 0)
        if slots is not None:
            self._slots = int(slots.min(initial=0)), int(slots.max(initial=0))

    @classmethod
    def of(cls, batch: AttentionBatch) -> BlockBounds:
        """Return those of the blocks of ``batch``; its slots are not looked at."""
        return cls(batch.block_tables_host, batch.seq_lens_host, None)

    def check(self, num_blocks: int, block_size: int) -> None:
        """Check that a cache of ``num_blocks`` blocks has all blocks and slots.

        Raises:
            ValueError: it does not, or a sequence is longer than the block tables are wide.
        """
        num_slots = num_blocks * block_size
        for what, (lowest, highest), count in (
            ("block", self._blocks, num_blocks),
            ("slot", self._slots, num_slots),
        ):
            if lowest < 0 or highest >= count:
                wrong = lowest if lowest < 0 else highest
                raise ValueError(f"the batch names {what} {wrong}, and the cache has {count}")
        if self._longest > self._width * block_size:
            raise ValueError(
                f"a sequence has {self._longest} tokens, and its block table has {self._width} "
                f"blocks of {block_size}"
            )


def contiguous_rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return queries, keys or values in ``dtype``, the last dimension contiguous.

    They are returned as they are where they are so already.
    """
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def point_to_rows(call: Any, query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> None:
    """Set the addresses of all four in a kernel's argument, and the strides of tokens and heads of
    the first three."""
    call.query, call.key, call.value = query.data_ptr(), key.data_ptr(), value.data_ptr()
    call.out = out.data_ptr()
    call.query_token, call.query_head, _ = query.stride()
    call.key_token, call.key_head, _ = key.stride()
    call.value_token, call.value_head, _ = value.stride()
