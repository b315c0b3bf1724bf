"""The Python API for offline inference: prompts in, text out."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Self

from paged_core.engine.driver import EngineDriver
from paged_core.engine.outcome import EngineMetrics
from paged_core.engine.wiring import build_engine, make_front_end
from paged_core.errors import AdmissionRefused, EngineError, RequestError
from paged_core.field_rules import instance
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.plugins.registry import Registry
from paged_core.requests.grammars import compile_grammars
from paged_core.requests.pins import Pin, PinState
from paged_core.sampling_params import BeamSearchParams, SamplingParams
from paged_core.settings.schema import EngineSettings, load_settings, settings_class
from paged_core.text.front_end import Prompt
from paged_core.text.generation import Generation
from paged_core.text.outputs import RequestOutput
from paged_core.text.progress import Progress, progress_bar


class LLM:
    """A model and the engine that serves it, for use from one thread at a time.

    ``LLM(model="Qwen/Qwen3-0.6B", scheduler={"name": "prefill_or_decode"})`` takes every setting
    as a keyword and reads neither files nor the environment; :meth:`from_config` does. Close it,
    or use it in a ``with`` statement, to free its memory.

    Args:
        model: a hub id, a folder, or ``demo``.
        registry: where components come from; ``None``: what is installed.
        clock: seconds; arrivals, deadlines and latencies are measured on it. ``None``: the
            executor's own (a simulation has one), or the time of this machine.
        settings: every other setting, by keyword.

    Raises:
        SettingsError: a setting is unknown, or contradicts another one or this machine.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
        PluginError: a chosen component cannot be imported.
    """

    def __init__(
        self,
        model: str = "demo",
        *,
        registry: Registry | None = None,
        clock: Callable[[], float] | None = None,
        **settings: Any,
    ) -> None:
        registry = registry or Registry.discover()
        self._start(settings_class(registry)(model=model, **settings), registry, clock)

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
    def from_settings(
        cls,
        settings: EngineSettings,
        registry: Registry,
        *,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Start from resolved settings."""
        self = cls.__new__(cls)
        self._start(settings, registry, clock)
        return self

    def _start(
        self,
        settings: EngineSettings,
        registry: Registry,
        clock: Callable[[], float] | None,
    ) -> None:
        self.settings = settings
        self.engine = build_engine(settings, registry, clock=clock)
        self.driver = EngineDriver(self.engine)
        executor, capacity = self.engine.executor, self.engine.capacity
        self.front_end = make_front_end(settings, executor, capacity.max_model_len)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; ``None``: it has none, and only token ids are served."""
        return self.front_end.tokenizer

    # ------------------------------------------------------------------ generating

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        use_tqdm: Progress = False,
    ) -> list[RequestOutput]:
        """Complete prompts, as one batch; return their outputs in the order of the prompts.

        Args:
            prompts: one or several; a flat list of integers is one prompt.
            sampling_params: one for all, or one for each; ``None``: the model's own.
            priority: the same; matters where the queue order looks at it.
            use_tqdm: show a progress bar on standard error; or a function such as ``tqdm``.

        Raises:
            RequestError: a prompt can never be served, or an argument is none that it may be;
                nothing was started.
        """
        bar = None if use_tqdm is False else progress_bar(use_tqdm)
        generations = self.submit(prompts, sampling_params, priority=priority)
        try:
            ended: Iterable[Any] = self.run(generations)
            if bar is not None:
                ended = bar(ended, total=len(generations), desc="generating")
            for _ in ended:
                pass
        finally:
            self.abort(generations)
        return [generation.output() for generation in generations]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: Progress = False,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, formatted by the model's chat template.

        The text that the template made of a conversation is the ``prompt`` of its output.

        Args:
            messages: ``{"role": ..., "content": ...}`` each; the content is text, or a list of
                parts such as ``{"type": "text", "text": ...}``, which a space joins.
            sampling_params: one for all, or one for each conversation.
            tools: JSON schemas of functions that the model may call, if its template shows them.
            add_generation_prompt: end with the start of an answer; ``None``: unless the last
                message is to be continued.
            continue_final_message: leave the last message open, for the model to go on with it.
            chat_template: the name of one of the checkpoint's templates, or a template.
            chat_template_kwargs: what else the template is to know, such as ``enable_thinking``.
            use_tqdm: as for :meth:`generate`.

        Raises:
            RequestError: the checkpoint has no chat template, it refuses the messages, or an
                argument is none that it may be; nothing was started.
        """
        prompts = self.front_end.chat_prompts(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: Progress = False,
    ) -> list[RequestOutput]:
        """Search for the most probable completions; each output has them best first.

        Raises:
            RequestError: as :meth:`generate`.
        """
        instance(BeamSearchParams, "BeamSearchParams(...)")("params", params)
        return self.generate(prompts, params.sampling(), use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Complete one prompt; yield its output so far after every step that adds to it.

        Raises:
            RequestError: it can never be served, or chooses among sequences at the end.
        """
        sampling_params = self.front_end.sampling(sampling_params)
        if sampling_params.chooses_at_end:
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
        text, token_ids = self.front_end.encode(prompt)
        pin = self.driver.pin(token_ids, ttl=ttl, cache_salt=cache_salt)
        assert pin.group is not None
        generation = Generation(pin.group.request, text, None)
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
        priority: int | Sequence[int] | None = None,
    ) -> list[Generation]:
        """Add prompts to the engine, all or none; :meth:`run` completes them.

        What the engine's ``admission`` refuses has ended, with ``error``.

        Raises:
            RequestError: a prompt can never be served; nothing was started.
        """
        batch = self.front_end.batch(prompts, sampling_params, priority)
        self._compile([params for _, params, _ in batch])
        started: list[Generation] = []
        try:
            for prompt, params, urgency in batch:
                generation = self._generation(prompt, params, priority=urgency)
                try:
                    self._begin(generation)
                except AdmissionRefused as error:
                    generation.refuse(error)
                started.append(generation)
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
            AdmissionRefused: the engine's ``admission`` refuses it.
        """
        sampling = self.front_end.sampling(sampling)
        self._compile([sampling])
        generation = self._generation(prompt, sampling, request_id=request_id, **fields)
        return self._begin(generation)

    def _compile(self, samplings: Iterable[SamplingParams]) -> None:
        """Compile the forms that outputs must have; raises as :func:`compile_grammars`."""
        guided = [each for each in samplings if each.structured_outputs is not None]
        if guided:
            compile_grammars(self.engine.executor, guided)

    def _generation(
        self, prompt: Prompt, sampling: SamplingParams | None, **fields: Any
    ) -> Generation:
        """Make a request; the form of the output has been compiled."""
        return self.front_end.generation(prompt, sampling, arrival=self.engine.clock(), **fields)

    def _begin(self, generation: Generation) -> Generation:
        """Add a request to the engine."""
        generation.group = self.driver.add(generation.request, generation.stop_check)
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
            RequestError: one of them is another LLM's.
        """
        generations = self._own(generations)
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
        """Abort requests; those that have ended stay as they are.

        Raises:
            RequestError: one of them is another LLM's; none was aborted.
        """
        for generation in self._own(generations):
            if not generation.finished:
                self.driver.abort(generation.group.id)

    def _own(self, generations: Iterable[Generation]) -> list[Generation]:
        """Return these if all are of this LLM: ids of requests are the same in another one."""
        given = list(generations)
        for each in given:
            if not (self.engine.holds(each.group) or each.finished):
                raise RequestError(f"request {each.group.id!r} is being served by another LLM")
        return given

    # ------------------------------------------------------------------ what there is

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer: ``encode``, ``decode``, ``apply_chat_template``.

        Raises:
            RequestError: the model has none.
        """
        return self.front_end.need_tokenizer("get_tokenizer()")

    def get_metrics(self) -> EngineMetrics:
        """Return what the engine has counted since it was started."""
        return self.engine.metrics

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, after the weights changed, say.

        Returns:
            ``False`` if unfinished requests or pinned prefixes hold some: nothing has changed.
        """
        return self.driver.reset_prefix_cache()

    def close(self) -> None:
        """Abort unfinished requests and free the memory; the LLM cannot be used any more."""
        self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
