"""``/v1/completions``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from paged_core.text.outputs import CompletionOutput, OutputDelta, RequestOutput
from paged_plugins.server.answer import Answer, EventStream
from paged_plugins.server.errors import refused
from paged_plugins.server.http.endpoint import json_response, warn
from paged_plugins.server.openai.chunks import Chunks, encode, usage_of
from paged_plugins.server.openai.logprobs import LogprobFormat, prompt_logprobs
from paged_plugins.server.openai.parameters import (
    answer_id,
    completion_generations,
)
from paged_plugins.server.openai.protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from paged_plugins.server.service import Service

_MAX_TOKENS = 16
_PLAIN_END = b',"logprobs":null,"finish_reason":null}'


async def complete(service: Service, request: Request, body: CompletionRequest) -> Any:
    """Answer a request, whole or as events."""
    made = await open_completion(service, request, body)
    if body.stream:
        return EventStream(made.answer, CompletionEvents(made), service.options)
    with made.answer as answer:
        async with answer.within_deadline():
            outputs = await answer.outputs()
    request.state.log |= answer.counts
    return json_response(made.whole(outputs))


async def open_completion(
    service: Service, request: Request, body: CompletionRequest
) -> Completing:
    """Give a request to the engine.

    Raises:
        ApiError, RequestError: it can never be served, or not now.
    """
    model = service.check_model(body.model)
    service.check_room()
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = service.front_end.defaults.get("max_tokens", _MAX_TOKENS)
    only_echo = max_tokens == 0
    if only_echo and not body.echo:
        raise refused("max_tokens", "max_tokens is 0, and nothing is echoed; give at least 1")
    if body.suffix:
        raise refused("suffix", "suffix is not served here; leave it out")
    name, size = answer_id(body, "cmpl-"), _size(body.prompt)
    if body.truncate_prompt_tokens is not None:
        service.check_length("prompt", size)
    generations, asked = await service.off_loop(
        lambda: completion_generations(service, body, name, max_tokens or 1), size
    )
    warn(request, asked.warnings)
    answer = Answer(service, name, generations, body.deadline)
    return Completing(service, body, model, answer, only_echo=only_echo)


def _size(prompt: str | list[Any]) -> int:
    prompts = [prompt] if isinstance(prompt, str) else prompt
    return sum(len(each) for each in prompts if isinstance(each, str))


class Completing:
    """A request that the engine has taken, and how it is answered."""

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        model: str,
        answer: Answer,
        *,
        only_echo: bool,
    ) -> None:
        self.answer = answer
        self.body, self.model, self.only_echo = body, model, only_echo
        self._tokenizer = service.client.front_end.tokenizer
        self._logprobs: LogprobFormat | None = None
        if body.logprobs is not None:
            self._logprobs = LogprobFormat(
                service.token_pieces,
                body.logprobs,
                as_ids=bool(body.return_tokens_as_token_ids),
            )

    # ------------------------------------------------------------------ whole

    def whole(self, outputs: list[RequestOutput]) -> Completion:
        """Return the whole answer."""
        choices = [
            self._choice(place * len(output.outputs) + each.index, output, each)
            for place, output in enumerate(outputs)
            for each in output.outputs
        ]
        return Completion(
            id=self.answer.id,
            object="text_completion",
            created=int(time.time()),
            model=self.model,
            choices=choices,
            usage=usage_of(self.answer, 0 if self.only_echo else self.answer.num_generated),
        )

    def _choice(self, index: int, output: RequestOutput, one: CompletionOutput) -> CompletionChoice:
        body, prompt_ids = self.body, output.prompt_token_ids
        text, ids, entries = one.text or "", one.token_ids, one.logprobs
        if self.only_echo:
            text, ids, entries = "", [], entries and []
        shown, prompt = ids, ""
        if body.echo:
            prompt, shown = self._echoed(output.prompt, prompt_ids), prompt_ids + ids
            entries = None if entries is None else [*(output.prompt_logprobs or ()), *entries]
        return CompletionChoice(
            index=index,
            text=prompt + text,
            logprobs=self._formatted(index, entries, shown, prompt + text, ends=True),
            finish_reason=one.finish_reason and one.finish_reason.value,  # type: ignore[arg-type]
            stop_reason=one.stop_reason,
            token_ids=ids if body.return_token_ids else None,
            prompt_token_ids=prompt_ids if body.return_token_ids else None,
            prompt_logprobs=(
                None if body.prompt_logprobs is None else prompt_logprobs(output.prompt_logprobs)
            ),
        )

    def _echoed(self, text: str | None, token_ids: list[int]) -> str:
        """Return the text of a prompt, however it was given."""
        if text is not None:
            return text
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _formatted(
        self, index: int, entries: Any, token_ids: list[int], text: str, *, ends: bool = False
    ) -> CompletionLogprobs | None:
        if self._logprobs is None or entries is None:
            return None
        return self._logprobs.completion(index, entries, token_ids, text, ends=ends)

    def first(self, index: int, place: int) -> CompletionChoice:
        """Return what a choice begins with before anything is generated."""
        stream, body = self.answer.streams[place], self.body
        ids = list(stream.request.prompt)
        echoed, logprobs = "", self._formatted(index, [], [], "")
        if body.echo:
            echoed = self._echoed(stream.prompt, ids)
            if self._logprobs is not None:
                entries = stream.output().prompt_logprobs
                logprobs = self._formatted(index, entries, ids, echoed)
        wants_ids = body.return_token_ids
        return CompletionChoice(
            index=index,
            text=echoed,
            logprobs=logprobs,
            finish_reason=None,
            stop_reason=None,
            token_ids=[] if wants_ids else None,
            prompt_token_ids=ids if wants_ids else None,
        )

    def gained(self, index: int, delta: OutputDelta) -> CompletionChoice:
        """Return what a choice gained."""
        text, ids, reason = delta.text or "", delta.token_ids, delta.finish_reason
        ends = reason is not None
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=self._formatted(index, delta.logprobs, ids, text, ends=ends),
            finish_reason=reason and reason.value,  # type: ignore[arg-type]
            stop_reason=delta.stop_reason,
            token_ids=ids if self.body.return_token_ids else None,
        )


class CompletionEvents:
    """Encodes what each sequence gains."""

    def __init__(self, made: Completing) -> None:
        body = made.body
        self._made = made
        self._chunks = Chunks("text_completion", body, made.answer, made.model)
        self._n = body.n or 1
        self._has_first = bool(body.echo or body.return_token_ids)
        self._is_plain = body.logprobs is None and not body.return_token_ids
        self._heads: dict[int, bytes] = {}

    def take(self, place: int, delta: OutputDelta, /) -> bytes:
        chunks = self._chunks
        index = place * self._n + delta.index
        head, first = self._heads.get(index), b""
        if head is None:
            head = self._heads[index] = b'{"index":%d,"text":' % index
            if self._has_first:
                first = chunks.chunk(encode(self._made.first(index, place)))
        if self._made.only_echo:
            delta = replace(delta, text="", token_ids=[], logprobs=delta.logprobs and [])
        chunks.num_shown += len(delta.token_ids)
        if not self._is_plain or delta.finish_reason is not None:
            return first + chunks.chunk(encode(self._made.gained(index, delta)))
        if delta.text:
            return first + chunks.chunk(head + encode(delta.text) + _PLAIN_END)
        return first

    async def end(self) -> bytes:
        return self._chunks.end()
