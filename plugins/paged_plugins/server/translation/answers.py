"""Answers of chat completions as a sequence of sections: thoughts, text and calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paged_plugins.server.openai.chat import Chat, ChatDelta
from paged_plugins.server.openai.parameters import chat_prompt, size_of
from paged_plugins.server.openai.protocol import ChatLogprobs, MadeToolCall, TokenizeRequest
from paged_plugins.server.service import Service


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain of one section of an answer."""

    kind: Literal["thoughts", "text", "call"]
    text: str
    """Text gained; a call gains text of its arguments."""
    call: MadeToolCall | None = None
    """The call that begins with this gain."""


def gains(delta: ChatDelta) -> Iterator[Gain]:
    """Yield what the sections of an answer gained, in an order in which each can end before the
    next one begins: a call that goes on goes on first, and new ones come last."""
    if delta.reasoning_content:
        yield Gain("thoughts", delta.reasoning_content)
    calls = delta.tool_calls or ()
    for each in calls:
        if each.id is None and each.function.arguments:
            yield Gain("call", each.function.arguments)
    if delta.content:
        yield Gain("text", delta.content)
    for each in calls:
        if each.id is not None:
            yield Gain("call", each.function.arguments or "", each)


class Growing(ABC):
    """An answer in the form of another API, as it grows: sections, of which one is open at a time.

    Its methods return the events of what happened.
    """

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self._open: str | None = None
        """The kind of the section that grows."""
        self._texts: list[str] = []
        """Texts of that section so far."""

    def take(self, delta: ChatDelta) -> Iterator[bytes]:
        """Add what the answer gained."""
        for gain in gains(delta):
            if gain.call is not None or gain.kind != self._open:
                yield from self._close()
                self._open, self._texts = gain.kind, []
                yield from self._begin_section(gain)
            if gain.kind == "thoughts":
                self.thoughts.append(gain.text)
            if gain.text:
                self._texts.append(gain.text)
                yield self._grow_section(gain)

    def _close(self, *, is_cut: bool = False) -> Iterator[bytes]:
        """End the section that is open, if one is."""
        if self._open is not None:
            self._open = None
            yield from self._end_section("".join(self._texts), is_cut=is_cut)

    @abstractmethod
    def _begin_section(self, gain: Gain) -> Iterator[bytes]:
        """Add a section, which this gain begins; its text is added later."""

    @abstractmethod
    def _grow_section(self, gain: Gain) -> bytes:
        """Say what the section gained."""

    @abstractmethod
    def _end_section(self, text: str, *, is_cut: bool) -> Iterator[bytes]:
        """Give the section all of its text."""


async def whole(chat: Chat) -> tuple[ChatDelta, ChatLogprobs | None]:
    """Return the whole answer to a conversation that has one, as if gained at once.

    Its log-probabilities are beside it, as they are shown.

    Raises: as :meth:`Chat.whole`.
    """
    (choice,) = (await chat.whole()).choices
    message = choice.message
    delta = ChatDelta(
        index=0,
        content=message.content,
        token_ids=[],
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        reasoning_content=message.reasoning_content,
        tool_calls=message.tool_calls,
    )
    return delta, choice.logprobs


async def num_prompt_tokens(service: Service, asked: TokenizeRequest) -> int:
    """Return how many tokens the prompt of a conversation has.

    Raises:
        ApiError, RequestError: it cannot be made.
    """

    def count() -> int:
        return len(service.front_end.encode(chat_prompt(service, asked))[1])

    return await service.off_loop(count, size_of(asked))


async def number_of_tokens(service: Service, texts: list[str]) -> int:
    """Return how many tokens the thoughts of an answer have, about: as its text is tokenised."""
    text = "".join(texts)
    tokenizer = service.front_end.tokenizer
    if not text or tokenizer is None:
        return 0
    return len(
        await service.off_loop(lambda: tokenizer.encode(text, add_special_tokens=False), len(text))
    )


def event(kind: str, data: bytes) -> bytes:
    """Return an event of a stream, whose data says its kind, too."""
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
