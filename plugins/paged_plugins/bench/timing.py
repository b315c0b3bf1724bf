"""How long work takes on a device."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter


def seconds_on(device: str, work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes on a device that is idle at first.

    On CUDA, between two events of the current stream: from the first launch to the end of the last
    kernel. Elsewhere, until ``work`` returns.

    Args:
        device: as torch names it.
    """
    if not device.startswith("cuda"):
        started = perf_counter()
        work()
        return perf_counter() - started
    import torch

    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
