"""Workload specifications, and the requests that are drawn from them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from paged_core.errors import SettingsError
from paged_plugins.workloads.lengths import NAMED_LENGTHS
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.spec import parse_spec


def drawn(seed: int = 0, **values: Any) -> list[WorkloadRequest]:
    """Return all requests of a specification, those that follow others among them."""
    first = parse_spec(values, "test").build().draw(seed)
    return [request for each in first for request in each.family()]


class TestSpec:
    @pytest.mark.parametrize("name", names())
    def test_a_built_in_workload_reads_back_as_it_is_written(self, name: str) -> None:
        spec = workload_spec(name)
        assert parse_spec(spec.written(), "written") == spec
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert list(spec.build().draw(1)) == list(spec.build().draw(1))
        assert list(spec.build().draw(1)) != list(spec.build().draw(2))

    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            ({"lengths": "long"}, "lengths: there are sharegpt, alpaca"),
            ({"arrivals": {"poisson": {"rate": -1}}}, "arrivals.poisson.rate"),
            ({"arrivals": {"poisson": {"rate": 1}, "gamma": 1}}, "give one kind"),
            ({"mix": [{"weigth": 3}]}, "mix.0.weigth"),
            ({"requests": 2.5}, "requests"),
            ({"prefixes": {"tree": {"depth": 60, "branching": 60}}}, "more than 10,000 requests"),
            ({"lengths": {"prompt": {"uniform": [9, 1]}, "output": 1}}, "exchange them"),
            ({"trace": "requests.jsonl", "lengths": "alpaca"}, "leave `lengths` out"),
            ([], "is not a workload"),
        ],
    )
    def test_mistakes_are_named(self, values: Mapping[str, Any], problem: str) -> None:
        with pytest.raises(SettingsError) as raised:
            parse_spec(values, "study.yaml")
        assert problem in str(raised.value)
        assert str(raised.value).startswith("study.yaml is not a workload")
        assert "\n" not in str(raised.value)


class TestLengths:
    @pytest.mark.parametrize(
        ("name", "prompt", "output"), [("sharegpt", 161.31, 337.99), ("alpaca", 19.31, 58.45)]
    )
    def test_named_lengths_have_the_published_means(
        self, name: str, prompt: float, output: float
    ) -> None:
        shares = [(place + 0.5) / 5000 for place in range(5000)]
        lengths = NAMED_LENGTHS[name]
        assert sum(map(lengths.prompt.whole, shares)) / 5000 == pytest.approx(prompt, rel=2e-3)
        assert sum(map(lengths.output.whole, shares)) / 5000 == pytest.approx(output, rel=2e-3)
