"""The conformance class of cost models."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import pairwise, product
from math import inf
from random import Random
from typing import Any, ClassVar

from paged_core.settings.schema import settings_class
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_testing.component import Repeats

_PARTS = [field.name for field in fields(StepWork)]
_SIZES = sorted(
    {*range(520), *(n * 2**k + d for n in (3, 4, 5, 125) for k in range(14) for d in (0, 1))}
)
"""Sizes up to that of large batches, and of more those at which kernels may end, and one more."""
_A_STEP = StepWork(
    prefill_tokens=99,
    prefill_sequences=1,
    prefill_pairs=4950,
    decode_sequences=60,
    decode_context=60_000,
    sampled_rows=61,
)


def step_works() -> Iterator[StepWork]:
    """The work of fifty steps; all parts are drawn on their own, small ones and large ones.

    The last ones are of many sequences of a million tokens: 100 that decode, 100 prompts.
    """
    drawn = Random(0)
    for _ in range(50):
        work = {name: drawn.randint(0, drawn.choice([0, 8, 10**6])) for name in _PARTS}
        work["prefill_pairs"] *= drawn.choice([1, 1000])
        yield StepWork(**work)
    for tokens in (10**6, 10**8):
        yield StepWork(prefill_tokens=tokens, prefill_pairs=tokens * 10**6 // 2, sampled_rows=1)
        yield StepWork(decode_sequences=100, decode_context=tokens, sampled_rows=100)


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
        return {"written steps": [models[len(models) // 2].seconds(work) for work in step_works()]}

    def uses(self) -> Callable[[int], object]:
        """Times of some steps, of works that differ; of computed tokens as many as a step has."""
        model = self.make_cost_model()

        def use(number: int) -> None:
            for tokens in range(8 * number, 8 * number + 8):
                model.seconds(StepWork(prefill_tokens=tokens % 32, decode_context=8 * tokens))

        return use

    def test_a_step_without_work_takes_time(self) -> None:
        """Or else a simulation could run for ever at one time."""
        assert self.make_cost_model().seconds(StepWork()) > 0

    def test_times_are_positive_finite_and_repeatable(self) -> None:
        one, other = self.make_cost_model(), self.make_cost_model()

        for work in step_works():
            given = replace(work)
            seconds = one.seconds(work)
            assert work == given, "it changed the work"
            assert isinstance(seconds, float), f"seconds() returned {seconds!r}, which is no float"
            assert 0 < seconds < inf, f"{work} takes {seconds} s"
            beyond = one.is_extrapolated(work)
            assert type(beyond) is bool, f"is_extrapolated() returned {beyond!r}, which is no bool"
            assert one.seconds(work) == other.seconds(work) == seconds

    def test_more_work_never_takes_less_time(self) -> None:
        """Also where a kernel or a graph ends, and another begins."""
        model = self.make_cost_model()
        for work, part, more in product(step_works(), _PARTS, (1, 100, 10**5)):
            larger = replace(work, **{part: getattr(work, part) + more})
            least = model.seconds(work) * (1 - 1e-12)  # sums are rounded
            assert model.seconds(larger) >= least, f"{more} more of {part} took less time"
        for work, part in product((StepWork(), _A_STEP), _PARTS):
            works = [replace(work, **{part: size}) for size in _SIZES]
            seconds = [model.seconds(each) for each in works]
            for larger, (least, found) in zip(works[1:], pairwise(seconds), strict=True):
                assert found >= least * (1 - 1e-12), (
                    f"{larger} takes {found} s, and {least} s with less of {part}"
                )

    def test_a_longer_prompt_takes_longer_in_the_end(self) -> None:
        model = self.make_cost_model()
        short, long = (
            model.seconds(StepWork(prefill_tokens=n, prefill_pairs=n * n // 2, sampled_rows=1))
            for n in (16, 2**20)
        )
        assert long > short

    def check_written(self) -> None:
        self.test_a_step_without_work_takes_time()
        self.test_can_be_pickled()

    def test_can_be_pickled(self) -> None:
        """Runs are made in other processes."""
        model = self.make_cost_model()
        copy = pickle.loads(pickle.dumps(model))
        work = StepWork(prefill_tokens=100, prefill_pairs=5050, decode_sequences=8, sampled_rows=9)
        assert copy.seconds(work) == model.seconds(work)

    def test_larger_blocks_are_not_more(self) -> None:
        """If it knows how many there are."""
        counts = [self.make_cost_model(block_size=size).num_blocks(size) for size in (8, 16, 32)]
        if counts[0] is None:
            assert counts == [None] * 3
        else:
            for count in counts:
                assert type(count) is int, f"num_blocks() returned {count!r}, which is no int"
                assert count >= 1
            assert counts == sorted(counts, key=lambda count: -(count or 0))

    def test_the_longest_sequence_has_a_token(self) -> None:
        longest = self.make_cost_model().max_model_len
        assert longest is None or type(longest) is int, f"max_model_len is {longest!r}, no int"
        assert longest is None or longest >= 1
