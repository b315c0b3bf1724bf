"""A response as it comes into being: its items, and the events that say so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal
from uuid import uuid4

import msgspec

from paged_plugins.server.errors import ApiError
from paged_plugins.server.openai.formats import ChatDelta
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
    Status,
    TextDelta,
    TextDone,
)
from paged_plugins.server.translation.answers import Gain, event, gains

_CODES: dict[int, Literal["invalid_prompt", "rate_limit_exceeded"]] = {
    400: "invalid_prompt",
    429: "rate_limit_exceeded",
}


class Growing:
    """A response that grows; each method returns the events of what happened."""

    def __init__(self, answer_id: str, model: str, body: ResponsesRequest) -> None:
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
            temperature=1.0 if body.temperature is None else body.temperature,
            text={"format": (text.format if text else None) or {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_p=1.0 if body.top_p is None else body.top_p,
            user=body.user,
        )
        self.thoughts: list[str] = []
        self._texts: list[str] = []
        """Of the item that grows."""
        self._open: OutputItem | None = None
        self._number = 0

    def begin(self) -> Iterator[bytes]:
        """Say that it runs."""
        yield self._made(Created, response=self.response)
        yield self._made(InProgress, response=self.response)

    def take(self, delta: ChatDelta) -> Iterator[bytes]:
        """Add what the answer gained."""
        for gain in gains(delta):
            if not self._goes_on(gain):
                yield from self._close("completed")
                yield from self._begin_item(gain)
            if gain.kind == "thoughts":
                self.thoughts.append(gain.text)
            if gain.text:
                self._texts.append(gain.text)
                yield self._delta(gain.text)

    def end(self, finish_reason: str | None, usage: ResponsesUsage) -> Iterator[bytes]:
        """End it, as the answer has ended."""
        is_cut = finish_reason == "length"
        yield from self._close("incomplete" if is_cut else "completed")
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
        begun += self._close("incomplete")
        response = self.response
        response.status = "failed"
        response.error = ResponseError(
            code=_CODES.get(error.status, "server_error"), message=error.answer.error.message
        )
        return b"".join([*begun, self._made(Failed, response=response)])

    # ------------------------------------------------------------------ items

    def _goes_on(self, gain: Gain) -> bool:
        """Whether the open item gained it."""
        kinds = {"thoughts": OutputReasoning, "text": OutputMessage, "call": OutputCall}
        return gain.call is None and isinstance(self._open, kinds[gain.kind])

    def _begin_item(self, gain: Gain) -> Iterator[bytes]:
        name, item = uuid4().hex, self._open
        if gain.call is not None:
            item = OutputCall(
                id=f"fc_{name}",
                status="in_progress",
                call_id=gain.call.id or "",
                name=gain.call.function.name or "",
                arguments="",
            )
        elif gain.kind == "thoughts":
            item = OutputReasoning(id=f"rs_{name}", status="in_progress", content=[])
        else:
            item = OutputMessage(id=f"msg_{name}", status="in_progress", content=[])
        self._open, self._texts = item, []
        self.response.output.append(item)
        yield self._made(ItemAdded, **self._place(), item=item)
        if not isinstance(item, OutputCall):
            yield self._made(PartAdded, **self._place_in(item), part=_part(item, ""))

    def _delta(self, text: str) -> bytes:
        item = self._open
        assert item is not None
        kinds: dict[type[OutputItem], type[Event]] = {
            OutputCall: ArgumentsDelta,
            OutputReasoning: ReasoningDelta,
            OutputMessage: TextDelta,
        }
        return self._made(kinds[type(item)], **self._place_in(item), delta=text)

    def _close(self, status: Status) -> Iterator[bytes]:
        """End the item that is open."""
        item, text = self._open, "".join(self._texts)
        if item is None:
            return
        place = self._place_in(item)
        if isinstance(item, OutputCall):
            item.arguments = text
            yield self._made(ArgumentsDone, **place, arguments=text)
        else:
            part = _part(item, text)
            if isinstance(item, OutputReasoning):
                item.content = [part]  # type: ignore[list-item]
                yield self._made(ReasoningDone, **place, text=text)
            else:
                item.content = [part]  # type: ignore[list-item]
                yield self._made(TextDone, **place, text=text)
            yield self._made(PartDone, **place, part=part)
        item.status = status
        yield self._made(ItemDone, **self._place(), item=item)
        self._open = None

    # ------------------------------------------------------------------ events

    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self.response.output) - 1}

    def _place_in(self, item: OutputItem) -> dict[str, Any]:
        return {"item_id": item.id, **self._place()}

    def _made(self, kind: type[Event], **fields: Any) -> bytes:
        made = kind(sequence_number=self._number, **fields)
        self._number += 1
        tag = made.__struct_config__.tag
        return event(str(tag), msgspec.json.encode(made))


def _part(item: OutputMessage | OutputReasoning, text: str) -> OutputText | ReasoningText:
    return ReasoningText(text=text) if isinstance(item, OutputReasoning) else OutputText(text=text)
