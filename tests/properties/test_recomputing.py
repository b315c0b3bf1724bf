"""Without the KV cache an engine decides the same and says the same; it only computes more."""

from __future__ import annotations

from typing import Any

from paged_core.ids import SeqId
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.step import StepInput
from paged_testing.engines import build_memory_engine, engine_settings, serve
from paged_testing.served import check_served
from paged_testing.workloads import Workload, workloads
from properties.profile import Length, lengths
from unit.engines import REGISTRY


class Watch(Observer):
    """Keeps what was decided, and checks what the executor is told."""

    def __init__(self) -> None:
        self.decisions: list[Any] = []
        self.num_tokens = 0

    def on_step(self, step: StepRecord, /) -> None:
        queues = step.queues.running, step.queues.waiting, step.queues.swapped
        moved = step.preempted, step.swapped_out, step.swapped_in, step.finished
        names = [[group.id for group in queue] for queue in queues]
        self.decisions.append((step.scheduled, step.cached, *moved, names, step.free_blocks))

    def install(self, engine: Any, *, from_the_start: bool) -> None:
        submit, computed = engine.executor.submit, dict[SeqId, int]()

        def watched(step: StepInput) -> Any:
            for new in step.added:
                computed[new.id] = new.num_computed
            for seq_id, count in zip(step.sequence_ids, step.num_tokens, strict=True):
                assert not from_the_start or computed[seq_id] == 0
                computed[seq_id] += count
                self.num_tokens += count
            return submit(step)

        engine.executor.submit = watched


def decide(values: dict[str, Any], workload: Workload, *, kv_cache: bool) -> Watch:
    watch = Watch()
    engine = build_memory_engine(REGISTRY, observers=[watch], kv_cache=kv_cache, **values)
    watch.install(engine, from_the_start=not kv_cache)
    check_served(engine, workload, serve(engine, workload))
    return watch


def check(values: dict[str, Any], workload: Workload) -> None:
    cached = decide(values, workload, kv_cache=True)
    recomputed = decide(values, workload, kv_cache=False)
    assert recomputed.decisions == cached.decisions
    assert recomputed.num_tokens >= cached.num_tokens


@lengths(15, 5000)
def test_decisions_and_text_are_the_same(length: Length) -> None:
    most = (12, 3) if length.is_long else (7, 2)
    length.check(check, engine_settings(REGISTRY), workloads(*most))
