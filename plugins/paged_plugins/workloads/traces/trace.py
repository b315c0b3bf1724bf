"""What is written of a trace: its file, and how it is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.spec_model import SpecModel
from paged_plugins.workloads.traces.request_lines import read_requests

Reader = Callable[[Path], Iterator[WorkloadRequest]]
FORMATS: Mapping[str, Reader] = {"requests": read_requests}


class Trace(SpecModel):
    """Requests in a file."""

    file: Path
    format: Literal["auto", "requests"] = "auto"
    scale: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Its times are multiplied by it: 0.5 replays twice as fast."""

    def requests(self) -> Iterator[WorkloadRequest]:
        """Yield the first requests, each with those that follow it."""
        return read_requests(self.file)


def _short(value: Any) -> Any:
    return {"file": value} if isinstance(value, str | Path) else value


TraceSpec = Annotated[Trace, BeforeValidator(_short)]
"""A file, or a mapping with the keys of :class:`Trace`."""
