"""A message as it comes into being: its blocks, and the events that say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from paged_plugins.server.anthropic.protocol import (
    AnthropicError,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessagesUsage,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from paged_plugins.server.errors import ApiError
from paged_plugins.server.openai.chat import ChatDelta
from paged_plugins.server.translation.answers import Gain, Growing, event

PING = event("ping", b'{"type":"ping"}')


class GrowingMessage(Growing):
    """A message."""

    def __init__(self, answer_id: str, model: str) -> None:
        super().__init__()
        usage = MessagesUsage(
            input_tokens=0,
            cache_read_input_tokens=0,
            cache_creation_input_tokens=0,
            output_tokens=0,
        )
        self.message = Message(
            id=answer_id, model=model, content=[], stop_reason=None, stop_sequence=None, usage=usage
        )

    def begin(self, usage: MessagesUsage) -> bytes:
        """Say that it begins."""
        self.message.usage = usage
        return _encoded(MessageStart(message=self.message))

    def end(self, delta: ChatDelta, usage: MessagesUsage) -> Iterator[bytes]:
        """End it.

        Args:
            delta: the last one, which says why.
        """
        yield from self._close()
        message = self.message
        message.usage = usage
        message.stop_reason, message.stop_sequence = _ending(delta)
        ending = Ending(stop_reason=message.stop_reason, stop_sequence=message.stop_sequence)
        yield _encoded(MessageDelta(delta=ending, usage=usage))
        yield _encoded(MessageStop())

    def _begin_section(self, gain: Gain) -> Iterator[bytes]:
        block: Block
        if gain.call is not None:
            call = gain.call
            block = ToolUseBlock(id=call.id or "", name=call.function.name or "", input={})
        elif gain.kind == "thoughts":
            block = ThinkingBlock(thinking="")
        else:
            block = TextBlock(text="")
        self.message.content.append(block)
        yield _encoded(BlockStart(index=self._index, content_block=block))

    def _grow_section(self, gain: Gain) -> bytes:
        delta: TextDelta | ThinkingDelta | InputDelta
        if gain.kind == "text":
            delta = TextDelta(text=gain.text)
        elif gain.kind == "thoughts":
            delta = ThinkingDelta(thinking=gain.text)
        else:
            delta = InputDelta(partial_json=gain.text)
        return _encoded(BlockDelta(index=self._index, delta=delta))

    def _end_section(self, text: str, *, is_cut: bool) -> Iterator[bytes]:
        block = self.message.content[-1]
        if isinstance(block, ToolUseBlock):
            block.input = msgspec.json.decode(text)
        elif isinstance(block, ThinkingBlock):
            block.thinking = text
        else:
            block.text = text
        yield _encoded(BlockStop(index=self._index))

    @property
    def _index(self) -> int:
        return len(self.message.content) - 1


def failed(error: ApiError) -> bytes:
    """Return the last event of what went wrong."""
    return event("error", msgspec.json.encode(AnthropicError.of(error)))


def _ending(delta: ChatDelta) -> tuple[StopReason, str | None]:
    """Return why a message has ended, and at which string."""
    if delta.finish_reason == "tool_calls":
        return "tool_use", None
    if delta.finish_reason == "length":
        return "max_tokens", None
    if isinstance(delta.stop_reason, str):
        return "stop_sequence", delta.stop_reason
    return "end_turn", None


def _encoded(made: Any) -> bytes:
    return event(made.__struct_config__.tag, msgspec.json.encode(made))
