"""Component ``local``: the model runs in this process.

A step is three phases: prepare applies the step's changes and makes its batch, forward runs the
model, sample draws. The sequences advance once all of it is done, so a step that raises leaves them
as they were for the next one.

Shapes: T tokens of S sequences in the batch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from time import perf_counter

import psutil
import torch
from torch import Tensor

import paged_backends.executors.forks  # noqa: F401 - what it does when a process forks
from paged_backends.attention.step_attention import StepAttention
from paged_backends.executors.batch import Batch, BatchMaker
from paged_backends.executors.cache_size import CacheSize, decide_cache_size
from paged_backends.executors.model_timer import ModelTimer
from paged_backends.executors.paged_cache import PagedCache
from paged_backends.executors.sequence_rows import SequenceRows
from paged_backends.executors.settings import LocalSettings
from paged_backends.executors.step_sampler import StepSampler
from paged_backends.kernels.cpu.tensor_kernels import UsesKernels
from paged_backends.sampling import Sampler, kernel_random_sample, random_sample
from paged_backends.text.tokenizer import CheckpointTokenizer, load_tokenizer
from paged_core.errors import EngineError
from paged_core.interfaces.attention import AttentionBackend, LayerAttention
from paged_core.interfaces.executor import Capacity, Executor, ExecutorParts
from paged_core.interfaces.model_size import ModelSize
from paged_core.interfaces.runner import Runner, SupportsModelSize
from paged_core.settings import EngineSettings
from paged_core.step import StepInput, StepResult


@dataclass(slots=True)
class _Loaded:
    """What exists between start and close."""

    runner: Runner
    backend: AttentionBackend
    cache: PagedCache
    layers: list[LayerAttention]
    rows: SequenceRows
    batches: BatchMaker
    sampler: StepSampler
    device: torch.device


class LocalExecutor(Executor):
    """Runs steps at once, on one device."""

    def __init__(self, options: LocalSettings, parts: ExecutorParts, /) -> None:
        self._parts = parts
        self._loaded: _Loaded | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> Capacity:
        """Load the model, allocate the cache, and return what fits."""
        settings = self._parts.settings
        torch.set_num_threads(settings.threads or _default_threads())
        runner = self._parts.make_runner()
        backend = self._parts.make_attention(runner.layers)
        size = decide_cache_size(
            settings,
            runner.layers,
            backend,
            model_length=runner.max_model_len,
            needs_host_blocks=self._parts.needs_host_blocks,
        )
        self._loaded = _set_up(settings, runner, backend, size)
        return Capacity(
            num_blocks=size.num_blocks,
            num_host_blocks=size.num_host_blocks,
            max_model_len=size.max_model_len,
            vocab_size=runner.vocab_size,
            eos_token_ids=runner.eos_token_ids,
        )

    def close(self) -> None:
        """Release the model and the cache."""
        self._loaded = None

    def model_size(self) -> ModelSize | None:
        """Return the model's size; ``None`` before the start, or if its runner cannot tell."""
        runner = self._loaded.runner if self._loaded is not None else None
        return runner.model_size() if isinstance(runner, SupportsModelSize) else None

    def tokenizer(self) -> CheckpointTokenizer | None:
        """Return the tokenizer that the settings name, or else the model's own, if it has one.

        Raises:
            CheckpointError: it cannot be read.
        """
        settings = self._parts.settings
        return load_tokenizer(
            settings.tokenizer or settings.model, trust_remote_code=settings.trust_remote_code
        )

    # ------------------------------------------------------------------ steps

    def submit(self, step: StepInput, /) -> StepResult:
        """Run the whole step; the handle is its result."""
        if self._loaded is None:
            raise EngineError("the executor is not running; start it first")
        with torch.inference_mode():
            return self._run(self._loaded, step)

    def collect(self, handle: StepResult, /) -> StepResult:
        """Return what :meth:`submit` computed."""
        return handle

    def _run(self, loaded: _Loaded, step: StepInput) -> StepResult:
        started = perf_counter()
        self._apply(loaded, step)
        batch = loaded.batches.make(step)
        prepared = perf_counter()
        if batch is None:
            return StepResult(seconds={"prepare": prepared - started})
        timer = ModelTimer(loaded.device)
        hidden = self._forward(loaded, batch)
        timer.stop()
        result = self._sample(loaded, batch, hidden)
        model = timer.seconds()
        seconds = {
            "prepare": prepared - started,
            "model": model,
            "sample": perf_counter() - prepared - model,
        }
        return replace(result, seconds=seconds)

    def _apply(self, loaded: _Loaded, step: StepInput) -> None:
        """Apply what changed since the last step, in the order that :class:`StepInput` says."""
        rows, cache = loaded.rows, loaded.cache
        rows.remove(step.removed)
        cache.swap_out(step.swap_out_sources, step.swap_out_targets)
        cache.swap_in(step.swap_in_sources, step.swap_in_targets)
        cache.copy(step.copy_sources, step.copy_targets)
        for new in step.added:
            rows.add(new)
        rows.edit(step.edit_ids, step.edit_indices, step.edit_blocks)

    def _forward(self, loaded: _Loaded, batch: Batch) -> Tensor:
        """Return hidden states [T, hidden]."""
        attend = StepAttention(loaded.layers, loaded.backend.plan(batch.attention))
        return loaded.runner.forward(batch.tokens_T, batch.positions_T, attend)

    def _sample(self, loaded: _Loaded, batch: Batch, hidden: Tensor) -> StepResult:
        """Sample for the batch, and only then advance its sequences."""
        sampler, result = loaded.sampler, StepResult()
        drawn = sampler.draw_best(batch, hidden)
        if drawn is None:
            prompt_logprobs = sampler.prompt_logprobs(batch, hidden)
            candidates = sampler.rank(batch, hidden)
            drawn = sampler.draw(batch, hidden)
            result = StepResult(
                logprobs=drawn.logprobs,
                prompt_logprobs=prompt_logprobs,
                candidates=candidates.logprobs,
                failed=candidates.failed | drawn.failed,
            )
        loaded.rows.advance(batch, drawn.places_R, drawn.token_ids, drawn.failed)
        ids = [batch.sequences[place].id for place in drawn.places_R.tolist()]
        return replace(result, sequence_ids=ids, token_ids=drawn.token_ids)


def _set_up(
    settings: EngineSettings, runner: Runner, backend: AttentionBackend, size: CacheSize
) -> _Loaded:
    """Allocate the cache of a loaded model, and make what steps over it need."""
    device = torch.device(runner.layers[0].device)
    cache = PagedCache(
        runner.layers,
        backend,
        num_blocks=size.num_blocks,
        num_host_blocks=size.num_host_blocks,
    )
    kernels = runner.kernels if isinstance(runner, UsesKernels) else None
    sampler = Sampler(
        vocab_size=runner.vocab_size,
        seed=settings.seed,
        eos_token_ids=runner.eos_token_ids,
        device=device,
        random_sample=random_sample if kernels is None else kernel_random_sample(kernels),
    )
    rows = SequenceRows(-(-size.max_model_len // settings.block_size))
    return _Loaded(
        runner=runner,
        backend=backend,
        cache=cache,
        layers=[
            backend.bind(layer, tensor)
            for layer, tensor in zip(runner.layers, cache.layers, strict=True)
        ],
        rows=rows,
        batches=BatchMaker(rows, settings.block_size, device),
        sampler=StepSampler(runner, sampler, rows),
        device=device,
    )


def _default_threads() -> int:
    """Return the physical cores that this process may use, or what ``OMP_NUM_THREADS`` set."""
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return torch.get_num_threads()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(psutil.cpu_count(logical=False) or 1, usable or 1)
