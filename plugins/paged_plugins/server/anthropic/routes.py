"""The routes ``anthropic``: the API of Anthropic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from paged_core.text.outputs import OutputDelta
from paged_plugins.server.answer import EventStream
from paged_plugins.server.anthropic.events import PING, GrowingMessage, failed
from paged_plugins.server.anthropic.protocol import (
    AnthropicError,
    AnyEvent,
    CountTokensRequest,
    Message,
    MessagesRequest,
    MessagesUsage,
    OutputTokensDetails,
    TokenCount,
)
from paged_plugins.server.anthropic.reading import Reading
from paged_plugins.server.http.endpoint import (
    GENERATES,
    TOKENISES,
    Endpoint,
    json_response,
    translate,
    warn,
)
from paged_plugins.server.openai.chat import Chat, ChatDelta, open_chat
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.settings import AnthropicSettings
from paged_plugins.server.translation.answers import num_prompt_tokens, number_of_tokens, whole

NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    r"response_format\.json_schema": "output_config.format",
    "response_format": "output_config.format",
    r"(tools\.\d+)\.function\.parameters": r"\1.input_schema",
    r"(tools\.\d+)\.function": r"\1",
}
"""By fields of chat completions: what they are called here."""


class AnthropicRoutes(Routes):
    """Messages, each a translation of a chat completion."""

    def __init__(self, options: AnthropicSettings, service: Service) -> None:
        self._options, self._service = options, service

    def routes(self) -> Sequence[BaseRoute]:
        endpoint = partial(Endpoint, "POST", error=AnthropicError)
        return [
            endpoint(
                "/v1/messages",
                self.answer,
                summary="Answer a conversation.",
                body=MessagesRequest,
                answer=Message,
                events=AnyEvent,
                errors=GENERATES,
            ),
            endpoint(
                "/v1/messages/count_tokens",
                self.count_tokens,
                summary="How many tokens a conversation has.",
                body=CountTokensRequest,
                answer=TokenCount,
                errors=TOKENISES,
            ),
        ]

    async def answer(self, request: Request, body: MessagesRequest) -> Any:
        """Answer a conversation, whole or as events."""
        translate(request, NAMES)
        read = self._read(request, body)
        chat = await open_chat(self._service, request, read.chat(), "msg_")
        made = GrowingMessage(chat.answer.id, chat.model)
        if body.stream:
            return EventStream(
                chat.answer,
                _Events(chat, made, self._last_usage),
                self._service.options,
                failed=failed,
                ping=PING,
            )
        with chat.answer as answer:
            async with answer.within_deadline():
                delta, _ = await whole(chat)
            for _ in made.take(delta):
                pass
            for _ in made.end(delta, await self._last_usage(chat, made)):
                pass
            request.state.log |= answer.counts
            return json_response(made.message)

    async def count_tokens(self, request: Request, body: CountTokensRequest) -> Any:
        """Say how many tokens the prompt of a conversation has."""
        self._service.check_model(body.model)
        translate(request, NAMES)
        asked = self._read(request, body).tokenized()
        number = await num_prompt_tokens(self._service, asked)
        return json_response(TokenCount(input_tokens=number))

    def _read(self, request: Request, body: MessagesRequest) -> Reading:
        read = Reading(body, strips_billing_line=self._options.strip_billing_line)
        warn(request, read.warnings)
        return read

    async def _last_usage(self, chat: Chat, made: GrowingMessage) -> MessagesUsage:
        usage = _usage(chat)
        number = await number_of_tokens(self._service, made.thoughts)
        if number:
            number = min(number, usage.output_tokens)
            usage.output_tokens_details = OutputTokensDetails(thinking_tokens=number)
        return usage


class _Events:
    """Encodes what a message gains."""

    def __init__(
        self,
        chat: Chat,
        made: GrowingMessage,
        usage: Callable[[Chat, GrowingMessage], Awaitable[MessagesUsage]],
    ) -> None:
        self._chat, self._made, self._usage = chat, made, usage
        self._last: ChatDelta | None = None

    def take(self, _: int, gained: OutputDelta, /) -> bytes:
        begun = self._made.begin(_usage(self._chat)) if self._last is None else b""
        self._last = self._chat.parsed(gained)
        return begun + b"".join(self._made.take(self._last))

    async def end(self) -> bytes:
        assert self._last is not None
        usage = await self._usage(self._chat, self._made)
        return b"".join(self._made.end(self._last, usage))


def _usage(chat: Chat) -> MessagesUsage:
    answer = chat.answer
    return MessagesUsage(
        input_tokens=answer.num_prompt_tokens - answer.num_cached_tokens,
        cache_read_input_tokens=answer.num_cached_tokens,
        cache_creation_input_tokens=0,
        output_tokens=answer.num_generated,
    )
