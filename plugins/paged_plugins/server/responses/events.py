"""A response as it comes into being: its items, and the events that say so."""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from uuid import uuid4

import msgspec

from paged_core.sampling_params import SamplingParams
from paged_plugins.server.errors import ApiError
from paged_plugins.server.openai.chat import ChatDelta
from paged_plugins.server.openai.protocol import ChatLogprobs, TokenLogprob
from paged_plugins.server.responses.protocol import (
    ArgumentsDelta,
    ArgumentsDone,
    Completed,
    Created,
    Event,
    Failed,
    Incomplete,
    IncompleteDetails,
    InProgress,
    ItemAdded,
    ItemDone,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ReasoningText,
    Response,
    ResponseError,
    ResponsesRequest,
    ResponsesUsage,
    TextDelta,
    TextDone,
)
from paged_plugins.server.translation.answers import Gain, Growing, event

_CODES: dict[int, Literal["invalid_prompt", "rate_limit_exceeded"]] = {
    400: "invalid_prompt",
    429: "rate_limit_exceeded",
}


class GrowingResponse(Growing):
    """A response.

    Args:
        names: of functions, by those that the model calls them by: their namespaces and own names.
    """

    def __init__(
        self,
        answer_id: str,
        model: str,
        body: ResponsesRequest,
        sampling: SamplingParams,
        names: Mapping[str, tuple[str, str]],
    ) -> None:
        super().__init__()
        self._names = names
        reasoning, text = body.reasoning, body.text
        self.response = Response(
            id=answer_id,
            created_at=int(time.time()),
            model=model,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning={"effort": reasoning.effort if reasoning else None, "summary": None},
            temperature=sampling.temperature,
            text={"format": (text.format if text else None) or {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_p=sampling.top_p,
            top_logprobs=body.top_logprobs or 0,
            user=body.user,
        )
        self._number = 0
        self._unread: list[TokenLogprob] = []
        """Log-probabilities of tokens of which no section has the text yet."""
        self._logprobs: list[TokenLogprob] = []
        """Log-probabilities of the text that grows."""

    def take(self, delta: ChatDelta, logprobs: ChatLogprobs | None = None) -> Iterator[bytes]:
        """Add what the answer gained.

        Args:
            logprobs: of its tokens; those that made text are shown with it.
        """
        if logprobs is not None:
            self._unread += logprobs.content
        yield from super().take(delta)
        if delta.reasoning_content or delta.tool_calls:
            self._unread = []

    def begin(self) -> Iterator[bytes]:
        """Say that it runs."""
        yield self._made(Created, response=self.response)
        yield self._made(InProgress, response=self.response)

    def end(self, finish_reason: str | None, usage: ResponsesUsage) -> Iterator[bytes]:
        """End it, as the answer has ended."""
        is_cut = finish_reason == "length"
        yield from self._close(is_cut=is_cut)
        response = self.response
        response.usage = usage
        if is_cut:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
            yield self._made(Incomplete, response=response)
        else:
            response.status = "completed"
            yield self._made(Completed, response=response)

    def fail(self, error: ApiError) -> bytes:
        """End it with an error."""
        begun = [] if self._number else list(self.begin())
        begun += self._close(is_cut=True)
        response = self.response
        response.status = "failed"
        response.error = ResponseError(
            code=_CODES.get(error.status, "server_error"), message=error.answer.error.message
        )
        return b"".join([*begun, self._made(Failed, response=response)])

    # ------------------------------------------------------------------ items

    def _begin_section(self, gain: Gain) -> Iterator[bytes]:
        name = uuid4().hex
        item: OutputItem
        if gain.call is not None:
            called = gain.call.function.name or ""
            namespace, called = self._names.get(called, (None, called))
            item = OutputCall(
                id=f"fc_{name}",
                status="in_progress",
                call_id=gain.call.id or "",
                name=called,
                arguments="",
                namespace=namespace,
            )
        elif gain.kind == "thoughts":
            item = OutputReasoning(id=f"rs_{name}", status="in_progress", content=[])
        else:
            item = OutputMessage(id=f"msg_{name}", status="in_progress", content=[])
            self._logprobs = []
        self.response.output.append(item)
        yield self._made(ItemAdded, **self._index(), item=item)
        if gain.kind != "call":
            part = (ReasoningText if gain.kind == "thoughts" else OutputText)(text="")
            yield self._made(PartAdded, **self._place(), part=part)

    def _grow_section(self, gain: Gain) -> bytes:
        kinds: dict[str, type[Event]] = {
            "call": ArgumentsDelta,
            "thoughts": ReasoningDelta,
            "text": TextDelta,
        }
        fields: dict[str, Any] = {"delta": gain.text}
        if gain.kind == "text":
            fields["logprobs"], self._unread = tokens_of(gain.text, self._unread), []
            self._logprobs += fields["logprobs"]
        return self._made(kinds[gain.kind], **self._place(), **fields)

    def _end_section(self, text: str, *, is_cut: bool) -> Iterator[bytes]:
        item = self.response.output[-1]
        if isinstance(item, OutputCall):
            item.arguments = text
            yield self._made(ArgumentsDone, **self._place(), arguments=text)
        elif isinstance(item, OutputReasoning):
            item.content = [ReasoningText(text=text)]
            yield self._made(ReasoningDone, **self._place(), text=text)
        else:
            logprobs = self._logprobs
            item.content = [OutputText(text=text, logprobs=logprobs)]
            yield self._made(TextDone, **self._place(), text=text, logprobs=logprobs)
        if not isinstance(item, OutputCall):
            yield self._made(PartDone, **self._place(), part=item.content[0])
        item.status = "incomplete" if is_cut else "completed"
        yield self._made(ItemDone, **self._index(), item=item)

    # ------------------------------------------------------------------ events

    def _index(self) -> dict[str, Any]:
        return {"output_index": len(self.response.output) - 1}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.response.output[-1].id, **self._index()}

    def _made(self, kind: type[Event], **fields: Any) -> bytes:
        made = kind(sequence_number=self._number, **fields)
        self._number += 1
        tag = made.__struct_config__.tag
        return event(str(tag), msgspec.json.encode(made))


def tokens_of(text: str, logprobs: list[TokenLogprob]) -> list[TokenLogprob]:
    """Return those tokens that a text is made of; all, where they are written as ids."""
    decoder = getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(bytes(each.bytes or ())) for each in logprobs]
    texts.append(decoder.decode(b"", final=True))
    start = "".join(texts).find(text)
    if start < 0:
        return logprobs
    found, place = [], 0
    for each, own in zip(logprobs, texts, strict=False):
        if place < start + len(text) and (place >= start or place + len(own) > start):
            found.append(each)
        place += len(own)
    return found
