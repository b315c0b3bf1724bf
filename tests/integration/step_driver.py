"""Drives a ``local`` executor with steps made by hand: an engine that has no rules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from emulation.accelerator import EmulatedExecutor, EmulatedSettings
from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import TorchAttention
from paged_backends.executors.local import LocalExecutor
from paged_backends.executors.settings import LocalSettings
from paged_backends.runners.native.runner import NativeRunner
from paged_backends.runners.settings import (
    NativeSettings,
    OnnxRuntimeSettings,
    TransformersSettings,
)
from paged_backends.runners.transformers.runner import TransformersRunner
from paged_core.engine.contexts import AttentionContext, ExecutorContext, RunnerContext
from paged_core.ids import BlockId, SeqId
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import Runner
from paged_core.interfaces.scheduler import StepLimits
from paged_core.plugins.registry import Registry
from paged_core.sampling_params import SamplingParams
from paged_core.step import NewSequence, StepInput, StepResult
from paged_testing.runner_scene import DenseAttention

GREEDY = SamplingParams(max_tokens=None)


def settings(folder: Path | str, **changes: Any) -> Any:
    """The settings that a runner and an executor read."""
    values: dict[str, Any] = {
        "model": str(folder),
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "device": "cpu",
        "threads": 1,
        "max_model_len": None,
        "block_size": 16,
        "num_blocks": None,
        "kv_cache_memory": None,
        "num_host_blocks": None,
        "seed": 0,
        "trust_remote_code": False,
        "allow_pickle": False,
        "enforce_eager": False,
        "deterministic": False,
        "scheduler": SimpleNamespace(step_limits=StepLimits(num_seqs=8)),
        "grammar": SimpleNamespace(name="llguidance"),
    }
    return SimpleNamespace(**(values | changes))


def load_runner(
    chosen: Any,
    name: str = "transformers",
    communicator: Communicator | None = None,
    **options: Any,
) -> Any:
    """A loaded runner, by settings or by the folder of a model.

    With a communicator, it is one of several ranks.
    """
    context = RunnerContext(settings=settings(chosen) if isinstance(chosen, Path | str) else chosen)
    if communicator is not None:
        context = replace(
            context,
            rank=communicator.rank,
            size=communicator.size,
            communicator=communicator,
        )
    runner: Runner
    if name == "native":
        runner = NativeRunner(NativeSettings(**options), context)
    elif name == "onnxruntime":
        from paged_backends.runners.onnx.runner import OnnxRuntimeRunner

        runner = OnnxRuntimeRunner(OnnxRuntimeSettings(**options), context)
    else:
        runner = TransformersRunner(TransformersSettings(), context)
    runner.load()
    return runner


def prompt_logits(runner: Runner, prompt: Sequence[int], *cuts: int) -> torch.Tensor:
    """The logits [T, V] of all tokens of a prompt, which is computed in chunks."""
    attention, rows = DenseAttention(runner.layers, 1), []
    with torch.inference_mode():
        for start, stop in pairwise((0, *cuts, len(prompt))):
            attention.begin([(0, stop - start)])
            tokens, positions = torch.tensor(prompt[start:stop]), torch.arange(start, stop)
            rows.append(runner.logits(runner.forward(tokens, positions, attention)))
    return torch.cat(rows)


def make_executor(
    chosen: Any,
    *,
    needs_host_blocks: bool = False,
    runner: Runner | None = None,
    attention: AttentionBackend | None = None,
    emulated: bool = False,
) -> LocalExecutor:
    """An executor that is not started; a loaded ``runner`` is used as it is."""
    context = LoadedContext(
        settings=chosen,
        registry=Registry(()),
        needs_host_blocks=needs_host_blocks,
        runner=runner,
        attention=attention,
    )
    if emulated:
        return EmulatedExecutor(EmulatedSettings(), context)
    return LocalExecutor(LocalSettings(), context)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedContext(ExecutorContext):
    """Parts with a runner that is loaded already, if there is one, and an attention backend that
    is made already, or else ``torch``."""

    runner: Runner | None
    attention: AttentionBackend | None

    def make_runner(self, communicator: Communicator | None = None) -> Runner:
        return self.runner or load_runner(self.settings)

    def make_attention(self, layers: Sequence[LayerSpec]) -> AttentionBackend:
        context = AttentionContext(settings=self.settings)
        return self.attention or TorchAttention(TorchSettings(), context)


class Sequence_:  # noqa: N801
    """State that an engine would have of a sequence."""

    def __init__(self, seq_id: int, prompt: Sequence[int], sampling: SamplingParams) -> None:
        self.id = SeqId(seq_id)
        self.tokens = list(prompt)
        self.num_prompt = len(prompt)
        self.sampling = sampling
        self.num_computed = 0
        self.blocks: list[BlockId] = []
        self.host: list[BlockId] = []
        self.known = False

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class StepDriver:
    """Hands out blocks in a shuffled order, and keeps the tokens that come back."""

    def __init__(self, executor: LocalExecutor, block_size: int, *, seed: int = 0) -> None:
        self.executor, self.block_size = executor, block_size
        self.capacity = executor.start()
        self.random = random.Random(seed)
        self.free = [BlockId(block) for block in range(self.capacity.num_blocks)]
        self.free_host = [BlockId(block) for block in range(self.capacity.num_host_blocks)]
        self.random.shuffle(self.free)
        self.random.shuffle(self.free_host)
        self.sequences: dict[SeqId, Sequence_] = {}
        self.number = 0
        self._changes: dict[str, list[Any]] = {}
        self._leaving_host: list[BlockId] = []

    def add(self, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> Sequence_:
        sequence = Sequence_(len(self.sequences), prompt, sampling)
        self.sequences[sequence.id] = sequence
        return sequence

    def step(self, work: Sequence[tuple[Sequence_, int]], *, fan_out: int = 1) -> StepResult:
        """Compute so many tokens of each; append what is drawn."""
        for sequence, count in work:
            self._grow(sequence, sequence.num_computed + count)
            if not sequence.known:
                sequence.known = True
                self._note("added", self._introduce(sequence, fan_out))
        step = StepInput(
            number=self.number,
            sequence_ids=[sequence.id for sequence, _ in work],
            num_tokens=[count for _, count in work],
            **cast("Any", self._changes),
        )
        self.number += 1
        self._changes = {}
        self.free_host += self._leaving_host
        self._leaving_host = []
        result = self.executor.collect(self.executor.submit(step))
        for sequence, count in work:
            sequence.num_computed += count
        seen = set()
        for seq_id, token in zip(result.sequence_ids, result.token_ids, strict=True):
            if seq_id not in seen:
                self.sequences[seq_id].tokens.append(token)
            seen.add(seq_id)
        return result

    def remove(self, sequence: Sequence_) -> None:
        """Take everything from a sequence: it is computed anew, or has ended."""
        if sequence.known:
            self._note("removed", sequence.id)
        self._give_back(sequence.blocks)
        sequence.blocks, sequence.known, sequence.num_computed = [], False, 0

    def swap_out(self, sequence: Sequence_) -> None:
        sequence.host = [self.free_host.pop() for _ in sequence.blocks]
        for source, target in zip(sequence.blocks, sequence.host, strict=True):
            self._note("swap_out_sources", source)
            self._note("swap_out_targets", target)
        self._note("removed", sequence.id)
        self._give_back(sequence.blocks)
        sequence.blocks, sequence.known = [], False

    def swap_in(self, sequence: Sequence_) -> None:
        sequence.blocks = [self.free.pop() for _ in sequence.host]
        for source, target in zip(sequence.host, sequence.blocks, strict=True):
            self._note("swap_in_sources", source)
            self._note("swap_in_targets", target)
        self._leaving_host += sequence.host  # until they are read, nothing may be written there
        sequence.host = []

    def exchange(self, sequence: Sequence_, first: int, second: int) -> None:
        """Let two blocks of a sequence trade places and contents, through copies."""
        blocks = sequence.blocks
        for source, target in ((first, second), (second, first)):
            self._note("copy_sources", blocks[source])
            self._note("copy_targets", blocks[target])
        blocks[first], blocks[second] = blocks[second], blocks[first]
        for index in (first, second):
            self._edit(sequence, index)

    def _introduce(self, sequence: Sequence_, fan_out: int) -> NewSequence:
        return NewSequence(
            id=sequence.id,
            request_id=f"request-{sequence.id}",
            tokens=list(sequence.tokens),
            num_prompt_tokens=sequence.num_prompt,
            num_computed=sequence.num_computed,
            blocks=list(sequence.blocks),
            sampling=sequence.sampling,
            fan_out=fan_out,
        )

    def _grow(self, sequence: Sequence_, num_tokens: int) -> None:
        while len(sequence.blocks) * self.block_size < num_tokens:
            sequence.blocks.append(self.free.pop())
            self._edit(sequence, len(sequence.blocks) - 1)

    def _edit(self, sequence: Sequence_, index: int) -> None:
        if sequence.known:
            self._note("edit_ids", sequence.id)
            self._note("edit_indices", index)
            self._note("edit_blocks", sequence.blocks[index])

    def _give_back(self, blocks: list[BlockId]) -> None:
        self.free.extend(blocks)
        self.random.shuffle(self.free)

    def _note(self, key: str, value: Any) -> None:
        self._changes.setdefault(key, []).append(value)


def run_at_random(
    driver: StepDriver, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[list[int]]:
    """Generate ``num_tokens`` for each prompt under a schedule made of dice.

    Chunks of any size, batches of any mix, sequences that come late, are swapped out, computed
    anew, or have their blocks moved about.
    """
    dice = driver.random
    sequences = [driver.add(prompt) for prompt in prompts]
    swapped: list[Sequence_] = []
    while unfinished := [s for s in sequences if len(s.output) < num_tokens]:
        swapped_in = []
        for sequence in [s for s in swapped if dice.random() < 0.5]:
            driver.swap_in(sequence)
            swapped.remove(sequence)
            swapped_in.append(sequence)
        for sequence in [s for s in unfinished if s.known and s not in swapped]:
            event = dice.random()
            if event < 0.05:
                driver.remove(sequence)
            elif event < 0.10 and len(sequence.blocks) <= len(driver.free_host):
                driver.swap_out(sequence)
                swapped.append(sequence)
            elif event < 0.15 and len(sequence.blocks) > 1:
                driver.exchange(sequence, *dice.sample(range(len(sequence.blocks)), 2))
        work = []
        for sequence in unfinished:
            # what was swapped in has to be in the next step, as an engine would have it
            if sequence in swapped or (sequence not in swapped_in and dice.random() < 0.25):
                continue
            pending = len(sequence.tokens) - sequence.num_computed
            work.append((sequence, pending if dice.random() < 0.5 else dice.randint(1, pending)))
        dice.shuffle(work)
        driver.step(work)
    for sequence in sequences:
        driver.remove(sequence)
    assert sorted(driver.free) == list(range(driver.capacity.num_blocks))
    return [sequence.output for sequence in sequences]


def served_at_random(
    chosen: Any,
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    seed: int = 0,
    times: int = 1,
) -> list[list[list[int]]]:
    """Tokens of a loaded runner for prompts in an executor, run at random so many times."""
    executor = make_executor(chosen, needs_host_blocks=True, runner=runner)
    driver = StepDriver(executor, chosen.block_size, seed=seed)
    return [run_at_random(driver, prompts, num_tokens) for _ in range(times)]
