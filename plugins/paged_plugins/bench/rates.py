"""The peak rates of a device, as measured: reading and copying memory, multiplying matrices.

They are measured beside every result, because those of a shared machine vary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from paged_plugins.bench.timing import seconds_on

if TYPE_CHECKING:
    import torch

_REPEATS = 3
_BYTES = {"cuda": 1 << 31}
_OTHER_BYTES = 1 << 29
"""More than any caches hold."""
_SIZE = {"cuda": 8192}
_OTHER_SIZE = 2048
"""Of the matrices: enough to fill the device."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a device; of a CPU, with the number of threads that torch uses now."""

    read: float
    """Bytes per second, when memory is only read."""
    copy: float
    """Bytes per second of a large copy: bytes read plus bytes written."""
    sums: float
    """Floating-point operations per second of a product of large matrices, in the given dtype or
    in float32, whichever is faster: some processors are slower in 16 bits."""


def measure_rates(dtype: str, device: str) -> Rates:
    """Measure the rates for numbers of ``dtype``; takes about a second."""
    import torch

    kind = getattr(torch, dtype)
    family = torch.device(device).type
    size = _SIZE.get(family, _OTHER_SIZE)
    fastest = min(_product_seconds(size, kind, device) for kind in {kind, torch.float32})
    num_bytes = _BYTES.get(family, _OTHER_BYTES)
    numbers = torch.ones(num_bytes // 4, device=device)
    matrix = numbers.view(kind).view(-1, 1024)
    vector = torch.ones(1, 1024, dtype=kind, device=device)
    reading = min(
        _seconds(numbers.sum, device), _seconds(lambda: torch.mm(vector, matrix.T), device)
    )
    source, target = numbers.chunk(2)
    copying = _seconds(lambda: target.copy_(source), device)
    return Rates(num_bytes / reading, num_bytes / copying, 2 * size**3 / fastest)


def _product_seconds(size: int, kind: torch.dtype, device: str) -> float:
    """Measure a product of two square matrices of random numbers; on zeros or ones some devices
    draw less power, and so run faster."""
    import torch

    left, right = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    return _seconds(lambda: left @ right, device)


def _seconds(work: Callable[[], object], device: str) -> float:
    work()
    return median(seconds_on(device, work) for _ in range(_REPEATS))
