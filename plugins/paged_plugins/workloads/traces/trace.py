"""What is written of a trace: its file, and how it is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.spec_model import SpecModel
from paged_plugins.workloads.traces.token_count import TokenCount
from paged_plugins.workloads.traces.trace_format import FORMATS, TraceFormat, recognise
from paged_plugins.workloads.traces.trace_lines import check_file


class Trace(SpecModel):
    """Requests in a file."""

    file: Path
    """Seen from the working directory."""
    format: Literal[
        "auto", "requests", "sharegpt", "azure", "burstgpt", "mooncake", "vllm_bench"
    ] = "auto"
    scale: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Its times are multiplied by it: 0.5 replays twice as fast."""

    def requests(self, count_tokens: TokenCount) -> Iterator[WorkloadRequest]:
        """Yield the first requests at the times of the file, each with those that follow it.

        Raises:
            TraceError: the file or a line of it is broken.
        """
        return self._format().read(self.file, count_tokens)

    def has_text(self) -> bool:
        """Whether lengths are counted in texts of the file.

        Raises:
            TraceError: it cannot be read, or its format is unknown.
        """
        return self._format().has_text

    def _format(self) -> TraceFormat:
        check_file(self.file)
        return recognise(self.file) if self.format == "auto" else FORMATS[self.format]


def _short(value: Any) -> Any:
    return {"file": value} if isinstance(value, str | Path) else value


TraceSpec = Annotated[Trace, BeforeValidator(_short)]
"""A file, or a mapping with the keys of :class:`Trace`."""
