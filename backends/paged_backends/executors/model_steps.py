"""A loaded model made ready for its steps: its cache, its samplers, and the graphs of a GPU."""

from __future__ import annotations

import ctypes
import os

import psutil
import torch

from paged_backends.executors.accelerator import Accelerator
from paged_backends.executors.batch import BatchMaker, SequenceRows
from paged_backends.executors.cache_size import (
    CacheSize,
    MemoryProfile,
    longest_sequence,
    needs_profile,
    profile_pass,
)
from paged_backends.executors.decode_graphs import DecodeGraphs, capture_decode_graphs
from paged_backends.executors.device_sampler import DeviceSampler
from paged_backends.executors.device_steps import DeviceSteps
from paged_backends.executors.host_device import HostDevice
from paged_backends.executors.host_steps import HostSteps, LoadedModel, StepSampler
from paged_backends.executors.page_populator import PagePopulator, unpopulated_reason
from paged_backends.executors.paged_cache import PagedCache
from paged_backends.executors.shared_sampling import SharedSampler
from paged_backends.grammar.compiler import GrammarCompiler
from paged_backends.grammar.masks import GrammarMasks
from paged_backends.kernels.cpu.tensor_kernels import UsesKernels
from paged_backends.sampling import Sampler, kernel_random_sample, random_sample
from paged_core.errors import SettingsError
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.runner import Runner
from paged_core.interfaces.scheduler import StepLimits, SupportsStepLimits
from paged_core.log import get_logger
from paged_core.settings.schema import EngineSettings

DEFAULT_NUM_SEQS = 256
"""Sequences that may run at once under a scheduler that states no limit."""
_SPARE_ROWS = 64
"""Rows for sequences that are known beyond those that run, for which the device can sample."""

log = get_logger()


def step_limits(settings: EngineSettings) -> StepLimits:
    """Return the limits of steps that the options of the scheduler state."""
    options = settings.scheduler
    return options.step_limits if isinstance(options, SupportsStepLimits) else StepLimits()


def least(communicator: Communicator, device: torch.device, *numbers: int) -> tuple[int, ...]:
    """Return the least of each number over all ranks."""
    all_numbers = communicator.all_gather(torch.tensor(numbers, device=device))
    return tuple(all_numbers.amin(0).tolist())


def agreed(communicator: Communicator, device: torch.device, size: CacheSize) -> CacheSize:
    """Return what fits on every rank."""
    num_blocks, num_host_blocks, length = least(
        communicator, device, size.num_blocks, size.num_host_blocks, size.max_model_len
    )
    return CacheSize(num_blocks=num_blocks, num_host_blocks=num_host_blocks, max_model_len=length)


def memory_profile(
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
        max_num_seqs=limits.num_seqs or DEFAULT_NUM_SEQS,
        max_model_len=length,
    )


def load_model(
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


def make_steps(
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
    graphs: DecodeGraphs | str
    if settings.enforce_eager:
        graphs = "enforce_eager is set"
    elif communicator is not None and not communicator.can_be_captured:
        graphs = f"{type(communicator).__name__} cannot be captured in graphs"
    else:
        graphs = capture_decode_graphs(
            model,
            device_sampler,
            max_num_seqs=max_num_seqs,
            block_size=settings.block_size,
            max_model_len=size.max_model_len,
        )
    return DeviceSteps(model, device_sampler, host_steps, graphs)


def make_populator(ahead: int, model: LoadedModel, num_blocks: int) -> PagePopulator | None:
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


def default_threads() -> int:
    """Return the physical cores that this process may use, or what ``OMP_NUM_THREADS`` set."""
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return torch.get_num_threads()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(psutil.cpu_count(logical=False) or 1, usable or 1)
