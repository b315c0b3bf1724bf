"""Component ``local``: the model runs in this process, whole or as one of several ranks.

On a CPU a step is done when it is submitted. On a GPU it is launched then, and done when it is
collected; ``docs/architecture.md`` says in what order things happen there.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from paged_backends.checkpoint.folder import resolve_checkpoint
from paged_backends.checkpoint.sampling_defaults import sampling_defaults
from paged_backends.device import choose_device
from paged_backends.executors.accelerator import Accelerator
from paged_backends.executors.cache_size import decide_cache_size
from paged_backends.executors.device_steps import DeviceSteps
from paged_backends.executors.host_device import HostDevice
from paged_backends.executors.host_steps import HostSteps, LoadedModel
from paged_backends.executors.model_steps import (
    DEFAULT_NUM_SEQS,
    agreed,
    default_threads,
    least,
    load_model,
    make_populator,
    make_steps,
    memory_profile,
    step_limits,
)
from paged_backends.executors.page_populator import PagePopulator
from paged_backends.executors.settings import LocalSettings
from paged_backends.grammar.compiler import GrammarCompiler
from paged_backends.text.tokenizer import CheckpointTokenizer
from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core.engine.contexts import ExecutorContext
from paged_core.errors import EngineError, RequestError
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.grammar import GrammarBackend, Vocabulary
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.runner import SupportsModelSize
from paged_core.step import StepInput, StepResult
from paged_core.structured_outputs import StructuredOutputs


class LocalExecutor(Executor):
    """Runs steps on one device."""

    def __init__(self, options: LocalSettings, context: ExecutorContext, /) -> None:
        self._options = options
        self._context = context
        self._communicator: Communicator | None = None
        self._loaded: LoadedModel | None = None
        self._steps: HostSteps | DeviceSteps | None = None
        self._populator: PagePopulator | None = None
        self._grammars: GrammarCompiler | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> Capacity:
        """Load the model, allocate the cache, and return what fits."""
        settings = self._context.settings
        limits = step_limits(settings)
        max_num_seqs = limits.num_seqs or DEFAULT_NUM_SEQS
        torch.set_num_threads(settings.threads or default_threads())
        device = choose_device(settings.device, self._context.rank)
        communicator = self._communicator = self._context.make_communicator(str(device))
        runner = self._context.make_runner(communicator)
        backend = self._context.make_attention(runner.layers)
        if communicator is not None:
            least(communicator, device, 0)  # free memory is measured when all have their weights
        accelerator = self._make_accelerator(torch.device(runner.layers[0].device))
        with torch.inference_mode():
            profile = memory_profile(settings, accelerator, runner, backend, limits)
        size = decide_cache_size(
            settings,
            runner.layers,
            backend,
            model_length=runner.max_model_len,
            max_num_seqs=max_num_seqs,
            needs_host_blocks=self._context.needs_host_blocks,
            profile=profile,
            num_ranks=self._context.size,
        )
        if communicator is not None:
            size = agreed(communicator, device, size)
        self._loaded = load_model(settings, accelerator, runner, backend, size, max_num_seqs)
        self._grammars = GrammarCompiler(
            settings.grammar.name,
            partial(self._make_grammar, runner.vocab_size, runner.eos_token_ids),
            self._options.grammar_timeout,
        )
        with torch.inference_mode():
            self._steps = make_steps(
                settings, self._loaded, size, max_num_seqs, self._grammars, communicator
            )
        self._populator = make_populator(
            self._options.populate_ahead, self._loaded, size.num_blocks
        )
        self.runs_in_background = accelerator.runs_ahead
        return Capacity(
            num_blocks=size.num_blocks,
            num_host_blocks=size.num_host_blocks,
            max_model_len=size.max_model_len,
            vocab_size=runner.vocab_size,
            eos_token_ids=runner.eos_token_ids,
            grammars=True,
        )

    def close(self) -> None:
        """Release the model and the cache."""
        if self._populator is not None:
            self._populator.close()
        self._loaded = self._steps = self._populator = self._grammars = None
        if self._communicator is not None:
            self._communicator.close()
            self._communicator = None

    def model_size(self) -> ModelSize | None:
        """Return the model's size; ``None`` before the start, or if its runner cannot tell."""
        runner = self._loaded.runner if self._loaded is not None else None
        size = runner.model_size() if isinstance(runner, SupportsModelSize) else None
        if size is None or not isinstance(self._steps, DeviceSteps):
            return size
        return replace(size, graphs=self._steps.told_graphs)

    def tokenizer(self) -> CheckpointTokenizer | None:
        """Return the tokenizer that the settings name, or else the model's own, if it has one.

        Raises:
            CheckpointError: it cannot be read.
        """
        settings = self._context.settings
        return load_tokenizer(
            settings.tokenizer or settings.model, trust_remote_code=settings.trust_remote_code
        )

    def sampling_defaults(self) -> Mapping[str, Any]:
        """Return the sampling parameters that the checkpoint recommends.

        Raises:
            CheckpointError: it cannot be read, or a value is out of range.
        """
        settings = self._context.settings
        if settings.generation_config == "none":
            return {}
        return sampling_defaults(
            resolve_checkpoint(settings.model, trust_remote_code=settings.trust_remote_code)
        )

    def compile_grammar(self, form: StructuredOutputs, /) -> Future[None]:
        """Begin to compile a form in a thread of its own."""
        if self._grammars is None:
            raise EngineError("the executor is not running; start it first")
        return self._grammars.compile(form)

    def _make_grammar(
        self, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> tuple[Vocabulary, GrammarBackend]:
        """Return the vocabulary of the model, and the chosen grammar for it.

        Raises:
            RequestError, SettingsError: there can be none.
        """
        tokenizer, name = self.tokenizer(), f"model {self._context.settings.model!r}"
        if tokenizer is None:
            raise RequestError(f"{name} has no tokenizer; set `tokenizer`")
        if not eos_token_ids:
            raise RequestError(f"{name} has no token to end a sequence with")
        texts = tokenizer.token_texts(vocab_size)
        vocabulary = Vocabulary(
            token_bytes=[None if n in eos_token_ids else text for n, text in enumerate(texts)],
            eos_token_ids=eos_token_ids,
            encode=partial(tokenizer.encode, add_special_tokens=False),
        )
        return vocabulary, self._context.make_grammar(vocabulary)

    def _make_accelerator(self, device: torch.device) -> Accelerator:
        """Return what the steps of a model on ``device`` are launched on."""
        if device.type == "cuda":
            from paged_backends.executors.cuda_accelerator import CudaAccelerator

            return CudaAccelerator(device)
        return HostDevice(device)

    # ------------------------------------------------------------------ steps

    def submit(self, step: StepInput, /) -> Any:
        """Launch a step, or run it where nothing is gained by that."""
        if self._steps is None:
            raise EngineError("the executor is not running; start it first")
        with torch.inference_mode():
            handle = self._steps.submit(step)
        if self._populator is not None:
            self._populator.follow(step)
        return handle

    def collect(self, handle: Any, /) -> StepResult:
        """Wait for a step."""
        if self._steps is None:
            raise EngineError("the executor is not running; start it first")
        with torch.inference_mode():
            return self._steps.collect(handle)
