"""Components of which a test says what they do wrong, and when; engines of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paged_core.engine.engine import Engine
from paged_core.plugins.component import ComponentSettings
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_policies.allocators.hash_cached import HashCachedAllocator
from paged_testing import build_memory_engine
from paged_testing.served import check_nothing_leaked, check_said
from unit.engines import finish
from unit.faulty_settings import (
    FaultyHashCachedSettings,
    FaultySettings,
    registry_of,
)


def ask(name: str, length: int = 12, **fields: Any) -> Request:
    prompt = tuple(range(100, 100 + length))
    return Request(id=name, prompt=prompt, sampling=SamplingParams(max_tokens=6), **fields)


def engine_of(slot: str, made: type, **values: Any) -> Engine:
    """An engine with the class as its component of ``slot``, named ``faulty``."""
    settings: type[ComponentSettings] = FaultySettings
    if issubclass(made, HashCachedAllocator):
        settings = FaultyHashCachedSettings
    return build_memory_engine(registry_of(slot, made, settings), **{slot: "faulty"}, **values)


def serves_as_ever(engine: Engine) -> None:
    """Ask for the usual prompts: they have their own text, and no block leaks."""
    groups = [engine.add(ask(f"again {length}", length)) for length in (12, 9)]
    finish(engine)
    for group in groups:
        assert group.sequences[0].finish_reason is FinishReason.LENGTH, group.sequences[0].error
        check_said(engine, group)
    check_nothing_leaked(engine)


class Switch:
    """What a component of a test does wrong, once."""

    wrong: Any = None

    @classmethod
    def take(cls) -> Any:
        wrong, cls.wrong = cls.wrong, None
        return wrong


@pytest.fixture
def switched_off() -> Iterator[None]:
    Switch.wrong = None
    yield
    Switch.wrong = None
