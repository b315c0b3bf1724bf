"""Length predictors: what they learn and know, and the orders that ask them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log
from statistics import fmean, pstdev

import pytest

from paged_core.cli import main
from paged_core.engine.contexts import OrderContext, SlotContext, VictimContext
from paged_core.errors import SettingsError
from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.registry import Registry
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, Status
from paged_core.settings.schema import settings_class
from paged_policies.length_predictors.history import HistoryPredictor, HistorySettings
from paged_policies.length_predictors.oracle import OraclePredictor, OracleSettings
from paged_testing.engines import build_memory_engine, serve
from paged_testing.policy_subjects import empty_cache, waiting_groups
from paged_testing.workloads import Workload, simple_request

REGISTRY = Registry.discover()
CONTEXT = SlotContext(settings=settings_class(REGISTRY)(executor="memory"))


def asked(name: str, prompt: Iterable[int], tenant: str, max_tokens: int = 50) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(id=name, prompt=tuple(prompt), sampling=sampling, tenant=tenant)


def learned(predictor: HistoryPredictor, request: Request, *lengths: int) -> None:
    for length in lengths:
        (group,) = waiting_groups([request])
        group.live[0].tokens += [1] * length
        group.live[0].finish_reason = FinishReason.STOP
        predictor.on_request(group, "finished")


class TestHistory:
    def test_the_narrowest_mean_that_enough_answers_have(self) -> None:
        predictor = HistoryPredictor(HistorySettings(prefix_tokens=2, min_answers=2), CONTEXT)
        short, like = asked("a", [1, 2, 3], "t"), asked("b", [1, 2, 9, 9], "t")
        learned(predictor, short, 4)
        assert predictor.expect(like) is None
        learned(predictor, short, 8)
        learned(predictor, asked("c", [5, 5], "t"), 30)
        assert predictor.expect(like) == ExpectedLength(6, 2)
        assert predictor.expect(asked("d", [5, 5], "t")) == predictor.expect(asked("e", [7], "t"))
        of_all = predictor.expect(asked("f", [1, 2], "other"))
        assert of_all is not None
        assert of_all.tokens == pytest.approx(14)

    def test_answers_that_were_cut_off_count_for_nothing(self) -> None:
        predictor = HistoryPredictor(HistorySettings(min_answers=1), CONTEXT)
        (group,) = waiting_groups([asked("a", [1], "t")])
        group.live[0].finish_reason = FinishReason.ABORT
        predictor.on_request(group, "finished")
        assert predictor.expect(group.request) is None

    def test_the_oldest_entry_goes_first_and_the_mean_moves(self) -> None:
        options = HistorySettings(prefix_tokens=1, min_answers=1, max_entries=4, window=1)
        predictor = HistoryPredictor(options, CONTEXT)
        first, second = asked("a", [1], "t"), asked("b", [2], "t")
        for request, length in ((first, 10), (second, 20), (asked("c", [3], "t"), 30)):
            learned(predictor, request, length)
        assert predictor.expect(second) == ExpectedLength(20)
        assert predictor.expect(first) == ExpectedLength(30)  # the tenant's last


class TestOracle:
    def test_the_error_is_that_of_the_logarithm(self) -> None:
        predictor = OraclePredictor(OracleSettings(error=0.5), CONTEXT)
        found = [predictor.expect(asked(f"{n}", [1], "t", 100)) for n in range(400)]
        errors = [log(each.tokens / 100) for each in found if each is not None]
        assert abs(fmean(errors)) < 0.1
        assert pstdev(errors) == pytest.approx(0.5, abs=0.05)

    def test_requests_that_may_end_early_are_not_known(self) -> None:
        predictor = OraclePredictor(OracleSettings(), CONTEXT)
        assert predictor.expect(simple_request("a", 3, 10)) is None

    def test_with_a_model_it_is_refused_by_name(self) -> None:
        settings = settings_class(REGISTRY)(executor="local")
        with pytest.raises(SettingsError, match=r"'oracle' knows .* executor 'local' runs a model"):
            OraclePredictor(OracleSettings(), SlotContext(settings=settings))


class Fixed(LengthPredictor):
    """Expects a length of each request, whatever ``max_tokens`` says."""

    def __init__(self, **lengths: int) -> None:
        self._lengths = lengths

    def expect(self, request: Request, /) -> ExpectedLength | None:
        return ExpectedLength(self._lengths[request.id])


@pytest.mark.parametrize(
    ("name", "short", "long"), [("sjf", "a", "b"), ("hrrn", "a", "b"), ("least_laxity", "b", "a")]
)
def test_orders_go_by_what_is_expected(name: str, short: str, long: str) -> None:
    component = REGISTRY.get("queue_order", name)

    def first(lengths: LengthPredictor | None, groups: list[SequenceGroup]) -> str:
        context = OrderContext(kv_cache=empty_cache(REGISTRY), length_predictor=lengths)
        order: QueueOrder = component.load()(component.settings(), context)
        return min(groups, key=lambda group: order.key(group, 5.0)).id

    requests = [replace(simple_request(n, 4, m), deadline=90.0) for n, m in (("a", 9), ("b", 30))]
    groups = waiting_groups(requests)
    assert first(None, groups) == short
    assert first(Fixed(a=20, b=5), groups) == long
    groups[1].live[0].tokens += [1] * 25  # more than was expected: it is about to end
    groups[1].live[0].num_computed, groups[1].status = 28, Status.RUNNING
    assert first(Fixed(a=4, b=5), groups) == long


def test_a_victim_goes_by_what_is_left_of_what_is_expected() -> None:
    component = REGISTRY.get("victim", "most_remaining")
    groups = waiting_groups([simple_request(name, 4, most) for name, most in (("a", 9), ("b", 30))])

    def chosen(lengths: LengthPredictor | None) -> str:
        context = VictimContext(kv_cache=empty_cache(REGISTRY), length_predictor=lengths)
        return component.load()(component.settings(), context).choose(groups, 0.0).id

    assert chosen(None) == "b"
    assert chosen(Fixed(a=20, b=10)) == "a"
    groups[0].live[0].tokens += [1] * 15  # 5 are left, or 1 if 10 were expected
    assert chosen(Fixed(a=20, b=10)) == "b"
    assert chosen(Fixed(a=10, b=1)) == "b"


def test_an_engine_tells_its_predictor_what_ended() -> None:
    predictor = {"name": "history", "min_answers": 1, "prefix_tokens": 1}
    scheduler = {"name": "token_budget", "max_num_seqs": 1}
    engine = build_memory_engine(
        length_predictor=predictor, queue_order="sjf", scheduler=scheduler, num_blocks=32
    )
    prompts = {"write": (1, 2), "ask": (2, 3)}

    def batch(number: int, **lengths: int) -> Workload:
        named = {f"{kind} {number}": (prompts[kind], each) for kind, each in lengths.items()}
        return Workload(tuple((0, simple_request(name, *each)) for name, each in named.items()))

    serve(engine, batch(0, write=20, ask=3))
    groups = serve(engine, batch(1, write=30, ask=30))
    assert groups["ask 1"].finished_at < groups["write 1"].admitted_at


def test_a_component_may_be_called_none(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--length-predictor", "none", "--reasoning-parser", "none", "--router", "none"]
    assert main(["config", "--json", *options], {}) == 0
    assert '"router": null' in capsys.readouterr().out
