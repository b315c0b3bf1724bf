"""What a GPU did while something ran: how long it was idle, and which kernels took the time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """Kernels, copies and fills that a GPU ran, one after another or at once."""

    intervals: tuple[tuple[str, float, float], ...]
    """The name of each, and the microseconds of its beginning and its end."""

    @classmethod
    def from_trace(cls, events: Iterable[Mapping[str, Any]]) -> GpuActivity:
        """Read the events of a trace in the Chrome format, as torch's profiler writes it."""
        return cls(
            tuple(
                (str(event["name"]), float(event["ts"]), float(event["ts"]) + float(event["dur"]))
                for event in events
                if event.get("ph") == "X" and event.get("cat") in _CATEGORIES
            )
        )

    @property
    def idle_share(self) -> float | None:
        """The share of the time, from the first kernel to the last, in which none ran; ``None``:
        there was none."""
        if not self.intervals:
            return None
        spans = sorted((begin, end) for _, begin, end in self.intervals)
        first = until = spans[0][0]
        busy = 0.0
        for begin, end in spans:
            busy += max(0.0, end - max(begin, until))
            until = max(until, end)
        return 1 - busy / (until - first) if until > first else 0.0

    def longest(self, count: int, repeats: int) -> list[dict[str, Any]]:
        """Return the kernels that took the most time: microseconds and calls per repeat."""
        seconds: dict[str, float] = {}
        calls: dict[str, int] = {}
        for name, begin, end in self.intervals:
            seconds[name] = seconds.get(name, 0.0) + end - begin
            calls[name] = calls.get(name, 0) + 1
        order = sorted(seconds, key=lambda name: -seconds[name])[:count]
        return [
            {
                "name": name[:120],
                "us": round(seconds[name] / repeats, 2),
                "calls": round(calls[name] / repeats, 2),
            }
            for name in order
        ]


def gpu_activity(work: Callable[[], object]) -> GpuActivity:
    """Run ``work`` under torch's profiler; it slows the host down, so measure time without it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as traced:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        traced.export_chrome_trace(str(path))
        return GpuActivity.from_trace(json.loads(path.read_text("utf-8"))["traceEvents"])
