"""The routes ``responses``: OpenAI's Responses API, without anything that is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from paged_core.text.outputs import OutputDelta
from paged_plugins.server.answer import EventStream
from paged_plugins.server.http.endpoint import (
    GENERATES,
    TOKENISES,
    Endpoint,
    json_response,
    translate,
    warn,
)
from paged_plugins.server.openai.chat import Chat, open_chat
from paged_plugins.server.responses.events import GrowingResponse
from paged_plugins.server.responses.protocol import (
    AnyEvent,
    InputTokens,
    InputTokensDetails,
    InputTokensRequest,
    OutputTokensDetails,
    Response,
    ResponsesRequest,
    ResponsesUsage,
)
from paged_plugins.server.responses.reading import Reading
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.settings import ResponsesSettings
from paged_plugins.server.translation.answers import num_prompt_tokens, number_of_tokens, whole

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    r"response_format\.json_schema": "text.format",
    "response_format": "text.format",
    r"(tools\.\d+)\.function": r"\1",
}
"""By fields of chat completions: what they are called here."""


class ResponsesRoutes(Routes):
    """Responses, each a translation of a chat completion."""

    def __init__(self, _: ResponsesSettings, service: Service) -> None:
        self._service = service

    def routes(self) -> Sequence[BaseRoute]:
        return [
            Endpoint(
                "POST",
                "/v1/responses",
                self.respond,
                summary="Answer an input: text, or a conversation as items.",
                body=ResponsesRequest,
                answer=Response,
                events=AnyEvent,
                errors=GENERATES,
            ),
            Endpoint(
                "POST",
                "/v1/responses/input_tokens",
                self.count_tokens,
                summary="How many tokens an input has.",
                body=InputTokensRequest,
                answer=InputTokens,
                errors=TOKENISES,
            ),
        ]

    async def respond(self, request: Request, body: ResponsesRequest) -> Any:
        """Answer an input, whole or as events."""
        translate(request, NAMES)
        read = Reading(body)
        warn(request, read.warnings)
        chat = await open_chat(self._service, request, read.chat(), "resp_")
        (stream,) = chat.answer.streams
        sampling, names = stream.request.sampling, read.tools.names
        made = GrowingResponse(chat.answer.id, chat.model, body, sampling, names)
        if body.stream:
            events = _Events(chat, made, self._usage)
            return EventStream(chat.answer, events, self._service.options, failed=made.fail)
        with chat.answer as answer:
            async with answer.within_deadline():
                delta, logprobs = await whole(chat)
            for _ in made.take(delta, logprobs):
                pass
            for _ in made.end(delta.finish_reason, await self._usage(chat, made)):
                pass
            request.state.log |= answer.counts
            return json_response(made.response)

    async def count_tokens(self, request: Request, body: InputTokensRequest) -> Any:
        """Say how many tokens the prompt of an input has."""
        self._service.check_model(body.model)
        translate(request, NAMES)
        read = Reading(body)
        warn(request, read.warnings)
        number = await num_prompt_tokens(self._service, read.tokenized())
        return json_response(InputTokens(input_tokens=number))

    async def _usage(self, chat: Chat, made: GrowingResponse) -> ResponsesUsage:
        answer = chat.answer
        num_input, num_output = answer.num_prompt_tokens, answer.num_generated
        num_thoughts = await number_of_tokens(self._service, made.thoughts)
        return ResponsesUsage(
            input_tokens=num_input,
            input_tokens_details=InputTokensDetails(cached_tokens=answer.num_cached_tokens),
            output_tokens=num_output,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=min(num_thoughts, num_output)
            ),
            total_tokens=num_input + num_output,
        )


class _Events:
    """Encodes what a response gains."""

    def __init__(
        self,
        chat: Chat,
        made: GrowingResponse,
        usage: Callable[[Chat, GrowingResponse], Awaitable[ResponsesUsage]],
    ) -> None:
        self._chat, self._made, self._usage = chat, made, usage
        self._reason: str | None = None
        self._has_begun = False

    def take(self, _: int, gained: OutputDelta, /) -> bytes:
        delta = self._chat.parsed(gained)
        begun = [] if self._has_begun else [*self._made.begin()]
        self._has_begun, self._reason = True, delta.finish_reason
        return b"".join([*begun, *self._made.take(delta, self._chat.formatted(delta))])

    async def end(self) -> bytes:
        usage = await self._usage(self._chat, self._made)
        return b"".join(self._made.end(self._reason, usage))
