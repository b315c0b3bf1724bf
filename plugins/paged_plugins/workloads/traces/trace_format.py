"""The formats of traces, and which of them a file has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.azure import read_azure
from paged_plugins.workloads.traces.burstgpt import read_burstgpt
from paged_plugins.workloads.traces.mooncake import read_mooncake
from paged_plugins.workloads.traces.request_lines import read_requests
from paged_plugins.workloads.traces.sharegpt import read_sharegpt
from paged_plugins.workloads.traces.token_count import TokenCount
from paged_plugins.workloads.traces.trace_lines import TraceError, json_lines, text_lines
from paged_plugins.workloads.traces.vllm_bench import read_vllm_bench


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format."""

    read: Callable[[Path, TokenCount], Iterator[WorkloadRequest]]
    """Yields the requests that follow no other, by their time."""
    has_text: bool = False
    """Lengths are counted in its texts; otherwise they are in the file."""


FORMATS: Mapping[str, TraceFormat] = {
    "requests": TraceFormat(read_requests),
    "sharegpt": TraceFormat(read_sharegpt, has_text=True),
    "azure": TraceFormat(read_azure),
    "burstgpt": TraceFormat(read_burstgpt),
    "mooncake": TraceFormat(read_mooncake),
    "vllm_bench": TraceFormat(read_vllm_bench, has_text=True),
}
_BY_KEY = {
    "output": "requests",
    "output_length": "mooncake",
    "prompt": "vllm_bench",
    "contexttokens": "azure",
    "request tokens": "burstgpt",
}
"""The format of a file whose first line has a key or column; the first one found is taken."""


def recognise(path: Path) -> TraceFormat:
    """Return the format of a file, by its first characters.

    Raises:
        TraceError: it cannot be read, or has none of them.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except OSError as error:
        raise TraceError(path, None, f"it cannot be read: {error.strerror}") from None
    if begin == b"[":
        return FORMATS["sharegpt"]
    if begin == b"{":
        _, keys = next(json_lines(path))
    else:
        _, header = next(text_lines(path), (1, ""))
        keys = dict.fromkeys(field.strip().lower() for field in header.split(","))
    for key, name in _BY_KEY.items():
        if key in keys:
            return FORMATS[name]
    raise TraceError(
        path,
        None,
        "its format is unknown; it should be JSONL with `prompt` and `output`, or a trace of "
        "ShareGPT, Azure, BurstGPT, Mooncake or vllm bench",
    )
