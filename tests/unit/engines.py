"""Engines and requests for tests that drive an engine step by step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paged_core.engine.engine import Engine
from paged_core.interfaces.observer import BlockEvent, CacheEvent, Observer, StepRecord
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.step import NewSequence
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.scenario import Scenario
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked

REGISTRY = Registry.discover()
"""All that is installed; to look for it takes its time."""
EOS = 7


def engine_with(
    capacity: dict[str, Any] | None = None,
    text: Sequence[int] | None = None,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> Engine:
    """An engine that generates ``text``, if given, for every request.

    ``capacity`` replaces fields of the capacity that its executor reports.
    """
    engine = build_memory_engine(observers=observers, **settings)
    engine.capacity = replace(engine.capacity, **(capacity or {}))
    if text is not None:

        def draw(sequence: NewSequence, tokens: Sequence[int], index: int) -> int:
            return text[(len(tokens) - sequence.num_prompt_tokens) % len(text)]

        engine.executor.sample = draw  # type: ignore[attr-defined]
    return engine


def request(name: str = "A", prompt: Sequence[int] = (1, 2, 3), **sampling: Any) -> Request:
    return Request(id=name, prompt=tuple(prompt), sampling=SamplingParams(**sampling))


def without_place(message: str | None) -> str:
    """An error's message without the places in the code of a test that it ends with."""
    return re.sub(r" \(at [^()]*\)$", "", message or "")


def finish(engine: Engine) -> None:
    for _ in range(200):
        if not engine.has_unfinished:
            return
        engine.step()
    raise AssertionError("unfinished")


def run(engine: Engine, *requests: Request) -> list[SequenceGroup]:
    groups = [engine.add(each) for each in requests]
    finish(engine)
    check_nothing_leaked(engine)
    return groups


def replayed(settings: dict[str, Any], *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The trace of a scenario that is worked out by hand."""
    values = {"name": "worked out by hand", "settings": settings, "requests": requests}
    return list(replay(Scenario.model_validate(values), REGISTRY))


class Recorder(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.requests: list[tuple[str, str]] = []
        self.blocks: list[BlockEvent] = []
        self.cached: list[CacheEvent] = []
        self.closed = False

    def on_step(self, step: StepRecord, /) -> None:
        self.steps.append(step)

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.requests.append((group.id, event))

    def on_block(self, event: BlockEvent, /) -> None:
        self.blocks.append(event)

    def on_cache(self, event: CacheEvent, /) -> None:
        self.cached.append(event)

    def close(self) -> None:
        self.closed = True


class ByPriority(QueueOrder):
    """The lowest number first; counts how often it is asked."""

    num_calls = 0

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        self.num_calls += 1
        return group.request.priority


class Turning(QueueOrder):
    """Turns round with time: even seconds favour low priorities, odd ones high priorities."""

    stable = False

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.request.priority * (-1) ** int(now)
