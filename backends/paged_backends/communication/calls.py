"""Calls of ranks, as numbers that ranks compare, and the tensors that they take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

KINDS = ("all_reduce", "all_gather", "broadcast")
ALL_REDUCE, ALL_GATHER, BROADCAST = range(3)

ADDED = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of sums."""
_DTYPES = (
    *ADDED,
    *sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str),
)
CODES = {dtype: _DTYPES.index(dtype) for dtype in _DTYPES}
"""Numbers of dtypes; those that can be added come first."""


def call_text(call: Sequence[int]) -> str:
    """Return what a call is, of its kind, dtype, source, number and bytes."""
    kind, dtype, source, number, num_bytes = call
    origin = f" from rank {source}" if kind == BROADCAST else ""
    what = f"{KINDS[kind]} of {num_bytes} bytes of {_DTYPES[dtype]}{origin}"
    return f"{what} as operation {number}"


def sum_in_order(parts: Tensor) -> Tensor:
    """Return the sum [...] of the parts [size, ...] of ranks: in float32, in their order."""
    total: Tensor = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total


def rank_names(ranks: Iterable[int]) -> str:
    """Return ``rank 1``, or ``ranks 1, 2``."""
    listed = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(listed) > 1)} {', '.join(listed)}"


def check_tensor(kind: int, tensor: Tensor, source: int = 0, size: int = 1) -> None:
    """Raise ``ValueError`` or ``TypeError`` for what no communicator does, before a rank waits."""
    if kind == ALL_REDUCE and tensor.dtype not in ADDED:
        raise TypeError(f"sums are of float32, bfloat16 and float16, not of {tensor.dtype}")
    if kind != ALL_GATHER and not tensor.is_contiguous():
        raise ValueError(f"the tensor is not contiguous: its strides are {tensor.stride()}")
    if not 0 <= source < size:
        raise ValueError(f"there is no rank {source} of {size} to broadcast from")
