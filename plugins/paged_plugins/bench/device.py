"""The device of a benchmark: its name, its peak rates, and the least time that they allow.

Rates are measured beside every result, because those of a shared machine vary. A step can be no
faster than reading every weight and every cached key and value once, nor than its arithmetic; the
best schedule prefills all prompts first, a shared prefix once, and then all sequences decode
together. A conversation is one sequence that stays cached: each turn computes only its new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paged_core.interfaces.layer import ModelSize
from paged_plugins.machine import summary
from paged_plugins.workloads.request import WorkloadRequest

if TYPE_CHECKING:
    import torch

_REPEATS = 3
_BYTES = {"cuda": 1 << 31}
_OTHER_BYTES = 1 << 29
"""More than any caches hold."""
_SIZE = {"cuda": 8192}
_OTHER_SIZE = 2048
"""Side of the matrices: enough to fill the device."""


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return what must be reported with every result: processor, cores, Python, platform.

    Args:
        device: what computed, as torch names it; of a GPU, its name and the versions of torch and
            CUDA are reported too.
    """
    found = summary()
    if device.startswith("cuda"):
        import torch

        found["gpu"] = torch.cuda.get_device_name(device)
        found["torch"] = torch.__version__
        found["cuda"] = torch.version.cuda
    return found


def machine_line(found: dict[str, Any]) -> str:
    """Return the machine in a line, for the head of a table."""
    return f"{found.get('gpu') or found['cpu']}, {found['cores']} cores, {found['python']}"


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


def least_seconds(
    firsts: Sequence[WorkloadRequest], model: ModelSize, rates: Rates, num_shared: int
) -> float:
    """Return the least time that requests can take.

    Args:
        firsts: those that follow no other; what follows one is a chain.
        num_shared: length of the prefix that all prompts share; it is computed once.
    """
    layers, head = model.layer_weights, model.head_weights
    sequences = [_chunks(first.family()) for first in firsts]
    total = 0.0
    for step in range(max(map(len, sequences))):
        running = [chunks[step] for chunks in sequences if len(chunks) > step]
        again = num_shared * (len(running) - 1)
        computed = sum(new for new, _ in running)
        attended = sum(new * cached + new * new / 2 for new, cached in running)
        num_read = sum(cached for _, cached in running)
        if step:
            num_read -= again
        else:
            computed -= again
            attended -= again * num_shared / 2
        sums = layers * computed + head * len(running)
        operations = 2 * sums + model.attention_operations * attended
        num_bytes = model.weight_bytes + model.cache_bytes_per_token * num_read
        total += max(operations / rates.sums, num_bytes / rates.read)
    return total


def _chunks(turns: Iterable[WorkloadRequest]) -> list[tuple[int, int]]:
    """Return the computed and the cached tokens of every step of a conversation.

    A decoded token attends to itself, too. The last token of a turn is computed with the next turn.
    """
    chunks: list[tuple[int, int]] = []
    length = 0
    for turn in turns:
        new = turn.num_new + bool(length)
        cached = length - bool(length)
        chunks.append((new, cached))
        length = new + cached
        chunks += [(1, length + place) for place in range(1, turn.output)]
        length += turn.output
    return chunks
