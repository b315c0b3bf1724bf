"""The conformance class of cost models."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise, permutations, product
from math import inf
from random import Random
from typing import Any, ClassVar

from pydantic import ValidationError

from paged_core.errors import SettingsError
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_testing.options import each_option
from paged_testing.repeats import Repeats
from paged_testing.use import instructions

_PARTS = [field.name for field in fields(StepWork)]
_UNBOUNDED = ("prefill_context", "prefill_pairs", "decode_context")
_SIZES = sorted(
    {*range(520), *(n * 2**k + d for n in (3, 4, 5, 125) for k in range(14) for d in (0, 1))}
    | {10**k + d for k in range(3, 8) for d in (-100, 0, 1)}
)
"""Sizes up to that of large batches, and of more those at which kernels or ranges may end, and one
more."""
_EDGES = sorted({2**k + d for k in (0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12) for d in (-1, 0, 1)} | {300})
"""Sizes of one part, beside which each other part grows from none."""
_A_STEP = StepWork(
    prefill_tokens=99,
    prefill_sequences=1,
    prefill_pairs=4950,
    decode_sequences=60,
    decode_context=60_000,
    sampled_rows=61,
)


def _told(model: CostModel, work: StepWork) -> tuple[float, bool]:
    """Return what a cost model says of a step."""
    beyond = model.is_extrapolated(work)
    return model.seconds(work), beyond


def step_works() -> Iterator[StepWork]:
    """The work of fifty steps, and of none; all parts are drawn on their own, small and large.

    The last ones are of many sequences of a million tokens: 100 that decode, 100 prompts.
    """
    drawn = Random(0)
    yield StepWork()
    for _ in range(50):
        work = {name: drawn.randint(0, drawn.choice([0, 8, 10**6])) for name in _PARTS}
        work["prefill_pairs"] *= drawn.choice([1, 1000])
        yield StepWork(**work)
    for tokens in (10**6, 10**8):
        yield StepWork(prefill_tokens=tokens, prefill_pairs=tokens * 10**6 // 2, sampled_rows=1)
        yield StepWork(decode_sequences=100, decode_context=tokens, sampled_rows=100)


def _check_rises(model: CostModel, works: Sequence[StepWork], part: str) -> None:
    """Check that no work takes less time than the one before it, which has less of a part."""
    seconds = [model.seconds(each) for each in works]
    for work, (least, found) in zip(works[1:], pairwise(seconds), strict=True):
        assert found >= least * (1 - 1e-12), (  # sums are rounded
            f"{work} takes {found} s, and {least} s with less of {part}"
        )


class CostModelConformance(Repeats):
    """Subclass it for a cost model::

    class TestMyCost(CostModelConformance):
        component = {"name": "my_cost", "device": "some-device"}

    :attr:`settings` are those of the engine that it predicts the steps of.
    """

    slot: ClassVar[str] = "cost_model"

    def make_cost_model(self, **values: Any) -> CostModel:
        """The cost model under test; ``values`` are further settings."""
        made = settings_class(self.registry)
        settings = made(**{**self.settings, **values, "cost_model": self._table})
        model: CostModel = self.build(CostModelContext(settings=settings))
        return model

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Times of written steps, also beside others, made before and after."""
        other = beside and self.of(self.registry, self.slot, beside)
        models = [kit.make_cost_model() for kit in (other, self, other) if kit]
        for work in step_works() if beside else ():
            models[0].seconds(work)
            models[-1].seconds(work)
        model = models[len(models) // 2]
        grown = (replace(_A_STEP, prefill_tokens=2**power) for power in range(24))
        works: list[Any] = [_told(model, work) for work in (*step_works(), *grown)]
        with suppress(SettingsError):
            works.append((model.num_blocks(16), model.max_model_len))
        return {"written steps": works}

    def uses(self) -> Callable[[int], object]:
        """Times of some steps, of works that differ in all; of what a step computes, copies and
        swaps as much as one does."""
        model = self.make_cost_model()

        def use(number: int) -> None:
            for tokens in range(8 * number, 8 * number + 8):
                parts = dict.fromkeys(_PARTS, tokens % 32) | dict.fromkeys(_UNBOUNDED, 8 * tokens)
                work = StepWork(**{**parts, "after_idle": tokens % 2})
                model.seconds(work)
                model.is_extrapolated(work)

        return use

    def test_times_are_positive_and_finite(self) -> None:
        """Also without work, or a simulation could run for ever at one time."""
        model = self.make_cost_model()
        for work in step_works():
            given = replace(work)
            seconds, beyond = _told(model, work)
            assert work == given, "it changed the work"
            assert isinstance(seconds, float), f"seconds() returned {seconds!r}, which is no float"
            assert 0 < seconds < inf, f"{work} takes {seconds} s"
            assert type(beyond) is bool, f"is_extrapolated() returned {beyond!r}, which is no bool"

    def test_a_time_follows_from_the_work_alone(self) -> None:
        """The same works are asked for in another order."""
        varied = [
            replace(work, **{part: getattr(work, part) + more})
            for work, part, more in product((*step_works(), _A_STEP), _PARTS, (0, 1, 200))
        ]
        forwards, backwards = self.make_cost_model(), self.make_cost_model()
        first = [_told(forwards, work) for work in varied]
        again = [_told(backwards, work) for work in reversed(varied)]
        for work, one, other in zip(varied, first, reversed(again), strict=True):
            assert one == other, (
                f"{work} takes {one[0]} s (extrapolated: {one[1]}), and {other[0]} s ({other[1]}) "
                "where other work was asked for before it: equal work takes equal time, whatever "
                "the earlier calls were"
            )

    def test_large_steps_take_no_more_instructions(self) -> None:
        model = self.make_cost_model()
        small, large = (
            instructions(
                partial(_told, model, StepWork(**dict.fromkeys(_PARTS, size))), self.package
            )
            for size in (10**3, 10**6)
        )
        assert large <= 2 * small + 400, (
            f"a step of which all parts are 1,000 takes {small} instructions and items, {large} "
            "where they are 1,000,000: the work may not grow with them"
        )

    def test_more_work_never_takes_less_time(self) -> None:
        """Also where a kernel or a graph ends, and another begins."""
        model = self.make_cost_model()
        self.check_grows(model, (StepWork(), _A_STEP))
        for work, part, more in product(step_works(), _PARTS, (1, 100, 10**5)):
            larger = replace(work, **{part: getattr(work, part) + more})
            _check_rises(model, [work, larger], part)
        for work, part in product((StepWork(), _A_STEP), _PARTS):
            _check_rises(model, [replace(work, **{part: size}) for size in _SIZES], part)

    def check_grows(self, model: CostModel, works: Sequence[StepWork]) -> None:
        """Check that time grows with each part, beside each other part at its edges."""
        for work, (one, other), size in product(works, permutations(_PARTS, 2), _EDGES):
            beside = replace(work, **{one: size})
            _check_rises(model, [replace(beside, **{other: n}) for n in (0, 1, 2, 9)], other)

    def check_written(self) -> None:
        self.test_times_are_positive_and_finite()
        self.test_the_longest_sequence_has_a_token()
        self.check_grows(self.make_cost_model(), [StepWork()])
        self.test_can_be_pickled()

    def test_can_be_pickled(self) -> None:
        """Runs are made in other processes; also after others."""
        model = self.make_cost_model()
        for _ in range(2):
            copy = pickle.loads(pickle.dumps(model))
            for work in (_A_STEP, *step_works()):
                told, of_copy = _told(model, work), _told(copy, work)
                assert of_copy == told, (
                    f"{work} takes {told[0]} s (extrapolated: {told[1]}), and {of_copy[0]} s "
                    f"({of_copy[1]}) after pickling"
                )

    def test_blocks_of_any_size_have_as_many_tokens(self) -> None:
        """If it knows; also those of another size than that of the settings."""
        models = [(self.make_cost_model(block_size=size), size) for size in (8, 16, 32)]
        models += [(self.make_cost_model(block_size=16), size) for size in (1, 8, 16, 32, 64)]
        models += [(models[0][0], size) for size in (32, 8)]
        counts = [(size, self.blocks(model, size)) for model, size in models]
        known = [(size, count) for size, count in counts if count is not None]
        assert len(known) in (0, len(counts)), f"by size there are {counts} blocks: all, or none"
        tokens = [size * count for size, count in known]
        for size, count in known:
            apart = max(abs(size * count - each) for each in tokens)
            assert apart <= 64 + 0.1 * max(tokens), (
                f"{count} blocks of {size} tokens fit, by size {counts}: num_blocks(block_size) is "
                "about the same memory, in blocks of the size that it is asked for"
            )

    def test_blocks_are_one_or_more_where_a_model_does_not_fit(self) -> None:
        """With each option alone at its smallest and largest."""
        for table in each_option(type(self.options), self._table):
            kit = self.of(self.registry, self.slot, {**self.settings, self.slot: table})
            try:
                model = kit.make_cost_model()
            except (SettingsError, ValidationError):
                continue
            kit.blocks(model, 16)

    def blocks(self, model: CostModel, size: int) -> int | None:
        """Return how many blocks fit; ``None``: it does not know, or refuses the settings."""
        try:
            count = model.num_blocks(size)
        except SettingsError:
            return None
        assert count is None or type(count) is int, (
            f"num_blocks() returned {count!r}, which is no int"
        )
        assert count is None or count >= 1, (
            f"num_blocks({size}) returned {count} with {self._table}: 1 or more, None where it "
            "does not know, or a SettingsError that says what does not fit"
        )
        return count

    def test_the_longest_sequence_has_a_token(self) -> None:
        model = self.make_cost_model()
        longest = model.max_model_len
        _told(model, _A_STEP)
        assert model.max_model_len == longest, "max_model_len is another after a step"
        assert longest is None or type(longest) is int, f"max_model_len is {longest!r}, no int"
        assert longest is None or longest >= 1
