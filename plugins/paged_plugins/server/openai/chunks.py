"""Chunks of a stream as bytes: what all of them begin with is encoded once."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from paged_plugins.server.answer import DONE, Answer
from paged_plugins.server.openai.protocol import Generated, PromptTokensDetails, Usage

encode = msgspec.json.encode


def usage_of(answer: Answer, num_generated: int) -> Usage:
    """Return what an answer took.

    Args:
        num_generated: tokens that are shown.
    """
    prompt = answer.num_prompt_tokens
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=num_generated,
        total_tokens=prompt + num_generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=answer.num_cached_tokens),
    )


class Chunks:
    """Makes the events of one stream.

    Args:
        kind: the field ``object`` of a chunk.
        first: fields that the first chunk alone has.
    """

    def __init__(
        self, kind: str, body: Generated, answer: Answer, model: str, **first: Any
    ) -> None:
        self._answer = answer
        head = {"id": answer.id, "object": kind, "created": int(time.time()), "model": model}
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._first = b"," + encode(first)[1:-1] if first else b""
        options = body.stream_options
        self._ends_with_usage = bool(options and options.include_usage)
        self._always = self._ends_with_usage and bool(options and options.continuous_usage_stats)
        null = b',"usage":null' if self._ends_with_usage and not self._always else b""
        self._tail = b"]" + null + b"}\n\n"
        self.num_shown = 0
        """Generated tokens in the chunks so far."""

    def chunk(self, choice: bytes) -> bytes:
        """Return the event of one choice's gain."""
        if self._always or self._first:
            return self._unusual(choice)
        return self._head + choice + self._tail

    def _unusual(self, choice: bytes) -> bytes:
        tail, self._first = self._first + self._tail[1:], b""
        if self._always:
            tail = tail.removesuffix(b"}\n\n") + self._usage()
        return self._head + choice + b"]" + tail

    def end(self) -> bytes:
        """Return the last events: the usage, if the request wants it, and that it is whole."""
        usage = self._head + b"]" + self._usage() if self._ends_with_usage else b""
        return usage + DONE

    def _usage(self) -> bytes:
        return b',"usage":' + encode(usage_of(self._answer, self.num_shown)) + b"}\n\n"
