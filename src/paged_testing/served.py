"""The output that a request has when it runs alone, and checks that it has no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose
from typing import Protocol, cast

from paged_core.engine.engine import Engine
from paged_core.errors import RequestError
from paged_core.ids import SeqId
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup
from paged_core.step import NewSequence
from paged_testing.doubles import PassingExecutor
from paged_testing.engines import serve
from paged_testing.workloads import Workload, simple_request


class _Model(Protocol):
    """The methods of the ``memory`` executor that replace a model."""

    def sample(self, sequence: NewSequence, tokens: Sequence[int], index: int, /) -> int: ...

    def rank(self, tokens: Sequence[int], count: int, /) -> dict[int, float]: ...

    def logprob(self, tokens: Sequence[int], token: int, /) -> float: ...


def _model(engine: Engine) -> _Model:
    executor = engine.executor
    while isinstance(executor, PassingExecutor):
        executor = executor.inner
    return cast("_Model", executor)


def text_alone(engine: Engine, request: Request, index: int = 0) -> list[int]:
    """Return the tokens that sequence ``index`` of a request generates under any schedule.

    Args:
        engine: an engine on the ``memory`` executor.
    """
    new = NewSequence(
        id=SeqId(0),
        request_id=request.id,
        tokens=list(request.prompt),
        num_prompt_tokens=len(request.prompt),
        num_computed=0,
        blocks=[],
        sampling=request.sampling,
    )
    model = _model(engine)
    tokens = list(request.prompt)
    for _ in range(request.sampling.max_tokens or 0):
        tokens.append(model.sample(new, tokens, index))
    return tokens[len(request.prompt) :]


def best_alone(engine: Engine, request: Request) -> list[tuple[list[int], float]]:
    """Return the outputs of a request with ``best_of``, and their scores, under any schedule."""
    model = _model(engine)
    texts = [text_alone(engine, request, index) for index in range(request.sampling.width)]
    scored = []
    for text in texts:
        total, tokens = 0.0, list(request.prompt)
        for token in text:
            total += model.logprob(tokens, token)
            tokens.append(token)
        scored.append((text, total / len(text)))
    scored.sort(key=lambda entry: -entry[1])
    return scored[: request.sampling.n]


def search_alone(engine: Engine, request: Request) -> list[tuple[list[int], float]]:
    """Return the outputs of a request with ``beam_width``, and their scores, under any schedule."""
    model, asked = _model(engine), request.sampling
    width, power = asked.width, asked.length_penalty
    longest = asked.max_tokens or 0
    num_candidates = max(2, 1 + len(asked.stop_token_ids)) * width
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 1):
        pool = [
            (total + logprob, [*text, token])
            for total, text in beams
            for token, logprob in model.rank([*request.prompt, *text], num_candidates).items()
        ]
        pool = sorted(pool, key=lambda entry: -entry[0])[:num_candidates]
        last = [length == longest or text[-1] in asked.stop_token_ids for _, text in pool]
        first = zip(pool[:width], last, strict=False)
        ended += [(total / length**power, text) for (total, text), ends in first if ends]
        ended = sorted(ended, key=lambda entry: -entry[0])[:width]
        beams = [entry for entry, ends in zip(pool, last, strict=True) if not ends][:width]
        if not beams:
            break
        hopeful = asked.early_stopping == "never" and power > 0
        best = beams[0][0] / (longest if hopeful else length) ** power
        at_once = asked.early_stopping is True or width == 1
        if len(ended) == width and (at_once or best <= ended[-1][0]):
            break
    return [(text, score) for score, text in ended[: asked.n]]


def check_said(engine: Engine, group: SequenceGroup) -> None:
    """Check that a finished request has the output that it has alone, or a prefix if aborted."""
    if group.request.sampling.chooses_at_end:
        _check_chosen(engine, group)
        return
    for sequence in group.sequences:
        whole = text_alone(engine, group.request, sequence.index)
        output = sequence.output
        assert output == whole[: len(output)], f"{sequence} has {output}, alone it has {whole}"
        if sequence.finish_reason is FinishReason.LENGTH:
            assert output == whole or sequence.error, f"{sequence} ended early, without a reason"


def _check_chosen(engine: Engine, group: SequenceGroup) -> None:
    """As :func:`check_said`, for a request that returns the best of several sequences."""
    own_ends = (FinishReason.STOP, FinishReason.LENGTH)
    if any(each.error or each.finish_reason not in own_ends for each in group.sequences):
        return  # which sequences were best when it was aborted depends on the step
    searches = group.request.sampling.beam_width is not None
    expected = (search_alone if searches else best_alone)(engine, group.request)
    outputs = [sequence.output for sequence in group.sequences]
    assert outputs == [text for text, _ in expected], f"{group} has {outputs}, alone {expected}"
    for sequence, (_, score) in zip(group.sequences, expected, strict=True):
        assert isclose(sequence.score or 0.0, score, abs_tol=1e-9), f"{sequence}: not {score}"


def check_served(engine: Engine, workload: Workload, groups: Mapping[str, SequenceGroup]) -> None:
    """Check the groups that :func:`~paged_testing.engines.serve` returns.

    Every request has the output that it has alone; one that ended early has a reason; no block
    leaked.
    """
    aborted = {request_id for _, request_id in workload.aborts}
    for group in groups.values():
        check_said(engine, group)
        for sequence in group.sequences:
            reason = sequence.finish_reason
            assert reason is not FinishReason.ERROR, sequence.error
            if group.id in aborted or reason is FinishReason.IGNORED:
                continue
            assert reason in (FinishReason.LENGTH, FinishReason.STOP), f"{sequence} has not ended"
    check_nothing_leaked(engine)


def check_not_cut_short(groups: Iterable[SequenceGroup]) -> None:
    """Check that no request was ended for want of blocks or because it could never run."""
    for group in groups:
        for sequence in group.sequences:
            assert sequence.error is None, f"{sequence} was ended before its time: {sequence.error}"


def check_nothing_leaked(engine: Engine) -> None:
    """Check that an engine without requests holds no block, and that its scheduler is empty."""
    kv_cache = engine.kv_cache
    lost = kv_cache.num_blocks - kv_cache.num_free
    assert lost == 0, f"{lost} device blocks leaked"
    lost = kv_cache.num_host_blocks - kv_cache.num_free_host
    assert lost == 0, f"{lost} host blocks leaked"
    queues = engine.scheduler.queues()
    left = [*queues.running, *queues.waiting, *queues.swapped]
    assert not left, f"the scheduler still holds {left}"
    assert len(engine.scheduler) == 0, "len() of the scheduler is not 0"


_NUM_NEW = 2
"""Tokens that each request generates."""


def check_serves_what_fits(
    engine: Engine, budget: int | None = None, max_num_seqs: int | None = None
) -> None:
    """Check that prompts of any length, one and several sequences, are accepted and served.

    Args:
        engine: a fresh one; left out is what would not fit it if it were empty.
        budget: tokens that a step computes at most; ``None``: there is no limit.
        max_num_seqs: sequences that may run; ``None``: there is no limit.

    Raises:
        AssertionError: a request was refused, ignored or cut short; the message says which and why.
    """
    groups = []
    for request in _requests(engine, budget, max_num_seqs):
        try:
            groups.append(engine.add(request))
        except RequestError as error:
            raise AssertionError(f"it fits alone, but is refused: {error}") from error
    serve(engine, Workload(()))
    for group in groups:
        for sequence in group.sequences:
            assert sequence.finish_reason is not FinishReason.IGNORED, (
                f"{group} fits alone, but is ignored: {sequence.error}"
            )
            assert len(sequence.output) == _NUM_NEW, f"{sequence} was cut short: {sequence.error}"


def _requests(engine: Engine, budget: int | None, max_num_seqs: int | None) -> Iterator[Request]:
    kv_cache, longest = engine.kv_cache, engine.capacity.max_model_len
    num_blocks = kv_cache.num_blocks - kv_cache.watermark_blocks
    for n, step in ((1, 1), (2, 3), (3, 5)):
        for length in range(1, longest - _NUM_NEW + 1, step):
            if (
                n * kv_cache.blocks_for(length + _NUM_NEW) <= num_blocks
                and (budget is None or n * (length + _NUM_NEW) <= budget)
                and (max_num_seqs is None or n <= max_num_seqs)
            ):
                yield simple_request(f"prompt{length}n{n}", length, _NUM_NEW, n=n)
