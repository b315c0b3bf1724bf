"""A trace: a file of requests, its format, and how it is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from paged_plugins.workloads.amount import SpecModel
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.files import (
    TokenCount,
    TraceError,
    check_file,
    json_objects,
    text_lines,
)
from paged_plugins.workloads.traces.public import (
    MAX_RESULT,
    read_azure,
    read_burstgpt,
    read_mooncake,
    read_sharegpt,
    read_vllm_bench,
    read_vllm_result,
    vllm_bench_note,
)
from paged_plugins.workloads.traces.request_lines import read_requests
from paged_plugins.workloads.traces.server_logs import log_format, read_access_log, read_vllm_log

_BY_KEY = {
    "output": "requests",
    "output_length": "mooncake",
    "prompt": "vllm_bench",
    "total_input_tokens": "vllm_result",
    "event": "access_log",
    "contexttokens": "azure",
    "request tokens": "burstgpt",
}
"""The format of a file whose first line has a key or column; the first one found is taken."""


class Trace(SpecModel):
    """Requests in a file."""

    file: Path
    """Seen from the working directory."""
    format: Literal[
        "auto",
        "requests",
        "sharegpt",
        "azure",
        "burstgpt",
        "mooncake",
        "vllm_bench",
        "vllm_result",
        "vllm_log",
        "access_log",
    ] = "auto"
    scale: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Its times are multiplied by it: 0.5 replays twice as fast."""

    def requests(self, count_tokens: TokenCount) -> Iterator[WorkloadRequest]:
        """Yield the first requests at the times of the file, each with those that follow it.

        Raises:
            TraceError: the file or a line of it is broken.
        """
        return self._format().read(self.file, count_tokens)

    def faster(self, factor: float) -> Self:
        """Return the same requests, so many times as fast."""
        return self.model_copy(update={"scale": self.scale / factor})

    def has_text(self) -> bool:
        """Return whether lengths are counted in texts of the file.

        Raises:
            TraceError: it cannot be read, or its format is unknown.
        """
        return self._format().has_text

    def note(self) -> str | None:
        """Return what to say of what the file leaves out; ``None``: nothing."""
        note = self._format().note
        return note(self.file) if note else None

    def _format(self) -> TraceFormat:
        check_file(self.file)
        return recognise(self.file) if self.format == "auto" else FORMATS[self.format]


def _short(value: Any) -> Any:
    return {"file": value} if isinstance(value, str | Path) else value


TraceSpec = Annotated[Trace, BeforeValidator(_short)]
"""A file, or a mapping with the keys of :class:`Trace`."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format."""

    read: Callable[[Path, TokenCount], Iterator[WorkloadRequest]]
    """Yields the requests that follow no other, by their time."""
    has_text: bool = False
    """Lengths are counted in its texts; otherwise they are in the file."""
    note: Callable[[Path], str | None] | None = None
    """Returns what to say of what a file leaves out."""


FORMATS: Mapping[str, TraceFormat] = {
    "requests": TraceFormat(read_requests),
    "sharegpt": TraceFormat(read_sharegpt, has_text=True),
    "azure": TraceFormat(read_azure),
    "burstgpt": TraceFormat(read_burstgpt),
    "mooncake": TraceFormat(read_mooncake),
    "vllm_bench": TraceFormat(read_vllm_bench, has_text=True, note=vllm_bench_note),
    "vllm_result": TraceFormat(read_vllm_result),
    "vllm_log": TraceFormat(read_vllm_log),
    "access_log": TraceFormat(read_access_log),
}


def recognise(path: Path) -> TraceFormat:
    """Return the format of a file, by its first characters.

    Raises:
        TraceError: it cannot be read, or has none of them.
    """
    try:
        with path.open("rb") as file:
            head = file.read(2**16).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise TraceError(path, None, f"it cannot be read: {error.strerror}") from None
    begin = head[:1]
    if not begin:
        raise TraceError(path, None, "it is empty")
    try:
        if begin not in (b"{", b"[") and (log := log_format(head.decode("utf-8", "replace"))):
            return FORMATS[log]
    except ValueError as error:
        raise TraceError(path, None, f"it is {error}") from None
    if begin == b"[":
        return FORMATS["sharegpt"]
    if begin == b"{":
        _, keys = next(json_objects(path, MAX_RESULT))
    else:
        _, header = next(text_lines(path), (1, ""))
        keys = dict.fromkeys(field.strip().lower() for field in header.split(","))
    if type(keys.get("prompt")) is int:
        return FORMATS["requests"]  # whose line says which key is missing
    for key, name in _BY_KEY.items():
        if key in keys:
            return FORMATS[name]
    raise TraceError(
        path,
        None,
        "its format is unknown; it should be JSONL with `prompt` and `output`, or a trace of "
        "ShareGPT, Azure, BurstGPT, Mooncake, vllm bench or a server's log",
    )
