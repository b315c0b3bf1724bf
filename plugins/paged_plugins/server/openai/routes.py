"""The routes ``openai``: the API of OpenAI, with vLLM's extras."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from paged_plugins.server.errors import ApiError, refused
from paged_plugins.server.http.endpoint import GENERATES, TOKENISES, Endpoint, json_response
from paged_plugins.server.openai.chat import chat
from paged_plugins.server.openai.completions import complete
from paged_plugins.server.openai.parameters import chat_prompt, size_of
from paged_plugins.server.openai.protocol import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    Model,
    ModelList,
    Tokenized,
    TokenizeRequest,
)
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.settings import OpenAISettings

_ANTHROPIC = "anthropic-version"
"""Header of clients of Anthropic's API."""
_LAST_TOKEN = 2**31 - 1
"""Tokenizers have no room for more."""


@runtime_checkable
class TellsOfItself(Protocol):
    """A tokenizer that has special tokens and a chat template to show."""

    def info(self) -> dict[str, str]:
        """Return the special tokens by what they are for, and the ``chat_template``."""


class OpenAIRoutes(Routes):
    """Paths that clients of OpenAI's API and of vLLM's server ask for."""

    def __init__(self, _: OpenAISettings, service: Service) -> None:
        self._service = service

    def routes(self) -> Sequence[BaseRoute]:
        service = self._service
        return [
            Endpoint(
                "GET",
                "/v1/models",
                self.models,
                summary="The names of the model.",
                answer=ModelList,
                errors={503: GENERATES[503]},
            ),
            Endpoint(
                "GET",
                "/v1/models/{model:path}",
                self.model,
                summary="One of them.",
                answer=Model,
                errors={404: GENERATES[404], 503: GENERATES[503]},
            ),
            Endpoint(
                "POST",
                "/v1/completions",
                partial(complete, service),
                summary="Complete prompts.",
                body=CompletionRequest,
                answer=Completion,
                events=Completion,
                errors=GENERATES,
            ),
            Endpoint(
                "POST",
                "/v1/chat/completions",
                partial(chat, service),
                summary="Answer a conversation.",
                body=ChatRequest,
                answer=ChatCompletion,
                events=ChatChunk,
                errors=GENERATES,
            ),
            Endpoint(
                "POST",
                "/tokenize",
                self.tokenize,
                summary="The tokens of a text or a conversation.",
                body=TokenizeRequest,
                answer=Tokenized,
                errors=TOKENISES,
            ),
            Endpoint(
                "POST",
                "/detokenize",
                self.detokenize,
                summary="The text of tokens.",
                body=DetokenizeRequest,
                answer=Detokenized,
                errors=TOKENISES,
            ),
            Endpoint(
                "GET",
                "/tokenizer_info",
                self.tokenizer_info,
                summary="The special tokens, and the chat template.",
                answer=dict[str, str | int],
                errors={404: "The tokenizer tells nothing of itself.", 503: GENERATES[503]},
            ),
        ]

    async def models(self, request: Request) -> Response:
        names = self._service.model_names
        found = ModelList(data=[self._model(request, name) for name in names], object="list")
        if _ANTHROPIC in request.headers:
            found.first_id, found.last_id, found.has_more = names[0], names[-1], False
        return json_response(found)

    async def model(self, request: Request) -> Response:
        name = self._service.check_model(request.path_params["model"])
        return json_response(self._model(request, name))

    def _model(self, request: Request, name: str) -> Model:
        service = self._service
        more: dict[str, Any] = {}
        if _ANTHROPIC in request.headers:
            created = datetime.fromtimestamp(service.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            more = {"type": "model", "display_name": name, "created_at": created}
            more["lifecycle"] = "active"
        return Model(
            id=name,
            created=service.created,
            root=service.settings.model,
            max_model_len=service.front_end.max_model_len,
            object="model",
            owned_by="paged_core",
            **more,
        )

    async def tokenize(self, _: Request, body: TokenizeRequest) -> Response:
        service = self._service
        service.check_model(body.model)
        front_end = service.front_end
        if (body.prompt is None) == (body.messages is None):
            raise refused("prompt", "give either prompt or messages")
        tokenizer = front_end.need_tokenizer("/tokenize")

        def encode() -> list[int]:
            if body.messages is not None:
                prompt = chat_prompt(service, body)
                return list(front_end.encode(prompt)[1])
            special = body.add_special_tokens is not False
            return tokenizer.encode(body.prompt or "", add_special_tokens=special)

        def texts_of(tokens: list[int]) -> list[str]:
            texts = {
                token: tokenizer.decode([token], skip_special_tokens=False)
                for token in dict.fromkeys(tokens)
            }
            return [texts[token] for token in tokens]

        service.check_length("prompt", len(body.prompt or ""))
        size = size_of(body) + len(body.prompt or "")
        tokens = await service.off_loop(encode, size)
        texts = None
        if body.return_token_strs:
            texts = await service.off_loop(lambda: texts_of(tokens), size)
        return json_response(
            Tokenized(
                count=len(tokens),
                max_model_len=front_end.max_model_len,
                tokens=tokens,
                token_strs=texts,
            )
        )

    async def tokenizer_info(self, _: Request) -> Response:
        """Return what programs that tokenise for themselves, such as lm-eval, ask for."""
        front_end = self._service.front_end
        tokenizer = front_end.tokenizer
        if not isinstance(tokenizer, TellsOfItself):
            raise ApiError(404, "the tokenizer of this model tells nothing of itself")
        found: dict[str, Any] = {**tokenizer.info(), "tokenizer_class": type(tokenizer).__name__}
        return json_response({**found, "max_model_len": front_end.max_model_len})

    async def detokenize(self, _: Request, body: DetokenizeRequest) -> Response:
        service = self._service
        service.check_model(body.model)
        tokenizer = service.front_end.need_tokenizer("/detokenize")
        for token in body.tokens:
            if not 0 <= token <= _LAST_TOKEN:
                raise refused("tokens", f"tokens holds {token}, which is no token of any model")

        def decode() -> str:
            return tokenizer.decode(body.tokens, skip_special_tokens=False)

        return json_response(Detokenized(prompt=await service.off_loop(decode, len(body.tokens))))
