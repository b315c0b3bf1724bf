"""How long the model takes in a step, measured without waiting for the device."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch


class ModelTimer:
    """Measures from its creation to :meth:`stop`.

    On a GPU it records two events in the current stream, since the host only launches the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._started = perf_counter()
        self._stopped = self._started
        if self._on_gpu:
            make_event: Any = torch.cuda.Event
            self._first, self._last = (make_event(enable_timing=True) for _ in range(2))
            self._stream = torch.cuda.current_stream(device)
            self._first.record(self._stream)

    def stop(self) -> None:
        """Mark the end of the work that was launched."""
        self._stopped = perf_counter()
        if self._on_gpu:
            self._last.record(self._stream)

    def seconds(self) -> float:
        """Return the time of the device if it has finished the work, else that of the host.

        A step that reads a token back has waited for the device by then.
        """
        if self._on_gpu and self._last.query():
            return float(self._first.elapsed_time(self._last)) / 1000
        return self._stopped - self._started
