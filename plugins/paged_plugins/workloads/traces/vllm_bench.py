"""The JSONL of ``vllm bench serve --dataset-name custom``.

``{"prompt": "What is the capital of India?", "output_tokens": 10}``; ``output_tokens``
may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paged_plugins.workloads.content import FIRST_OWN_ID, ContentIds
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.request_lines import MAX_TOKENS
from paged_plugins.workloads.traces.token_count import TokenCount
from paged_plugins.workloads.traces.trace_lines import TraceError, json_lines

DEFAULT_OUTPUT = 256
"""Tokens of an answer whose length is not given: the default of ``--custom-output-len``."""


def read_vllm_bench(path: Path, count_tokens: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests, all of which arrive at once.

    A prompt is its length alone: two texts that begin alike share nothing.

    Raises:
        TraceError: a line is broken.
    """
    own = ContentIds(FIRST_OWN_ID)
    for index, (number, values) in enumerate(json_lines(path)):
        prompt, output = values.get("prompt"), values.get("output_tokens", DEFAULT_OUTPUT)
        if not isinstance(prompt, str) or not prompt:
            raise TraceError(path, number, "`prompt` is no text")
        if type(output) is not int or not 0 < output <= MAX_TOKENS:
            raise TraceError(path, number, f"`output_tokens` is no number up to {MAX_TOKENS:,}")
        content = (own.take(max(1, count_tokens(prompt))),)
        name = str(index)
        yield WorkloadRequest(id=name, prompt=content, output=output, session=name)
