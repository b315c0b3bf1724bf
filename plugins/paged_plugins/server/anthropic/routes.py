"""The routes ``anthropic``: the API of Anthropic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
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
    SentMessage,
    SentText,
    SentThinking,
    SentToolResult,
    SentToolUse,
    TokenCount,
    ToolChoice,
)
from paged_plugins.server.errors import refused
from paged_plugins.server.http.endpoint import (
    GENERATES,
    TOKENISES,
    Endpoint,
    check_depth,
    json_response,
)
from paged_plugins.server.openai.chat import Chat, ChatDelta, open_chat
from paged_plugins.server.openai.protocol import ChatRequest, Sampled, TokenizeRequest
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.settings import AnthropicSettings
from paged_plugins.server.translation.answers import num_prompt_tokens, number_of_tokens, whole
from paged_plugins.server.translation.conversation import Conversation, joined
from paged_plugins.server.translation.names import renamed

NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    r"response_format\.json_schema": "output_config.format",
    "response_format": "output_config.format",
    r"(tools\.\d+)\.function\.parameters": r"\1.input_schema",
    r"(tools\.\d+)\.function": r"\1",
}
"""By fields of chat completions: what they are called here."""


def chat_request(body: MessagesRequest) -> ChatRequest:
    """Return what is asked of the model.

    Raises:
        ApiError: a block is where none such may be.
    """
    choice, config = body.tool_choice, body.output_config
    schema = config.format if config else None
    return ChatRequest(
        **{name: getattr(body, name) for name in Sampled.__struct_fields__},
        **_prompt(body),
        max_completion_tokens=body.max_tokens,
        stop=body.stop_sequences,
        user=body.metadata.user_id if body.metadata else None,
        response_format=(
            {"type": "json_schema", "json_schema": {"schema": schema.schema}} if schema else None
        ),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=(
            False if choice is not None and choice.disable_parallel_tool_use else None
        ),
    )


def tokenize_request(body: CountTokensRequest) -> TokenizeRequest:
    """Return what is to be tokenised.

    Raises:
        ApiError: a block is where none such may be.
    """
    return TokenizeRequest(model=body.model, **_prompt(body))


def _prompt(body: MessagesRequest | CountTokensRequest) -> dict[str, Any]:
    """Return the fields that make the prompt."""
    made = Conversation()
    if body.system:
        made.say("system", _text(body.system))
    for place, message in enumerate(body.messages):
        _add(made, message, f"messages.{place}")
    last = made.messages[-1] if made.messages else None
    continues = (
        last is not None and last.role == "assistant" and last.content and not last.tool_calls
    )
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({"description": tool.description} if tool.description is not None else {}),
                "parameters": tool.input_schema,
            },
        }
        for tool in body.tools or ()
    ]
    return {
        "messages": made.messages if body.messages else [],
        "tools": tools or None,
        "continue_final_message": True if continues else None,
        "chat_template_kwargs": _template_options(body),
    }


def _add(made: Conversation, message: SentMessage, path: str) -> None:
    content = message.content or ""
    if isinstance(content, str):
        made.say(message.role, content)
        return
    place = 0
    for kind, group in groupby(content, type):
        blocks: Sequence[Any] = list(group)
        where = f"{path}.content.{place}"
        place += len(blocks)
        if kind is SentText:
            made.say(message.role, _text(blocks))
            continue
        needed = "user" if kind is SentToolResult else "assistant"
        if message.role != needed:
            name = blocks[0].__struct_config__.tag
            raise refused(where, f"{where}: a {name} block is for messages of the {needed}")
        for each in blocks:
            if isinstance(each, SentThinking):
                made.think(each.thinking)
            elif isinstance(each, SentToolUse):
                check_depth(where, each.input)
                made.call(each.id, each.name, msgspec.json.encode(each.input).decode())
            else:
                made.give_result(each.tool_use_id, _result(each))


def _text(content: str | Sequence[SentText]) -> str:
    return content if isinstance(content, str) else joined(block.text for block in content)


def _result(block: SentToolResult) -> str:
    text = _text(block.content or "")
    return f"Error: {text}" if block.is_error else text


def _template_options(body: MessagesRequest | CountTokensRequest) -> dict[str, Any] | None:
    """Return what the chat template is told; the client's own words come first."""
    own: dict[str, Any] = {}
    if body.thinking is not None and body.thinking.type != "adaptive":
        own["enable_thinking"] = body.thinking.type == "enabled"
    if body.output_config is not None and body.output_config.effort is not None:
        own["reasoning_effort"] = body.output_config.effort
    return own | (body.chat_template_kwargs or {}) or None


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if (choice.name is None) == (choice.type == "tool"):
        raise refused("tool_choice.name", "tool_choice.name is for the type tool, and needed there")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"any": "required"}.get(choice.type, choice.type)


class AnthropicRoutes(Routes):
    """Messages, each a translation of a chat completion."""

    def __init__(self, _: AnthropicSettings, service: Service) -> None:
        self._service = service

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
        with renamed(NAMES):
            chat = await open_chat(self._service, chat_request(body), "msg_")
        made = GrowingMessage(chat.answer.id, chat.model)
        if body.stream:
            return EventStream(
                chat.answer,
                _Events(chat, made, self._last_usage),
                self._service.options,
                failed=failed,
                ping=PING,
            )
        with chat.answer as answer, renamed(NAMES):
            async with answer.within_deadline():
                delta, _ = await whole(chat)
            for _ in made.take(delta):
                pass
            for _ in made.end(delta, await self._last_usage(chat, made)):
                pass
            request.state.log |= answer.counts
            return json_response(made.message)

    async def count_tokens(self, _: Request, body: CountTokensRequest) -> Any:
        """Say how many tokens the prompt of a conversation has."""
        self._service.check_model(body.model)
        with renamed(NAMES):
            number = await num_prompt_tokens(self._service, tokenize_request(body))
        return json_response(TokenCount(input_tokens=number))

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
