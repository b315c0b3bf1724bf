"""Engines and requests for tests that drive an engine step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paged_core.engine.engine import Engine
from paged_core.interfaces.observer import Observer
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.step import NewSequence
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked

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
