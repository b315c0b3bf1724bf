"""The CUDA stream in which sessions queue their work, with the attention between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from paged_core.errors import EngineError


class SessionStream:
    """A stream of its own: ONNX Runtime does not take the default one for a user's stream."""

    def __init__(self, device: torch.device) -> None:
        make: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
        self.stream = make(device)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current stream; the one before waits for it, and the host for neither.

        Raises:
            EngineError: work is being captured in a graph, which sessions cannot be.
        """
        if torch.cuda.is_current_stream_capturing():
            raise EngineError("sessions of ONNX Runtime cannot be captured in CUDA graphs")
        outer = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outer.wait_stream(self.stream)
