"""Component ``local``: the model runs in this process, whole or as one of several ranks.

On a CPU a step is done when it is submitted. On a GPU it is launched then, and done when it is
collected; ``docs/architecture.md`` says in what order things happen there.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import Future
from functools import partial
from typing import Any

import psutil
import torch

from paged_backends.device import choose_device
from paged_backends.executors.accelerator import Accelerator, HostDevice
from paged_backends.executors.cache_size import (
    CacheSize,
    MemoryProfile,
    decide_cache_size,
    longest_sequence,
    needs_profile,
    profile_pass,
)
from paged_backends.executors.decode_graphs import capture_decode_graphs
from paged_backends.executors.page_populator import PagePopulator, unpopulated_reason
from paged_backends.executors.paged_cache import LoadedModel, PagedCache
from paged_backends.executors.sequence_rows import BatchMaker, SequenceRows
from paged_backends.executors.settings import LocalSettings
from paged_backends.executors.shared_sampling import SharedSampler
from paged_backends.executors.step_sampler import DeviceSampler, StepSampler
from paged_backends.executors.steps import DeviceSteps, HostSteps
from paged_backends.grammar.compiler import GrammarCompiler
from paged_backends.grammar.masks import GrammarMasks
from paged_backends.kernels.cpu.tensor_kernels import UsesKernels
from paged_backends.sampling import Sampler, kernel_random_sample, random_sample
from paged_backends.text.tokenizer import CheckpointTokenizer, load_tokenizer
from paged_core.engine.contexts import ExecutorContext
from paged_core.errors import EngineError, RequestError, SettingsError
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.grammar import GrammarBackend, Vocabulary
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.runner import Runner, SupportsModelSize
from paged_core.interfaces.scheduler import StepLimits, SupportsStepLimits
from paged_core.log import get_logger
from paged_core.settings.schema import EngineSettings
from paged_core.step import StepInput, StepResult
from paged_core.structured_outputs import StructuredOutputs

_DEFAULT_NUM_SEQS = 256
"""Sequences that may run at once under a scheduler that states no limit."""
_SPARE_ROWS = 64
"""Rows for sequences that are known beyond those that run, for which the device can sample."""

log = get_logger()


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
        limits = _step_limits(settings)
        max_num_seqs = limits.num_seqs or _DEFAULT_NUM_SEQS
        torch.set_num_threads(settings.threads or _default_threads())
        device = choose_device(settings.device, self._context.rank)
        communicator = self._communicator = self._context.make_communicator(str(device))
        runner = self._context.make_runner(communicator)
        backend = self._context.make_attention(runner.layers)
        if communicator is not None:
            _least(communicator, device, 0)  # free memory is measured when all have their weights
        accelerator = self._make_accelerator(torch.device(runner.layers[0].device))
        with torch.inference_mode():
            profile = _profile(settings, accelerator, runner, backend, limits)
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
            size = _agreed(communicator, device, size)
        self._loaded = _load(settings, accelerator, runner, backend, size, max_num_seqs)
        self._grammars = GrammarCompiler(
            settings.grammar.name,
            partial(self._make_grammar, runner.vocab_size, runner.eos_token_ids),
            self._options.grammar_timeout,
        )
        with torch.inference_mode():
            self._steps = _make_steps(
                settings, self._loaded, size, max_num_seqs, self._grammars, communicator
            )
        self._populator = _make_populator(
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
        return runner.model_size() if isinstance(runner, SupportsModelSize) else None

    def tokenizer(self) -> CheckpointTokenizer | None:
        """Return the tokenizer that the settings name, or else the model's own, if it has one.

        Raises:
            CheckpointError: it cannot be read.
        """
        settings = self._context.settings
        return load_tokenizer(
            settings.tokenizer or settings.model, trust_remote_code=settings.trust_remote_code
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


def _step_limits(settings: EngineSettings) -> StepLimits:
    """Return the limits of steps that the options of the scheduler state."""
    options = settings.scheduler
    return options.step_limits if isinstance(options, SupportsStepLimits) else StepLimits()


def _least(communicator: Communicator, device: torch.device, *numbers: int) -> tuple[int, ...]:
    """Return the least of each number over all ranks."""
    all_numbers = communicator.all_gather(torch.tensor(numbers, device=device))
    return tuple(all_numbers.amin(0).tolist())


def _agreed(communicator: Communicator, device: torch.device, size: CacheSize) -> CacheSize:
    """Return what fits on every rank."""
    num_blocks, num_host_blocks, length = _least(
        communicator, device, size.num_blocks, size.num_host_blocks, size.max_model_len
    )
    return CacheSize(num_blocks=num_blocks, num_host_blocks=num_host_blocks, max_model_len=length)


def _profile(
    settings: EngineSettings,
    accelerator: Accelerator,
    runner: Runner,
    backend: AttentionBackend,
    limits: StepLimits,
) -> MemoryProfile | None:
    """Measure the largest step where that can be done and matters."""
    if not (accelerator.measures_memory and needs_profile(settings)):
        return None
    length = longest_sequence(settings, runner.max_model_len)
    return profile_pass(
        accelerator,
        runner,
        backend,
        max_num_batched_tokens=limits.num_tokens or max(length, 2048),
        max_num_seqs=limits.num_seqs or _DEFAULT_NUM_SEQS,
        max_model_len=length,
    )


def _load(
    settings: EngineSettings,
    accelerator: Accelerator,
    runner: Runner,
    backend: AttentionBackend,
    size: CacheSize,
    max_num_seqs: int,
) -> LoadedModel:
    """Allocate the cache of a loaded model, and make what steps over it need.

    Raises:
        SettingsError: the system gives no memory for it.
    """
    try:
        cache = PagedCache(
            runner.layers,
            backend,
            accelerator,
            num_blocks=size.num_blocks,
            num_host_blocks=size.num_host_blocks,
        )
    except MemoryError as error:  # less than the system says is free, such as by ulimit
        raise SettingsError(
            f"the system gives no memory for {size.num_blocks} blocks and {size.num_host_blocks} "
            f"on the host ({error}); lower num_blocks or kv_cache_memory, and num_host_blocks"
        ) from error
    rows = SequenceRows(
        -(-size.max_model_len // settings.block_size),
        num_device_rows=max_num_seqs + _SPARE_ROWS if accelerator.runs_ahead else 0,
    )
    return LoadedModel(
        accelerator=accelerator,
        runner=runner,
        backend=backend,
        cache=cache,
        layers=[
            backend.bind(layer, tensor)
            for layer, tensor in zip(runner.layers, cache.layers, strict=True)
        ],
        rows=rows,
        batches=BatchMaker(rows, settings.block_size),
    )


def _make_steps(
    settings: EngineSettings,
    model: LoadedModel,
    size: CacheSize,
    max_num_seqs: int,
    grammars: GrammarCompiler,
    communicator: Communicator | None,
) -> HostSteps | DeviceSteps:
    """Return what runs the steps of ``model``."""
    runner = model.runner
    kernels = runner.kernels if isinstance(runner, UsesKernels) else None

    def make_sampler(vocab_size: int) -> Sampler:
        sample = random_sample if kernels is None else kernel_random_sample(kernels.sample)
        return Sampler(
            vocab_size=vocab_size,
            seed=settings.seed,
            eos_token_ids=runner.eos_token_ids,
            device=model.accelerator.device,
            random_sample=sample,
        )

    leads = communicator is None or communicator.rank == 0
    step_sampler = StepSampler(
        runner,
        make_sampler(runner.vocab_size)
        if communicator is None
        else SharedSampler(make_sampler, runner.vocab_size, communicator),
        model.rows,
        GrammarMasks(grammars, runner.vocab_size) if leads else None,
    )
    host_steps = HostSteps(model, step_sampler)
    if not model.accelerator.runs_ahead:
        return host_steps
    device_sampler = DeviceSampler(
        model.accelerator,
        runner,
        model.rows,
        num_rows=max_num_seqs + _SPARE_ROWS,
        seed=settings.seed,
        communicator=communicator,
    )
    graphs = None
    can_capture = communicator is None or communicator.can_be_captured
    if can_capture and not settings.enforce_eager:
        graphs = capture_decode_graphs(
            model,
            device_sampler,
            max_num_seqs=max_num_seqs,
            block_size=settings.block_size,
            max_model_len=size.max_model_len,
        )
    return DeviceSteps(model, device_sampler, host_steps, graphs)


def _make_populator(ahead: int, model: LoadedModel, num_blocks: int) -> PagePopulator | None:
    """Return what populates the cache of ``model`` ahead; ``None``: that is off, or of no use."""
    memories = model.cache.memories
    if not ahead:
        unavailable_reason: str | None = "executor.populate_ahead is 0"
    elif not isinstance(model.accelerator, HostDevice) or model.accelerator.device.type != "cpu":
        unavailable_reason = "it is for steps on a CPU"
    elif not memories:
        unavailable_reason = "the attention backend allocates its caches itself"
    else:
        unavailable_reason = unpopulated_reason()
    if unavailable_reason is not None:
        log.debug("cache_not_populated_ahead", reason=unavailable_reason)
        return None
    return PagePopulator(memories, num_blocks, ahead)


_PAUSE_HARD = 2
"""``omp_pause_hard`` of OpenMP 5.0: end the threads."""


def _end_threads() -> None:
    """End the team of OpenMP threads before this process forks.

    A fork copies one thread, and OpenMP in the child would wait for ever for the others. Parent and
    child each start a new team when they need it; PyTorch and the kernels share one library.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(_PAUSE_HARD)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_threads)


def _default_threads() -> int:
    """Return the physical cores that this process may use, or what ``OMP_NUM_THREADS`` set."""
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return torch.get_num_threads()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(psutil.cpu_count(logical=False) or 1, usable or 1)
