"""``/v1/chat/completions``, and conversations for other APIs that are translations onto it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec
from starlette.requests import Request

from paged_core.text.outputs import Logprob, OutputDelta
from paged_plugins.server.answer import Answer, EventStream
from paged_plugins.server.http.endpoint import given_fields, json_response, warn
from paged_plugins.server.openai.calls import GrowingCalls
from paged_plugins.server.openai.chunks import Chunks, encode, usage_of
from paged_plugins.server.openai.formats import Format, with_tools
from paged_plugins.server.openai.logprobs import LogprobFormat, prompt_logprobs
from paged_plugins.server.openai.parameters import (
    answer_id,
    chat_generations,
    size_of,
    texts_of,
)
from paged_plugins.server.openai.protocol import (
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    MadeToolCall,
    MessageDelta,
)
from paged_plugins.server.parsers.answer_parts import AnswerParts
from paged_plugins.server.service import Service

_ROLE = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
_PLAIN_END = b'},"logprobs":null,"finish_reason":null}'


async def chat(service: Service, request: Request, body: ChatRequest) -> Any:
    """Answer a conversation, whole or as events."""
    made = await open_chat(service, request, body)
    if body.stream:
        return EventStream(made.answer, ChatEvents(made), service.options)
    with made.answer as answer:
        async with answer.within_deadline():
            found = await made.whole()
    request.state.log |= answer.counts
    return json_response(found)


async def open_chat(
    service: Service, request: Request, body: ChatRequest, prefix: str = "chatcmpl-"
) -> Chat:
    """Give a conversation to the engine.

    Args:
        prefix: the beginning of the answer's id.

    Raises:
        ApiError, RequestError: it can never be answered, or not now.
    """
    body = with_tools(body)
    request.state.fields |= given_fields(body)
    model = service.check_model(body.model)
    service.check_room()
    name, size = answer_id(body, prefix), size_of(body)
    if body.truncate_prompt_tokens is not None:
        service.check_length("messages", size)
    generations, asked = await service.off_loop(lambda: chat_generations(service, body, name), size)
    warn(request, asked.warnings)
    answer = Answer(service, name, generations, body.deadline)
    return Chat(service, body, model, answer, asked)


@dataclass(slots=True)
class ChatDelta:
    """Gain of one answer to a conversation."""

    index: int
    content: str | None
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    """stop, length or tool_calls; ``None``: it goes on."""
    stop_reason: int | str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] | None = None


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
        asked: Format,
    ) -> None:
        self.answer, self.body, self.model = answer, body, model
        self.echoed = _echoed(body)
        """Beginning of every answer."""
        self._asked = asked
        self._is_plain = asked.reasoning is None and asked.tools is None
        self._parsers: dict[int, AnswerParser] = {}
        self._logprobs: LogprobFormat | None = None
        if body.logprobs:
            self._logprobs = LogprobFormat(
                service.token_pieces,
                body.top_logprobs or 0,
                as_ids=bool(body.return_tokens_as_token_ids),
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
        if self._is_plain:
            return found
        parser = self._parsers.get(found.index)
        if parser is None:
            shows_thoughts = self.body.include_reasoning is not False
            parser = self._parsers[found.index] = AnswerParser(self._asked, shows_thoughts)
        return parser(found)

    # ------------------------------------------------------------------ whole

    async def whole(self) -> ChatCompletion:
        """Return the whole answer, once it is there.

        Raises: as :meth:`Answer.outputs`.
        """
        (output,) = await self.answer.outputs()
        deltas = sorted(map(self.parsed, output.outputs), key=attrgetter("index"))
        body = self.body
        return ChatCompletion(
            id=self.answer.id,
            object="chat.completion",
            created=int(time.time()),
            model=self.model,
            choices=[self._choice(delta) for delta in deltas],
            usage=usage_of(self.answer, self.answer.num_generated),
            prompt_token_ids=output.prompt_token_ids if body.return_token_ids else None,
            prompt_logprobs=(
                None if body.prompt_logprobs is None else prompt_logprobs(output.prompt_logprobs)
            ),
        )

    def _choice(self, delta: ChatDelta) -> ChatChoice:
        calls, call, reason = self.called(delta)
        calls = [msgspec.structs.replace(each, index=None) for each in calls or ()]
        content, thoughts = self.echoed + (delta.content or ""), delta.reasoning_content
        return ChatChoice(
            index=delta.index,
            message=ChatMessage(
                role="assistant",
                content=None if (calls or call) and not content else content,
                refusal=None,
                reasoning=thoughts,
                reasoning_content=thoughts,
                tool_calls=calls or None,
                function_call=call,
            ),
            logprobs=self.formatted(delta),
            finish_reason=reason,  # type: ignore[arg-type]
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self.body.return_token_ids else None,
        )

    def called(
        self, delta: ChatDelta
    ) -> tuple[list[MadeToolCall] | None, CalledFunction | None, str | None]:
        """Return calls, or what stands in their place where ``functions`` are given, and why the
        answer ended.
        """
        calls, reason = delta.tool_calls, delta.finish_reason
        if self.body.functions is None:
            return calls, None, reason
        reason = "function_call" if reason == "tool_calls" else reason
        return None, calls[0].function if calls else None, reason

    def formatted(self, delta: ChatDelta) -> ChatLogprobs | None:
        """Return log-probabilities as the request wants them; ``None``: it wants none."""
        if self._logprobs is None or delta.logprobs is None:
            return None
        return self._logprobs.chat(delta.logprobs)


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
        calls, call, reason = self._made.called(delta)
        return ChatChunkChoice(
            index=delta.index,
            delta=MessageDelta(
                content=delta.content or (None if has_others else ""),
                reasoning=delta.reasoning_content,
                reasoning_content=delta.reasoning_content,
                tool_calls=calls,
                function_call=call,
            ),
            logprobs=self._made.formatted(delta),
            finish_reason=reason,  # type: ignore[arg-type]
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._made.body.return_token_ids else None,
        )


class AnswerParser:
    """Takes one answer apart: thoughts first, then calls and text.

    Args:
        shows_thoughts: or they are dropped.
    """

    def __init__(self, asked: Format, shows_thoughts: bool) -> None:
        reasoning, tools = asked.reasoning, asked.tools
        self._parts = AnswerParts(
            None if reasoning is None else reasoning.parser(asked.prompt),
            None if tools is None else tools.format.parser(tools.functions),
            () if tools is None else tools.format.begins,
        )
        self._shows_text = tools is None or tools.form is None
        """False where calls are forced: text is then the beginning of one, and is not shown."""
        self._shows_thoughts = shows_thoughts
        self._calls = GrowingCalls(*(() if tools is None else (tools.most, tools.only)))

    def __call__(self, delta: ChatDelta) -> ChatDelta:
        """Return what is shown of what was gained; tokens and log-probabilities stay."""
        has_ended = delta.finish_reason is not None
        thoughts, pieces = self._parts.take(delta.content or "", has_ended=has_ended)
        calls, text = self._calls.take(pieces, has_ended=has_ended)
        reason = delta.finish_reason
        is_cut = self._calls.is_open and delta.stop_reason is not None
        if reason == "stop" and self._calls.count and not is_cut:
            reason = "tool_calls"
        return replace(
            delta,
            content=text if self._shows_text else "",
            reasoning_content=(self._shows_thoughts and thoughts) or None,
            tool_calls=calls or None,
            finish_reason=reason,
        )


def _echoed(body: ChatRequest) -> str:
    """Return the beginning of all answers, as the template has read it."""
    last = body.messages[-1]
    return " ".join(texts_of(last)) if body.echo and last.role == "assistant" else ""
