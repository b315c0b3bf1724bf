"""Component ``local``: the model runs in this process.

A step is three phases: prepare turns the engine's words into tensors, forward runs the model over
them, sample draws. What is known of a sequence changes only once its tokens are computed, so a step
that raises leaves everything as it was for the next one.

Shapes: T tokens of S sequences in the batch, R rows of logits.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from time import perf_counter

import numpy as np
import psutil
import torch
from torch import Tensor

from paged_backends.attention.step_attention import StepAttention
from paged_backends.executors.batch import Batch, BatchMaker
from paged_backends.executors.cache_size import decide_cache_size
from paged_backends.executors.paged_cache import PagedCache
from paged_backends.executors.sequence_rows import KnownSequence, SequenceRows
from paged_backends.executors.settings import LocalSettings
from paged_backends.kernels.cpu.tensor_kernels import UsesKernels
from paged_backends.sampling import Row, Sampler, choose, kernel_choice
from paged_backends.text.tokenizer import CheckpointTokenizer, load_tokenizer
from paged_core.errors import EngineError
from paged_core.ids import SeqId
from paged_core.interfaces.attention import AttentionBackend, LayerAttention
from paged_core.interfaces.executor import Capacity, Executor, ExecutorParts
from paged_core.interfaces.model_size import ModelSize
from paged_core.interfaces.runner import Runner, SupportsBestTokens, SupportsModelSize
from paged_core.step import StepInput, StepResult

BestTokens = Callable[[Tensor], tuple[Tensor, Tensor]]

_MAX_LOGITS = 1 << 25
"""Logits of prompts held at once where their log-probabilities are asked for: 128 MiB."""


@dataclass(slots=True)
class _Loaded:
    """What exists between start and close."""

    runner: Runner
    backend: AttentionBackend
    cache: PagedCache
    layers: list[LayerAttention]
    sampler: Sampler
    rows: SequenceRows
    batches: BatchMaker
    best_tokens: BestTokens | None
    """Finds the best token of each row; ``None``: the runner hands out logits only."""
    device: torch.device


class LocalExecutor(Executor):
    """Runs steps at once, on one device."""

    def __init__(self, options: LocalSettings, parts: ExecutorParts, /) -> None:
        self._parts = parts
        self._block_size = parts.settings.block_size
        self._loaded: _Loaded | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> Capacity:
        """Load the model, set up the cache, and say what fits."""
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
        cache = PagedCache(
            runner.layers,
            backend,
            num_blocks=size.num_blocks,
            num_host_blocks=size.num_host_blocks,
        )
        device = torch.device(runner.layers[0].device)
        kernels = runner.kernels if isinstance(runner, UsesKernels) else None
        rows = SequenceRows(-(-size.max_model_len // self._block_size))
        self._loaded = _Loaded(
            runner=runner,
            backend=backend,
            cache=cache,
            layers=[
                backend.bind(layer, tensor)
                for layer, tensor in zip(runner.layers, cache.layers, strict=True)
            ],
            sampler=Sampler(
                vocab_size=runner.vocab_size,
                seed=settings.seed,
                eos_token_ids=runner.eos_token_ids,
                device=device,
                choose=choose if kernels is None else kernel_choice(kernels),
            ),
            rows=rows,
            batches=BatchMaker(rows, self._block_size, device),
            best_tokens=runner.best_tokens if isinstance(runner, SupportsBestTokens) else None,
            device=device,
        )
        return Capacity(
            num_blocks=size.num_blocks,
            num_host_blocks=size.num_host_blocks,
            max_model_len=size.max_model_len,
            vocab_size=runner.vocab_size,
            eos_token_ids=runner.eos_token_ids,
        )

    def close(self) -> None:
        """Let go of the model and the cache."""
        self._loaded = None

    def model_size(self) -> ModelSize | None:
        """Return how large the model is, if its runner knows; ``None`` before the start, too."""
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
        """Run the step, here and now; the handle is its result."""
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
        hidden = self._forward(loaded, batch)
        if loaded.device.type == "cuda":
            torch.cuda.synchronize(loaded.device)
        computed = perf_counter()
        result = self._sample(loaded, batch, hidden)
        result.seconds.update(
            prepare=prepared - started,
            model=computed - prepared,
            sample=perf_counter() - computed,
        )
        return result

    def _apply(self, loaded: _Loaded, step: StepInput) -> None:
        """Take over what changed since the last step."""
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
        """Draw where all tokens are computed, and only then note what this step did."""
        result = self._take_best(loaded, batch, hidden)
        if result is not None:
            return result
        rows, known = loaded.rows, batch.known
        special = np.flatnonzero(rows.special_C[batch.rows_S]).tolist()
        prompts = {
            known[place].id: self._prompt_logprobs(loaded, batch, place, hidden)
            for place in special
            if known[place].prompt_logprobs is not None
        }
        draws_S = batch.draws_S
        beams = [place for place in special if known[place].num_candidates and draws_S[place]]
        candidates, failed = self._rank(loaded, batch, beams, hidden)
        if beams:
            draws_S = draws_S.copy()
            draws_S[beams] = False
        places = np.flatnonzero(draws_S)
        drawing = [known[place] for place in places.tolist()]
        draws: list[Row] = [sequence.draw for sequence in drawing]
        last_R = batch.last_S[places]
        fans_out = any(known[place].fan_out > 1 for place in special)
        if fans_out:
            repeats = [sequence.fan_out for sequence in drawing]
            draws = [row for sequence in drawing for row in sequence.draws()]
            drawing = [s for s, times in zip(drawing, repeats, strict=True) for _ in range(times)]
            last_R = np.repeat(last_R, repeats)
        if fans_out or len(last_R) != len(hidden):  # else each row is somebody's last, in order
            hidden = hidden.index_select(0, torch.from_numpy(last_R).to(loaded.device))
        token_ids: list[int] = []
        logprobs = None
        refused: dict[SeqId, str] = {}
        if draws:
            drawn = loaded.sampler.draw(loaded.runner.logits(hidden), draws)
            token_ids, logprobs = drawn.token_ids, drawn.logprobs
            refused = {drawing[row].id: reason for row, reason in drawn.failed.items()}
        rows.num_computed_C[batch.rows_S] += batch.counts_S
        for place in np.flatnonzero(~batch.draws_S).tolist():
            rows.settle(known[place])
        if refused:
            kept = [row for row, sequence in enumerate(drawing) if sequence.id not in refused]
            drawing = [drawing[row] for row in kept]
            token_ids = [token_ids[row] for row in kept]
            logprobs = [logprobs[row] for row in kept] if logprobs is not None else None
        ids = [sequence.id for sequence in drawing]
        self._append(rows, drawing, token_ids)
        return StepResult(
            sequence_ids=ids,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompts,
            candidates=candidates,
            failed=failed | refused,
        )

    def _take_best(self, loaded: _Loaded, batch: Batch, hidden: Tensor) -> StepResult | None:
        """Do so where everybody who draws takes the best token and wants nothing else."""
        rows = loaded.rows
        if loaded.best_tokens is None or not rows.plain_C[batch.rows_S].all():
            return None
        known, rows_R, places = batch.known, batch.rows_S, None
        if not batch.draws_S.all():
            places = np.flatnonzero(batch.draws_S)
            known, rows_R = [known[place] for place in places.tolist()], rows_R[places]
        if len(known) != len(hidden):
            last_R = batch.last_S if places is None else batch.last_S[places]
            hidden = hidden.index_select(0, torch.from_numpy(last_R).to(loaded.device))
        tokens: list[int] = []
        if known:
            best_R, score_R = loaded.best_tokens(hidden)
            if not all(map(isfinite, score_R.tolist())):
                return None
            tokens = best_R.tolist()
        rows.num_computed_C[batch.rows_S] += batch.counts_S
        for sequence, token in zip(known, tokens, strict=True):
            sequence.tokens.append(token)
        rows.num_tokens_C[rows_R] += 1
        rows.next_token_C[rows_R] = tokens
        if places is not None:
            for place in np.flatnonzero(~batch.draws_S).tolist():
                rows.settle(batch.known[place])
        return StepResult(sequence_ids=[sequence.id for sequence in known], token_ids=tokens)

    def _rank(
        self, loaded: _Loaded, batch: Batch, places: list[int], hidden: Tensor
    ) -> tuple[dict[SeqId, dict[int, float]], dict[SeqId, str]]:
        """Return the best continuations of these beams, and the beams that have none to return."""
        if not places:
            return {}, {}
        beams = [batch.known[place] for place in places]
        last_R = torch.from_numpy(batch.last_S[places]).to(loaded.device)
        found, failed = loaded.sampler.rank(
            loaded.runner.logits(hidden.index_select(0, last_R)),
            [beam.draw for beam in beams],
            [beam.num_candidates for beam in beams],
        )
        candidates = {beam.id: found[row] for row, beam in enumerate(beams) if row not in failed}
        return candidates, {beams[row].id: reason for row, reason in failed.items()}

    def _append(
        self, rows: SequenceRows, drawing: list[KnownSequence], token_ids: Sequence[int]
    ) -> None:
        """Append to each sequence the token it drew; the first, where it fanned out."""
        firsts: dict[SeqId, None] = {}
        if any(sequence.fan_out > 1 for sequence in drawing):
            kept = []
            for row, sequence in enumerate(drawing):
                if sequence.id not in firsts:
                    firsts[sequence.id] = None
                    kept.append(row)
                    rows.special_C[sequence.row] = sequence.prompt_logprobs is not None
            drawing = [drawing[row] for row in kept]
            token_ids = [token_ids[row] for row in kept]
            for sequence in drawing:
                sequence.fan_out = 1
        for sequence, token in zip(drawing, token_ids, strict=True):
            sequence.tokens.append(token)
        rows_R = np.fromiter((sequence.row for sequence in drawing), np.int64, len(drawing))
        rows.num_tokens_C[rows_R] += 1
        rows.next_token_C[rows_R] = token_ids

    def _prompt_logprobs(
        self, loaded: _Loaded, batch: Batch, place: int, hidden: Tensor
    ) -> list[dict[int, float]]:
        """Log-probabilities of the prompt tokens that follow the tokens of one chunk."""
        sequence = batch.known[place]
        begin, count = int(batch.computed_S[place]), int(batch.counts_S[place])
        end = min(begin + count, sequence.draw.num_prompt_tokens - 1)
        first = int(batch.last_S[place]) - (count - 1)
        at_once = max(1, _MAX_LOGITS // loaded.runner.vocab_size)
        entries: list[dict[int, float]] = []
        for start in range(begin, end, at_once):
            stop = min(end, start + at_once)
            rows = hidden[first + start - begin : first + stop - begin]
            entries += loaded.sampler.logprobs_of(
                loaded.runner.logits(rows),
                sequence.tokens[start + 1 : stop + 1],
                sequence.prompt_logprobs or 0,
            )
        return entries


def _default_threads() -> int:
    """Physical cores that this process may use; ``OMP_NUM_THREADS`` has its say."""
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return torch.get_num_threads()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(psutil.cpu_count(logical=False) or 1, usable or 1)
