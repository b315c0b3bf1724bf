"""The conformance kit varies options, and says which branches of a component nothing reached."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_policies.victims.newest import NewestVictim
from paged_testing import VictimConformance, component_options
from paged_testing.branches import Branches, UnreachedBranch
from paged_testing.options import other_options
from paged_testing.workloads import FOR_EVERY_POLICY
from unit.faulty_settings import registry_of


class Shade(StrEnum):
    LIGHT = "light"
    DARK = "dark"


class ManySettings(ComponentSettings):
    name: Literal["faulty"] = "faulty"
    chunk: PositiveInt = Field(default=256, description="tokens")
    share: float = Field(default=0.5, ge=0, le=1, description="of them")
    delay: NonNegativeFloat | None = Field(default=None, description="seconds")
    is_fast: bool = Field(default=True, description="or slow")
    shade: Shade = Field(default=Shade.DARK, description="of grey")
    mode: Literal["one", "two", "three"] = Field(default="one", description="way")
    path: Path | None = Field(default=None, description="of a file; it is not varied")

    @model_validator(mode="after")
    def _agrees(self) -> ManySettings:
        if self.mode == "two" and self.shade is Shade.DARK:
            raise ValueError("two shades are light")
        return self


class OddVictim(NewestVictim):
    """Wrong with a small chunk; one branch is for more candidates than any case has."""

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self._chunk = getattr(options, "chunk", 256)

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        if len(candidates) > 500:
            return candidates[250]
        if len(candidates) > 1 and self._chunk < 3:
            raise LookupError("a chunk of one or two")
        return super().choose(candidates, now)


class Kit(VictimConformance):
    component: Any = "faulty"
    max_examples = 2

    def make_registry(self) -> Registry:
        return registry_of("victim", OddVictim, ManySettings)


def test_small_and_large_options_and_all_choices_are_tried() -> None:
    tables = list(other_options(ManySettings, {"is_fast": False}))
    assert {table["chunk"] for table in tables} >= {1, 256, 513}
    assert {table["share"] for table in tables} >= {0, 0.5, 1}
    assert {table["delay"] for table in tables} >= {None, 0}
    assert {table["mode"] for table in tables} == {"one", "two", "three"}
    assert not any(table["is_fast"] for table in tables), "it is fixed"
    assert not any("path" in table for table in tables)
    assert all(ManySettings(**table) for table in tables), "what contradicts itself is left out"


def test_a_number_is_large_indeed_where_its_bounds_permit() -> None:
    class Bounded(ComponentSettings):
        name: Literal["faulty"] = "faulty"
        max_times: PositiveInt = 2
        weight: float = 0.5
        ahead: int = Field(default=1, ge=0, le=900)
        num_bytes: int = 1 << 30

    table = max(other_options(Bounded, {}), key=lambda table: table["max_times"])
    assert table["max_times"] == 2000
    assert table["weight"] == 1000
    assert table["ahead"] == 900, "its bound"
    assert table["num_bytes"] == (1 << 31) + 1, "no memory for a thousand times as much"


def test_drawn_options_are_within_their_bounds() -> None:
    found = set()

    def draws(table: dict[str, Any]) -> None:
        found.add(table["chunk"])
        assert table["chunk"] >= 1
        assert 0 <= table["share"] <= 1

    class Many(Kit):
        max_examples = 60

    Many().check(draws, component_options(ManySettings, {"mode": "one"}))
    assert {1, 2, 256} <= found


def test_what_fails_with_other_options_says_with_which() -> None:
    kit = Kit()
    for situation in FOR_EVERY_POLICY.values():
        kit.test_serves_when(situation)
    with pytest.raises(AssertionError, match="a chunk of one or two") as raised:
        kit.test_holds_with_other_options()
    (note,) = raised.value.__notes__
    assert note.startswith("with the options {'name': 'faulty', 'chunk': 1,")
    assert "these were tried:\n{'name': 'faulty', 'chunk': 1," in note
    assert "'chunk': 513" in note


class TestBranches:
    def test_the_outermost_that_nothing_reached_are_named(self) -> None:
        branches = Branches(OddVictim)
        try:
            victim = OddVictim(ManySettings(), None)
            assert [what for _, what in branches.unreached()][-1] == "calls OddVictim.choose()"
            victim.choose([None], 0.0)  # type: ignore[list-item]
            assert [what for _, what in branches.unreached()] == [
                "reaches 'return candidates[250]' in OddVictim.choose()",
                "reaches 'raise LookupError(\"a chunk of one or two\")' in OddVictim.choose()",
            ]
        finally:
            branches.close()

    def test_the_code_is_as_before_afterwards(self) -> None:
        before = OddVictim.choose.__code__
        branches = Branches(OddVictim)
        assert OddVictim.choose.__code__ is not before
        assert OddVictim.choose.__code__.co_firstlineno == before.co_firstlineno
        branches.close()
        assert OddVictim.choose.__code__ is before

    def test_what_has_no_source_has_none(self) -> None:
        scope: dict[str, Any] = {"__name__": "nowhere"}
        exec("class Made:\n    def choose(self): return 1", scope)
        assert not list(Branches(scope["Made"]).unreached())

    def test_a_class_warns_of_them_once_all_of_its_tests_have_run(self) -> None:
        class Sure(Kit):
            component: ClassVar[Any] = {"name": "faulty", "chunk": 9}

        kit = Sure()
        with kit.watched():
            kit.check_choices([], [], 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kit.test_reaches_every_branch()
        Sure._ran.update(name for name in dir(Sure) if name.startswith("test_"))
        with pytest.warns(UnreachedBranch) as caught:
            kit.test_reaches_every_branch()
        assert Path(caught[0].filename) == Path(__file__)
        message = "no case of Sure calls OddVictim.choose()"
        assert message in [str(each.message) for each in caught]
