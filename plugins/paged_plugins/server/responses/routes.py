"""The routes ``responses``: OpenAI's Responses API, without anything that is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from paged_core.text.outputs import OutputDelta
from paged_plugins.server.answer import EventStream
from paged_plugins.server.errors import refused
from paged_plugins.server.http.endpoint import (
    GENERATES,
    TOKENISES,
    Endpoint,
    check_depth,
    json_response,
)
from paged_plugins.server.openai.chat import Chat, open_chat
from paged_plugins.server.openai.protocol import ChatRequest, Sampled, TokenizeRequest
from paged_plugins.server.responses.events import GrowingResponse
from paged_plugins.server.responses.protocol import (
    AnyEvent,
    InputItem,
    InputTokens,
    InputTokensDetails,
    InputTokensRequest,
    OutputTokensDetails,
    Part,
    Response,
    ResponsesRequest,
    ResponsesUsage,
)
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.settings import ResponsesSettings
from paged_plugins.server.translation.answers import num_prompt_tokens, number_of_tokens, whole
from paged_plugins.server.translation.conversation import Conversation, joined
from paged_plugins.server.translation.names import renamed

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    r"response_format\.json_schema": "text.format",
    "response_format": "text.format",
    r"(tools\.\d+)\.function": r"\1",
}
"""By fields of chat completions: what they are called here."""
_LOGPROBS = "message.output_text.logprobs"


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """Return what is asked of the model.

    Raises:
        ApiError: an item of the input is not what it should be.
    """
    has_logprobs = _LOGPROBS in (body.include or ())
    if body.top_logprobs and not has_logprobs:
        raise refused("top_logprobs", f"top_logprobs needs {_LOGPROBS}; add that to include")
    return ChatRequest(
        **{name: getattr(body, name) for name in Sampled.__struct_fields__},
        **_prompt(body),
        logprobs=has_logprobs or None,
        top_logprobs=body.top_logprobs,
        max_completion_tokens=body.max_output_tokens,
        stop=body.stop,
        user=body.user,
        response_format=_form(body),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
    )


def tokenize_request(body: InputTokensRequest) -> TokenizeRequest:
    """Return what is to be tokenised.

    Raises: as :func:`chat_request`.
    """
    return TokenizeRequest(**_prompt(body))


def _prompt(body: ResponsesRequest | InputTokensRequest) -> dict[str, Any]:
    """Return the fields that make the prompt."""
    return {
        "messages": _conversation(body).messages,
        "tools": _tools(body.tools or ()) or None,
        "chat_template_kwargs": body.chat_template_kwargs,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
    }


def _conversation(body: ResponsesRequest | InputTokensRequest) -> Conversation:
    made = Conversation()
    if body.instructions:
        made.say("system", body.instructions)
    if isinstance(body.input, str):
        made.say("user", body.input)
    else:
        for place, item in enumerate(body.input):
            _add(made, item, f"input.{place}")
    return made


def _add(made: Conversation, item: InputItem, path: str) -> None:
    if item.type == "message":
        made.say(_given(item, "role", path), _text(_given(item, "content", path)))
    elif item.type == "reasoning":
        made.think(_text(item.content or item.summary or ""))
    elif item.type == "function_call":
        made.call(
            _given(item, "call_id", path),
            _given(item, "name", path),
            _given(item, "arguments", path),
        )
    else:
        made.give_result(_given(item, "call_id", path), _text(_given(item, "output", path)))


def _given(item: InputItem, name: str, path: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise refused(f"{path}.{name}", f"{path}.{name} is missing; a {item.type} needs it")
    return value


def _text(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return joined(part.text or part.refusal for part in content)


def _form(body: ResponsesRequest) -> dict[str, Any] | None:
    """Return the format of the text, with the fields of a schema in an object of their own."""
    given = body.text.format if body.text else None
    if given is None or given.get("type") != "json_schema":
        return given
    check_depth("text.format", given)
    schema = {name: value for name, value in given.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions, each in an object of its own; other tools are left to be refused."""
    made = []
    for tool in tools:
        given = {name: value for name, value in tool.items() if value is not None}
        made.append({"type": given.pop("type", None), "function": given})
    return made


def _tool_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    check_depth("tool_choice", choice)
    if set(choice) != {"type", "name"} or choice["type"] != "function":
        what = "none, auto, required, or {'type': 'function', 'name': ...}"
        raise refused("tool_choice", f"tool_choice must be {what}")
    return {"type": "function", "function": {"name": choice["name"]}}


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
        with renamed(NAMES):
            chat = await open_chat(self._service, chat_request(body), "resp_")
        (stream,) = chat.answer.streams
        made = GrowingResponse(chat.answer.id, chat.model, body, stream.request.sampling)
        if body.stream:
            events = _Events(chat, made, self._usage)
            return EventStream(chat.answer, events, self._service.options, failed=made.fail)
        with chat.answer as answer, renamed(NAMES):
            async with answer.within_deadline():
                delta, logprobs = await whole(chat)
            for _ in made.take(delta, logprobs):
                pass
            for _ in made.end(delta.finish_reason, await self._usage(chat, made)):
                pass
            request.state.log |= answer.counts
            return json_response(made.response)

    async def count_tokens(self, _: Request, body: InputTokensRequest) -> Any:
        """Say how many tokens the prompt of an input has."""
        self._service.check_model(body.model)
        with renamed(NAMES):
            number = await num_prompt_tokens(self._service, tokenize_request(body))
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
        return b"".join([*begun, *self._made.take(delta, self._chat.formatted(delta.logprobs))])

    async def end(self) -> bytes:
        usage = await self._usage(self._chat, self._made)
        return b"".join(self._made.end(self._reason, usage))
