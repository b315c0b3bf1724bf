"""What a request says when it is alone with all the room in the world: nothing may change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from paged_core.engine import Engine
from paged_core.request import FinishReason, Request
from paged_core.sequence import SeqId, SequenceGroup
from paged_core.step import NewSequence
from paged_core.testing.failing_executor import FailingExecutor
from paged_core.testing.workload import Workload


class _Drawing(Protocol):
    """What the ``memory`` executor offers."""

    def draw(self, sequence: NewSequence, tokens: Sequence[int], index: int, /) -> int: ...


def text_alone(engine: Engine, request: Request, index: int = 0) -> list[int]:
    """Return the tokens that sequence ``index`` of a request generates, whatever the schedule.

    Args:
        engine: one on the ``memory`` executor.
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
    executor = engine.executor
    if isinstance(executor, FailingExecutor):
        executor = executor.inner
    draw = cast("_Drawing", executor).draw
    tokens = list(request.prompt)
    for _ in range(request.sampling.max_tokens or 0):
        tokens.append(draw(new, tokens, index))
    return tokens[len(request.prompt) :]


def check_served(engine: Engine, workload: Workload, groups: Mapping[str, SequenceGroup]) -> None:
    """Check what is left after :func:`~paged_core.testing.memory_engine.serve`.

    Every request said what it says alone; whoever ended early has a reason; nothing leaked.
    """
    aborted = {request_id for _, request_id in workload.aborts}
    for group in groups.values():
        for sequence in group.sequences:
            whole = text_alone(engine, group.request, sequence.index)
            said = sequence.output
            assert sequence.finish_reason is not FinishReason.ERROR, sequence.error
            assert said == whole[: len(said)], f"{sequence} says {said}, alone it says {whole}"
            if group.id in aborted or sequence.finish_reason is FinishReason.IGNORED:
                continue
            assert sequence.finish_reason is FinishReason.LENGTH, f"{sequence} has not ended"
            assert said == whole or sequence.error, f"{sequence} ended early, without a reason"
    check_nothing_leaked(engine)


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
