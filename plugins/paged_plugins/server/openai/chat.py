"""``/v1/chat/completions``, and conversations for other APIs that are translations onto it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from paged_core.text.outputs import OutputDelta
from paged_core.text.prompts import Prompt
from paged_plugins.server.errors import refused
from paged_plugins.server.http.endpoint import check_depth, json_response
from paged_plugins.server.http.event_stream import EventStream
from paged_plugins.server.openai.chunks import Chunks, encode, usage_of
from paged_plugins.server.openai.formats import ChatDelta, Parser, format_of
from paged_plugins.server.openai.logprobs import LogprobFormat, prompt_logprobs
from paged_plugins.server.openai.parameters import (
    answer_id,
    check_choices,
    cut_prompts,
    request_fields,
    sampling_params,
    token_texts,
)
from paged_plugins.server.openai.protocol import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    MadeToolCall,
    Message,
    MessageDelta,
    TokenizeRequest,
)
from paged_plugins.server.service import Answer, Service

_MESSAGES = 4096
"""Of a conversation, at most; or as many as the model takes tokens, if that is more."""
_TOOLS = 1024
_TOOL_SIZE = 256
"""Characters, about, of the description of a tool."""
_ROLE = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
_PLAIN_END = b'},"logprobs":null,"finish_reason":null}'


async def chat(service: Service, request: Request, body: ChatRequest) -> Any:
    """Answer a conversation, whole or as events."""
    made = await open_chat(service, body)
    if body.stream:
        return EventStream(made.answer, ChatEvents(made), service.options)
    with made.answer as answer:
        async with answer.within_deadline():
            found = await made.whole()
    request.state.log |= answer.counts
    return json_response(found)


async def open_chat(service: Service, body: ChatRequest, prefix: str = "chatcmpl-") -> Chat:
    """Give a conversation to the engine.

    Args:
        prefix: what the id of the answer begins with.

    Raises:
        ApiError, RequestError: it can never be answered, or not now.
    """
    model = service.check_model(body.model)
    service.check_room()
    size = size_of(body)
    if body.truncate_prompt_tokens is not None:
        service.check_length("messages", size)
    (prompt,) = await service.off_loop(lambda: [chat_prompt(service, body)], size)
    asked = format_of(service, body, prompt["prompt"] if isinstance(prompt, Mapping) else None)
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
        if max_tokens < 1:
            message = f"max_completion_tokens must be at least 1, not {max_tokens}"
            raise refused("max_completion_tokens", message)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    if body.top_logprobs and not body.logprobs:
        raise refused("top_logprobs", "top_logprobs needs logprobs; set it to true")
    sampling = sampling_params(
        body, service.options, max_tokens=max_tokens, logprobs=logprobs, **asked.sampling
    )
    check_choices(sampling, 1, service.options)
    name, fields = answer_id(body, prefix), request_fields(body)
    generations = await service.off_loop(
        lambda: service.generations(
            name, cut_prompts(service, body, [prompt], sampling), sampling, fields, body.deadline
        ),
        size,
    )
    answer = Answer(service, name, generations, body.deadline)
    return Chat(service, body, model, answer, asked.make_parser)


def chat_prompt(service: Service, body: ChatRequest | TokenizeRequest) -> Prompt:
    """Return the prompt that the chat template makes of a conversation.

    Raises:
        ApiError, RequestError: it is empty, or the template refuses it.
    """
    if not body.messages:
        raise refused("messages", "messages is empty; give at least one message")
    many = max(_MESSAGES, service.front_end.max_model_len)
    for field, most in (("messages", many), ("documents", many), ("tools", _TOOLS)):
        entries = getattr(body, field) or ()
        if len(entries) > most:
            raise refused(field, f"{field} has {len(entries)} entries; {most} are read at most")
    check_depth("chat_template_kwargs", body.chat_template_kwargs)
    check_depth("documents", body.documents)
    check_depth("tools", body.tools)
    (prompt,) = service.client.front_end.chat_prompts(
        [_plain(message) for message in body.messages],
        tools=body.tools or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template_kwargs=_template_options(body),
    )
    if body.add_special_tokens and isinstance(prompt, Mapping):
        return {**prompt, "add_special_tokens": True}
    return prompt


def _template_options(body: ChatRequest | TokenizeRequest) -> dict[str, Any] | None:
    """Return what else the chat template is told; the client's own words come first."""
    own: dict[str, Any] = {}
    if body.documents is not None:
        own["documents"] = body.documents
    if body.reasoning_effort == "none":
        own["enable_thinking"] = False
    elif body.reasoning_effort is not None:
        own["reasoning_effort"] = body.reasoning_effort
    return own | (body.chat_template_kwargs or {}) or None


def size_of(body: ChatRequest | TokenizeRequest) -> int:
    """Return about how many characters a conversation has for its template."""
    size = _TOOL_SIZE * len(body.tools or ())
    for told in (body.tools, body.documents, body.chat_template_kwargs):
        size += len(encode(told)) if told else 0
    for each in body.messages or ():
        parts = each.content if isinstance(each.content, list) else ()
        size += len(each.content or "") + sum(len(part.text or "") for part in parts)
    return size


def _texts(message: Message) -> list[str]:
    """Return the texts of the parts of a message."""
    content = message.content or ""
    if isinstance(content, str):
        return [content]
    return [part.text or part.refusal or "" for part in content]


def _echoed(body: ChatRequest) -> str:
    """Return what answers begin with, as the template has read it."""
    last = body.messages[-1]
    return " ".join(_texts(last)) if body.echo and last.role == "assistant" else ""


def _plain(message: Message) -> dict[str, Any]:
    """Return a message as templates know it: with arguments of functions as objects.

    Raises:
        ApiError: arguments are no JSON.
    """
    made: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.role == "developer":
        made["role"] = "system"
    if isinstance(message.content, list):
        made["content"] = [{"type": "text", "text": text} for text in _texts(message)]
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if reasoning := message.reasoning_content or message.reasoning:
        made["reasoning_content"] = reasoning
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return made


def _arguments(text: str) -> Any:
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise refused("messages", "the arguments of a tool call are no JSON") from None
    check_depth("messages", found)
    return found


class Chat:
    """A conversation that the engine answers.

    It knows nothing of HTTP. Close it, as a ``with`` block of its :attr:`answer` does, to abort
    what has not ended.
    """

    def __init__(
        self,
        service: Service,
        body: ChatRequest,
        model: str,
        answer: Answer,
        make_parser: Any = None,
    ) -> None:
        self.answer, self.body, self.model = answer, body, model
        self.echoed = _echoed(body)
        """What every answer begins with."""
        self._make_parser = make_parser
        self._parsers: dict[int, Parser] = {}
        self._logprobs: LogprobFormat | None = None
        if body.logprobs:
            self._logprobs = LogprobFormat(
                token_texts(service, body), body.top_logprobs or 0, service.token_bytes
            )

    def parsed(self, delta: OutputDelta) -> ChatDelta:
        """Return what is shown of what an answer gained."""
        reason = delta.finish_reason
        found = ChatDelta(
            delta.index,
            delta.text,
            delta.token_ids,
            delta.logprobs,
            None if reason is None else reason.value,
            delta.stop_reason,
        )
        if self._make_parser is None:
            return found
        parser = self._parsers.get(found.index)
        if parser is None:
            parser = self._parsers[found.index] = self._make_parser()
        return parser(found)

    # ------------------------------------------------------------------ whole

    async def whole(self) -> ChatCompletion:
        """Return the whole answer, once it is there.

        Raises: as :meth:`Answer.outputs`.
        """
        (output,) = await self.answer.outputs()
        made: dict[int, _Gathered] = {}
        for each in output.outputs:
            gathered = made[each.index] = _Gathered()
            if (delta := self.parsed(each)) is not None:
                gathered.add(delta)
        body = self.body
        return ChatCompletion(
            id=self.answer.id,
            object="chat.completion",
            created=int(time.time()),
            model=self.model,
            choices=[self._choice(index, made[index]) for index in sorted(made)],
            usage=usage_of(self.answer, self.answer.num_generated),
            prompt_token_ids=output.prompt_token_ids if body.return_token_ids else None,
            prompt_logprobs=(
                None if body.prompt_logprobs is None else prompt_logprobs(output.prompt_logprobs)
            ),
        )

    def _choice(self, index: int, made: _Gathered) -> ChatChoice:
        calls = list(made.tool_calls.values())
        content, thoughts = self.echoed + "".join(made.content), "".join(made.reasoning) or None
        return ChatChoice(
            index=index,
            message=ChatMessage(
                role="assistant",
                content=None if calls and not content else content,
                refusal=None,
                reasoning=thoughts,
                reasoning_content=thoughts,
                tool_calls=calls or None,
            ),
            logprobs=self.formatted(made.logprobs),
            finish_reason=made.finish_reason,  # type: ignore[arg-type]
            stop_reason=made.stop_reason,
            token_ids=made.token_ids if self.body.return_token_ids else None,
        )

    def formatted(self, entries: Any) -> ChatLogprobs | None:
        """Return log-probabilities as the request wants them; ``None``: it wants none."""
        if self._logprobs is None or entries is None:
            return None
        return self._logprobs.chat(entries)


class ChatEvents:
    """Encodes what each answer gains."""

    def __init__(self, made: Chat) -> None:
        self._made, body = made, made.body
        first = {}
        if body.return_token_ids:
            first["prompt_token_ids"] = list(made.answer.streams[0].request.prompt)
        self._chunks = Chunks("chat.completion.chunk", body, made.answer, made.model, **first)
        self._is_plain = not body.logprobs and not body.return_token_ids
        self._heads: dict[int, bytes] = {}

    def take(self, _: int, gained: OutputDelta, /) -> bytes:
        delta, chunks = self._made.parsed(gained), self._chunks
        head, first = self._heads.get(delta.index), b""
        if head is None:
            place = b'{"index":%d' % delta.index
            head = self._heads[delta.index] = place + b',"delta":{"content":'
            first = chunks.chunk(place + _ROLE)
            if self._made.echoed:
                first += chunks.chunk(head + encode(self._made.echoed) + _PLAIN_END)
        chunks.num_shown += len(delta.token_ids)
        if (
            self._is_plain
            and delta.finish_reason is None
            and delta.reasoning_content is None
            and delta.tool_calls is None
        ):
            if delta.content:
                return first + chunks.chunk(head + encode(delta.content) + _PLAIN_END)
            return first
        return first + chunks.chunk(encode(self._gained(delta)))

    async def end(self) -> bytes:
        return self._chunks.end()

    def _gained(self, delta: ChatDelta) -> ChatChunkChoice:
        # what gains nothing else has a text, if an empty one: clients add it to what they have
        has_others = delta.reasoning_content or delta.tool_calls
        return ChatChunkChoice(
            index=delta.index,
            delta=MessageDelta(
                content=delta.content or (None if has_others else ""),
                reasoning=delta.reasoning_content,
                reasoning_content=delta.reasoning_content,
                tool_calls=delta.tool_calls,
            ),
            logprobs=self._made.formatted(delta.logprobs),
            finish_reason=delta.finish_reason,  # type: ignore[arg-type]
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._made.body.return_token_ids else None,
        )


class _Gathered:
    """All that one answer gained."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.tool_calls: dict[int, MadeToolCall] = {}
        self.token_ids: list[int] = []
        self.logprobs: list[Any] | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def add(self, delta: ChatDelta) -> None:
        """Add what it gained."""
        self.content.append(delta.content or "")
        self.reasoning.append(delta.reasoning_content or "")
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        for gain in delta.tool_calls or ():
            self._add_call(gain)

    def _add_call(self, gain: MadeToolCall) -> None:
        place = gain.index or 0
        call = self.tool_calls.get(place)
        if call is None:
            self.tool_calls[place] = msgspec.structs.replace(
                gain, index=None, function=msgspec.structs.replace(gain.function)
            )
            return
        call.function.arguments = (call.function.arguments or "") + (gain.function.arguments or "")
