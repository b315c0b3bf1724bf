"""The Python API for offline inference: prompts in, text out."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any, Self

from paged_core.engine_driver import EngineDriver
from paged_core.errors import EngineError, RequestError
from paged_core.interfaces.executor import SupportsText
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.registry import Registry
from paged_core.request import Request
from paged_core.requests.pins import Pin, PinState
from paged_core.sampling_params import SamplingParams
from paged_core.settings import EngineSettings, load_settings, settings_class
from paged_core.text.bounded_encoding import encode_within
from paged_core.text.generation import Generation
from paged_core.text.outputs import RequestOutput
from paged_core.text.prompts import Prompt, as_list, as_token_ids, per_prompt
from paged_core.wiring import build_engine


class LLM:
    """A model and the engine that serves it, for use from one thread at a time.

    ``LLM(model="Qwen/Qwen3-0.6B", scheduler={"name": "prefill_or_decode"})`` takes every setting
    as a keyword and reads neither files nor the environment; :meth:`from_config` does. Close it,
    or use it in a ``with`` statement, to free its memory.

    Args:
        model: a hub id, a folder, or ``demo``.
        registry: where components come from; ``None``: what is installed.
        settings: every other setting, by keyword.

    Raises:
        SettingsError: a setting is unknown, or contradicts another one or this machine.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
        PluginError: a chosen component cannot be imported.
    """

    def __init__(
        self, model: str = "demo", *, registry: Registry | None = None, **settings: Any
    ) -> None:
        registry = registry or Registry.discover()
        self._start(settings_class(registry)(model=model, **settings), registry)

    @classmethod
    def from_config(cls, config: str | os.PathLike[str] | None = None, **overrides: Any) -> Self:
        """Read settings as the command line does: keywords, environment, file, profile, defaults.

        Args:
            config: a YAML or TOML file; ``None``: what ``PAGED_CORE_CONFIG`` names, if anything.

        Raises: what the class raises.
        """
        resolved = load_settings(config=config, overrides=overrides)
        return cls.from_settings(resolved.settings, resolved.registry)

    @classmethod
    def from_settings(cls, settings: EngineSettings, registry: Registry) -> Self:
        """Start from resolved settings."""
        self = cls.__new__(cls)
        self._start(settings, registry)
        return self

    def _start(self, settings: EngineSettings, registry: Registry) -> None:
        self.settings = settings
        self.engine = build_engine(settings, registry)
        self.driver = EngineDriver(self.engine)
        executor = self.engine.executor
        self.tokenizer: Tokenizer | None = (
            executor.tokenizer() if isinstance(executor, SupportsText) else None
        )
        self._numbers = count()

    # ------------------------------------------------------------------ generating

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, as one batch; return their outputs in the order of the prompts.

        Args:
            prompts: one or several; a flat list of integers is one prompt.
            sampling_params: one for all, or one for each.
            priority: one for each; matters where the queue order looks at it.

        Raises:
            RequestError: a prompt can never be served; nothing was started.
        """
        generations = self.submit(prompts, sampling_params, priority=priority)
        list(self.run(generations))
        return [generation.output() for generation in generations]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, formatted by the model's chat template.

        Args:
            messages: ``{"role": ..., "content": ...}`` each.
            options: passed on to the chat template.

        Raises:
            RequestError: the checkpoint has no chat template, or it refuses the messages.
        """
        tokenizer = self._need_tokenizer("a conversation")
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        prompts = [tokenizer.chat(conversation, **options) for conversation in conversations]
        return self.generate(prompts, sampling_params)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Complete one prompt; yield its output so far after every step that adds to it.

        Raises:
            RequestError: it can never be served, or chooses among sequences at the end.
        """
        if sampling_params is not None and sampling_params.chooses_at_end:
            raise RequestError(
                "beam_width and best_of choose what is returned when all of it is there, so there "
                "is nothing to stream; call generate()"
            )
        (generation,) = self.submit([prompt], sampling_params)
        with closing(self.steps([generation])) as steps:
            for _ in steps:
                if generation.take():
                    yield generation.output()

    def pin_prefix(
        self, prompt: Prompt, *, ttl: float | None = None, cache_salt: str | None = None
    ) -> Pin:
        """Compute a prefix now and keep its whole blocks in the cache until :meth:`release`.

        Args:
            ttl: seconds after which it is released.
            cache_salt: only requests of the same salt find it.

        Raises:
            RequestError: it is shorter than a block, the block allocator caches nothing, or too
                few blocks would be left for requests.
            EngineError: computing it failed.
        """
        text, token_ids = self._encode(prompt)
        pin = self.driver.pin(token_ids, ttl=ttl, cache_salt=cache_salt)
        generation = Generation(text, None)
        assert pin.group is not None
        generation.group = pin.group
        list(self.run([generation]))
        if pin.state is not PinState.HELD:
            raise EngineError(f"the prefix is not pinned: {pin.end_reason}")
        return pin

    def release(self, pin: Pin) -> None:
        """Release a pinned prefix; its blocks stay cached until they are evicted."""
        self.driver.release(pin)

    # ------------------------------------------------------------------ step by step

    def submit(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[Generation]:
        """Add prompts to the engine, all or none; :meth:`run` completes them.

        Raises:
            RequestError: a prompt can never be served; nothing was started.
        """
        listed = as_list(prompts)
        sampling = per_prompt("sampling_params", sampling_params or SamplingParams(), len(listed))
        priorities = per_prompt("priority", 0 if priority is None else priority, len(listed))
        started: list[Generation] = []
        try:
            for prompt, params, urgency in zip(listed, sampling, priorities, strict=True):
                started.append(self.add(prompt, params, priority=urgency))
        except BaseException:
            self.abort(started)
            raise
        return started

    def add(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **fields: Any,
    ) -> Generation:
        """Add one prompt to the engine.

        Args:
            request_id: ``None``: a number.
            fields: of :class:`~paged_core.request.Request`, such as ``priority``.

        Raises:
            RequestError: it can never be served.
        """
        sampling = sampling or SamplingParams()
        text, token_ids = self._encode(prompt)
        if sampling.stop:
            self._need_tokenizer("a stop string")
        generation = Generation(text, self.tokenizer)
        request = Request(
            id=str(next(self._numbers)) if request_id is None else request_id,
            prompt=token_ids,
            sampling=sampling,
            arrival=self.engine.clock(),
            **fields,
        )
        stop_check = generation.find_stop if sampling.stop else None
        generation.group = self.driver.add(request, stop_check)
        return generation

    def run(self, generations: Iterable[Generation]) -> Generator[Generation, None, None]:
        """As :meth:`steps`, but yield each generation when it has ended."""
        with closing(self.steps(generations)) as steps:
            for changed in steps:
                yield from [generation for generation in changed if generation.finished]

    def steps(self, generations: Iterable[Generation]) -> Generator[list[Generation], None, None]:
        """Step until all of ``generations`` have ended; after each step yield those that changed.

        :meth:`Generation.take` returns what each of them gained. If the caller stops early (by an
        exception, too), what is unfinished is aborted.

        Raises:
            EngineError: the scheduler plans nothing although requests wait, another thread is
                using this LLM, or it is closed.
        """
        unfinished = {generation.group.id: generation for generation in generations}
        num_steps = -1
        try:
            while unfinished:
                changed = list(unfinished.values())  # steps of other calls may have changed them
                if num_steps == self.engine.num_steps:
                    outcome = self.driver.step()
                    if outcome.progressed:
                        advanced = [sequence.group for sequence in outcome.advanced]
                        ids = dict.fromkeys(group.id for group in advanced + outcome.finished)
                        changed = [unfinished[each] for each in ids if each in unfinished]
                num_steps = self.engine.num_steps
                for generation in changed:
                    if generation.finished:
                        del unfinished[generation.group.id]
                yield changed
        finally:
            self.abort(unfinished.values())

    def abort(self, generations: Iterable[Generation]) -> None:
        """Abort requests; those that have ended stay as they are."""
        for generation in list(generations):
            self.driver.abort(generation.group.id)

    def close(self) -> None:
        """Abort unfinished requests and free the memory; the LLM cannot be used any more."""
        self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """Return a prompt's text, if it has one, and its token ids."""
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - {"prompt", "prompt_token_ids"}
            if unknown or not prompt:
                raise RequestError(
                    "a prompt given as a mapping has the key 'prompt' or 'prompt_token_ids', not "
                    f"{', '.join(repr(key) for key in unknown) or 'none'}"
                )
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), as_token_ids(prompt["prompt_token_ids"])
            prompt = prompt["prompt"]
        if not isinstance(prompt, str):
            return None, as_token_ids(prompt)
        if not prompt:
            raise RequestError("the prompt is empty; it needs at least one character")
        encode = self._need_tokenizer("text").encode
        return prompt, encode_within(encode, prompt, self.engine.capacity.max_model_len)

    def _need_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"{what} needs a tokenizer, and model {self.settings.model!r} on executor "
                f"{self.settings.executor.name!r} has none; give token ids, or set `tokenizer`"
            )
        return self.tokenizer
