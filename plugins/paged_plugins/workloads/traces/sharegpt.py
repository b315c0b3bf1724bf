"""Conversations in the JSON of ShareGPT.

``[{"id": "QWJhYvA_0", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value":
"..."}, ...]}, ...]``. The array is read one conversation at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from paged_plugins.workloads.content import FIRST_OWN_ID, ContentIds
from paged_plugins.workloads.prefixes import MOST_FAMILY
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.json_array import array_items
from paged_plugins.workloads.traces.token_count import TokenCount
from paged_plugins.workloads.traces.trace_lines import TraceError

_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard")
"""Who answers; all others ask."""


def read_sharegpt(path: Path, count_tokens: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the first requests, which arrive at once; the further turns of each follow it.

    What stands before an answer is its prompt. Conversations without an answer are left out.

    Raises:
        TraceError: the file is no such array.
    """
    own = ContentIds(FIRST_OWN_ID)
    for number, item in enumerate(array_items(path)):
        session = str(number)
        turns = [
            (count_tokens(prompt), count_tokens(answer))
            for prompt, answer in _turns(path, number, item)
        ]
        served = [(asked, answered) for asked, answered in turns if asked and answered]
        requests = [
            WorkloadRequest(
                id=f"{session}.{place}" if place else session,
                prompt=(own.take(num_prompt),),
                output=num_output,
                session=session,
            )
            for place, (num_prompt, num_output) in enumerate(served[:MOST_FAMILY])
        ]
        chain: tuple[WorkloadRequest, ...] = ()
        for request in reversed(requests):
            chain = (replace(request, followers=chain),)
        yield from chain


def _turns(path: Path, number: int, item: Any) -> Iterator[tuple[str, str]]:
    """Yield what is asked and what is answered."""
    messages = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(messages, list):
        raise TraceError(path, None, f"entry {number} has no list `conversations`")
    asked: list[str] = []
    for message in messages:
        speaker = message.get("from") if isinstance(message, dict) else None
        text = message.get("value") if isinstance(message, dict) else None
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise TraceError(path, None, f"entry {number} has a message without `from` or `value`")
        if speaker in _ANSWERS and asked:
            yield "\n".join(asked), text
            asked = []
        else:
            asked.append(text)
