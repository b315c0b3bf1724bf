"""The Python API for programs with an event loop: outputs as they grow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

from paged_core.client.choice import ClientContext, make_client
from paged_core.client.engine_client import EngineClient
from paged_core.client.in_process import InProcessClient
from paged_core.engine.outcome import EngineMetrics
from paged_core.errors import EngineError, RequestError
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.plugins.registry import Registry
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import EngineSettings, load_settings, settings_class
from paged_core.text.front_end import Prompt
from paged_core.text.outputs import RequestOutput


class AsyncLLM:
    """A model and what serves it, for any number of tasks of one event loop::

        async with AsyncLLM(model="Qwen/Qwen3-0.6B") as llm:
            async for output in llm.generate("Hello", SamplingParams(max_tokens=32)):
                print(output.outputs[0].text)

    Leaving the loop, or cancelling its task, aborts the request.

    Args:
        model: a hub id, a folder, or ``demo``.
        registry: where components come from; ``None``: what is installed.
        settings: every other setting, by keyword.

    Raises:
        SettingsError: a setting is unknown. All else is raised by :meth:`start`.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    """In which it was started."""

    def __init__(
        self, model: str = "demo", *, registry: Registry | None = None, **settings: Any
    ) -> None:
        registry = registry or Registry.discover()
        self.client = _client(settings_class(registry)(model=model, **settings), registry)

    @classmethod
    def from_config(cls, config: str | os.PathLike[str] | None = None, **overrides: Any) -> Self:
        """Read settings as the command line does: see :meth:`LLM.from_config`."""
        resolved = load_settings(config=config, overrides=overrides)
        return cls.from_client(_client(resolved.settings, resolved.registry))

    @classmethod
    def from_client(cls, client: EngineClient) -> Self:
        """Serve with a client, whose engine may be anywhere; closing this closes it."""
        self = cls.__new__(cls)
        self.client = client
        return self

    async def start(self) -> None:
        """Start the engine; entering ``async with`` and the first request do it too.

        Raises: as :meth:`EngineClient.start`; and ``EngineError`` in another event loop.
        """
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise EngineError(
                "this AsyncLLM was started in another event loop, and is used there alone; make "
                "one in each loop (every asyncio.run has its own)"
            )
        await self.client.start()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **fields: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; yield its output so far whenever there is more of it.

        Steps that ran since the last output was taken come as one.

        Args:
            request_id: ``None``: a number.
            fields: of :class:`~paged_core.request.Request`, such as ``priority``.

        Raises:
            RequestError: it can never be served.
            AdmissionRefused: the engine's ``admission`` refuses it.
            EngineError: no requests are taken.
            EngineLost: the engine ended, and a part of the output was taken already.
        """
        client = self.client
        await self.start()
        made = client.front_end.generation(
            prompt,
            sampling_params,
            arrival=client.clock(),
            request_id=request_id,
            **fields,
        )
        with client.generate(made.request, prompt=made.prompt) as stream:
            async for _ in stream:
                yield stream.output()

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        **fields: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation; see :meth:`LLM.chat` and :meth:`generate`."""
        await self.start()
        prompts = self.client.front_end.chat_prompts(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
        )
        if len(prompts) != 1:
            raise RequestError("chat() takes one conversation; call it for each of several")
        outputs = self.generate(prompts[0], sampling_params, request_id=request_id, **fields)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    def abort(self, request_id: str) -> None:
        """Abort a request; one that is unknown, or has ended, is left alone."""
        self.client.abort(request_id)

    async def pin_prefix(
        self, prompt: Prompt, *, ttl: float | None = None, cache_salt: str | None = None
    ) -> str:
        """Compute a prefix and keep it in the cache until :meth:`release`; return the pin's id.

        Raises:
            RequestError, EngineError: as :meth:`LLM.pin_prefix`.
        """
        await self.start()
        _, token_ids = self.client.front_end.encode(prompt)
        return await self.client.pin(token_ids, ttl=ttl, cache_salt=cache_salt)

    async def release(self, pin: str) -> None:
        """Release a pinned prefix; its blocks stay cached until they are evicted."""
        await self.client.release(pin)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; ``False``: some are in use, and nothing has changed."""
        await self.start()
        return await self.client.reset_prefix_cache()

    async def get_metrics(self) -> EngineMetrics:
        """Return what the engine has counted since it was started."""
        await self.start()
        return await self.client.metrics()

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer, once started.

        Raises:
            RequestError: the model has none.
        """
        return self.client.front_end.need_tokenizer("get_tokenizer()")

    async def close(self) -> None:
        """Abort what has not ended, and free the memory."""
        await self.client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _client(settings: EngineSettings, registry: Registry) -> EngineClient:
    """Return the client that settings ask for; a single engine runs in a thread."""

    def single() -> EngineClient:
        return InProcessClient(settings, registry)

    return make_client(ClientContext(settings=settings, registry=registry, single=single))
