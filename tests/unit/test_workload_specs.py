"""Workload specifications, and the requests that are drawn from them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from paged_core.errors import SettingsError
from paged_plugins.workloads.amount import Amount
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.request import FIRST_OWN_ID, WorkloadRequest, token_ids
from paged_plugins.workloads.request_class import NAMED_LENGTHS
from paged_plugins.workloads.spec import parse_spec

MANY = {"uniform": [1, 10**7]}


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
        is_drawn = name != "mooncake"  # which is a trace
        assert (list(spec.build().draw(1)) != list(spec.build().draw(2))) == is_drawn

    def test_lengths_are_written_though_they_are_those_by_default(self) -> None:
        sharegpt = NAMED_LENGTHS["sharegpt"].model_dump(mode="json", exclude_defaults=True)
        assert parse_spec({}, "").written() == {"name": "workload", "lengths": sharegpt}
        mixed = parse_spec({"mix": [{"tenants": "a"}, {"lengths": "alpaca"}]}, "")
        assert mixed.written()["mix"][0]["lengths"] == sharegpt
        assert "lengths" not in mixed.written()
        traced = parse_spec({"trace": "requests.jsonl"}, "")
        for spec in (mixed, traced):
            assert parse_spec(spec.written(), "written") == spec

    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            ({"lengths": "long"}, "lengths: there are sharegpt, alpaca"),
            ({"arrivals": {"poisson": {"rate": -1}}}, "arrivals.poisson.rate"),
            ({"arrivals": {"poisson": {"rate": 1e-308}}}, "arrivals.poisson.rate"),
            ({"arrivals": {"interval": 1e9}}, "arrivals.interval: Input"),
            ({"arrivals": {"poisson": {"rate": 1}, "gamma": 1}}, "give one kind"),
            ({"mix": [{"weigth": 3}]}, "mix.0.weigth"),
            ({"mix": []}, "mix: name one class at least, or leave it out"),
            ({"arrivals": {"interval": "soon"}}, "arrivals.interval: give a number, not 'soon'"),
            (
                {"prefixes": {"system": [{"tokens": 1, "count": "x"}]}},
                "system.0.count: give a whole",
            ),
            ({"arrivals": {"poisson": {}}}, "arrivals.poisson.rate: give it"),
            ({"arrivals": "poisson"}, "arrivals.poisson.rate: give it"),
            (
                {"lengths": {"prompt": "1e12", "output": 1}},
                "'1e12', which is a text in YAML; write",
            ),
            ({"requests": 10**9}, "requests: Input should be less than or equal to 10000000"),
            ({"requests": 2.5}, "requests: give a whole number, not 2.5"),
            (
                {"arrivals": {"poisson": {"rate:4": None}}},
                "rate:4: no such key; write a space after",
            ),
            ({"n": 0}, "n: give a whole number of at least 1, not 0"),
            ({"lengths": {"prompt": 5.7, "output": 1}}, "at least 1, not 5.7"),
            ({"lengths": {"prompt": 5, "output": {"uniform": [0, 9]}}}, "at least 1, not 0"),
            ({"prefixes": {"conversation": {"turns": 1.5}}}, "at least 1, not 1.5"),
            ({"prefixes": {"tree": {"depth": 60, "branching": 60}}}, "more than 10,000 requests"),
            ({"lengths": {"prompt": {"uniform": [9, 1]}, "output": 1}}, "exchange them"),
            ({"trace": "requests.jsonl", "lengths": "alpaca"}, "leave `lengths` out"),
            (
                {"trace": {"file": "a.csv", "scale": 0.5}, "arrivals": {"poisson": {"rate": 1}}},
                "not used; leave its `scale` out",
            ),
            ({"lengths": {"trace": {"file": "a.csv", "scale": 2}}}, "leave its `scale` out"),
            (
                {"mix": [{"prefixes": {"system": {"tokens": 1, "count": 60_000}}}] * 2},
                "more than 100,000 shared texts",
            ),
            (
                {"axes": {}, "workloads": ["chat"]},
                "as a study does, which `paged-core lab run` runs",
            ),
            ([], "give a mapping with the keys of a workload"),
            (None, "give a mapping with the keys of a workload"),
        ],
    )
    def test_mistakes_are_named(self, values: Mapping[str, Any], problem: str) -> None:
        with pytest.raises(SettingsError) as raised:
            parse_spec(values, "study.yaml")
        assert problem in str(raised.value)
        assert str(raised.value).startswith("study.yaml is not a workload")
        assert "\n" not in str(raised.value)

    def test_the_files_that_it_reads_are_known(self) -> None:
        mix = [{"lengths": {"trace": "a.csv"}}, {"arrivals": {"replay": "b.csv"}}, {}]
        spec = parse_spec({"lengths": {"trace": "c.csv"}, "mix": mix}, "test")
        assert {str(each.file) for each in spec.traces()} == {"a.csv", "b.csv", "c.csv"}
        spec = parse_spec({"trace": "d.csv", "arrivals": {"replay": "b.csv"}}, "test")
        assert {str(each.file) for each in spec.traces()} == {"d.csv", "b.csv"}
        assert not list(workload_spec("chat").traces())


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

    def test_those_of_a_trace_are_drawn_in_pairs(self, tmp_path: Path) -> None:
        trace = tmp_path / "requests.jsonl"
        pairs = [(5, 50), (6, 60), (7, 70)]
        lines = [f'{{"id": "{a}", "prompt": {a}, "output": {b}}}' for a, b in pairs]
        trace.write_text("\n".join(lines))
        requests = drawn(requests=300, lengths={"trace": str(trace)})
        counts = Counter((each.num_new, each.output) for each in requests)
        assert set(counts) == set(pairs)
        assert min(counts.values()) > 60
        trace.write_text('{"id": "a", "prompt": 5, "output": 0}')
        with pytest.raises(SettingsError, match="line 1: output"):
            drawn(lengths={"trace": {"file": str(trace), "format": "requests"}})
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens")
        with pytest.raises(SettingsError, match="there is no request in it"):
            drawn(lengths={"trace": str(trace)})


class TestAmounts:
    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            (7, 7.0),
            ({"fixed": 7}, 7.0),
            ({"uniform": [10, 20]}, 15.0),
            ({"exponential": 12.5}, 12.5),
            ({"zipf": {"exponent": 1.0, "max": 3}}, (1 + 2 / 2 + 3 / 3) / (1 + 1 / 2 + 1 / 3)),
            ({"lognormal": {"median": 20, "sigma": 0.5}}, 20 * 2.718281828 ** (0.5**2 / 2)),
        ],
    )
    def test_the_mean(self, written: Any, expected: float) -> None:
        amount = TypeAdapter(Amount).validate_python(written)
        shares = [(place + 0.5) / 20_000 for place in range(20_000)]
        assert mean(map(amount.quantile, shares)) == pytest.approx(expected, rel=2e-3)

    @given(
        written=st.sampled_from(
            [
                {"uniform": [3, 9]},
                {"zipf": {"exponent": 1.3, "max": 500}},
                {"lognormal": {"median": 50, "sigma": 1.5, "min": 10, "max": 90}},
                {"lognormal": {"median": 5, "sigma": 3, "max": 7}},
                {"exponential": 4},
            ]
        ),
        shares=st.lists(st.floats(0, 1, exclude_max=True), min_size=2),
    )
    @settings(max_examples=50)
    def test_a_larger_share_is_no_smaller_amount(self, written: Any, shares: list[float]) -> None:
        amount = TypeAdapter(Amount).validate_python(written)
        shares.sort()
        wholes, quantiles = ([*map(each, shares)] for each in (amount.whole, amount.quantile))
        assert wholes == sorted(wholes)
        assert quantiles == sorted(quantiles)
        ((_, options),) = written.items()
        if isinstance(options, dict):
            assert options.get("min", 1) <= quantiles[0]
            assert quantiles[-1] <= options["max"]

    def test_both_ends_of_uniform_whole_numbers_are_drawn_alike(self) -> None:
        amount = TypeAdapter(Amount).validate_python({"uniform": [2, 4]})
        counts = Counter(amount.whole((place + 0.5) / 300) for place in range(300))
        assert counts == {2: 100, 3: 100, 4: 100}


def gaps(arrivals: Any, count: int = 4000, seed: int = 0) -> list[float]:
    """Return the times between arrivals."""
    short = {"prompt": 1, "output": 1}
    times = [each.at for each in drawn(seed, requests=count, arrivals=arrivals, lengths=short)]
    assert times == sorted(times)
    return [later - earlier for earlier, later in pairwise(times)]


class TestArrivals:
    def test_at_once_and_at_intervals(self) -> None:
        assert set(gaps("at_once", 10)) == {0.0}
        assert gaps({"interval": 0.5}, 10) == [0.5] * 9

    @pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
    def test_gamma(self, burstiness: float) -> None:
        found = gaps({"gamma": {"rate": 5, "burstiness": burstiness}})
        assert mean(found) == pytest.approx(0.2, rel=0.1)
        # the coefficient of variation of a gamma distribution of this shape
        assert stdev(found) / mean(found) == pytest.approx(burstiness**-0.5, rel=0.1)

    def test_poisson(self) -> None:
        found = gaps({"poisson": {"rate": 5}})
        assert mean(found) == pytest.approx(0.2, rel=0.05)
        assert stdev(found) / mean(found) == pytest.approx(1, rel=0.05)
        assert gaps({"poisson": 5}) == found

    def test_replay_of_a_trace(self, tmp_path: Path) -> None:
        trace = tmp_path / "azure.csv"
        rows = [f"2023-11-16 18:17:0{second}.5,7,7" for second in (1, 2, 5)]
        trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
        arrivals = {"replay": {"trace": {"file": str(trace), "scale": 2}}}
        assert gaps(arrivals, 100) == [2.0, 6.0]  # the workload ends with the trace
        assert gaps({"replay": str(trace)}) == [1.0, 3.0]

    def test_a_trace_may_come_by_another_process(self, tmp_path: Path) -> None:
        trace = tmp_path / "requests.jsonl"
        trace.write_text('{"id": "a", "prompt": 5, "output": 1}')
        first = drawn(trace=str(trace), arrivals={"poisson": {"rate": 1}})
        assert first != drawn(1, trace=str(trace), arrivals={"poisson": {"rate": 1}})
        assert first[0].at > 0


def beginnings(requests: Iterable[WorkloadRequest]) -> Counter[range]:
    """Count what prompts begin with."""
    return Counter(each.prompt[0] for each in requests)


class TestPrefixes:
    def test_system_prompts_have_weights_and_popularity(self) -> None:
        system = [{"tokens": 100, "weight": 3}, {"tokens": 50, "count": 2, "exponent": 1}]
        counts = beginnings(drawn(requests=4000, prefixes={"system": system}))
        assert [len(each) for each in sorted(counts, key=lambda each: each.start)] == [100, 50, 50]
        shares = [count / 4000 for _, count in counts.most_common()]
        assert shares == pytest.approx([3 / 4, 1 / 4 * 2 / 3, 1 / 4 * 1 / 3], abs=0.03)

    def test_few_shot_takes_different_examples(self) -> None:
        few_shot = {"examples": 3, "pool": 4, "tokens": {"uniform": [10, 20]}}
        requests = drawn(requests=500, prefixes={"system": 5, "few_shot": few_shot})
        examples = [each.prompt[1:4] for each in requests]
        assert all(len(set(each)) == 3 for each in examples)
        assert len(set(examples)) == 4 * 3 * 2
        assert all(len(each.prompt) == 5 for each in requests)

    def test_conversations_continue_until_they_are_too_long(self) -> None:
        conversation = {"turns": 5, "think": {"uniform": [1, 2]}}
        values = {"prefixes": {"system": 10, "conversation": conversation}, "max_tokens": 100}
        lengths = {"prompt": 10, "output": 15}
        for first in parse_spec({**values, "lengths": lengths, "requests": 30}, "").build().draw(0):
            chain = list(first.family())
            assert len(chain) == 3  # 10 + 3 * 25 <= 100
            assert all(1 <= each.at <= 2 for each in chain[1:])
            assert {each.session for each in chain} == {first.id}
        (alone,) = drawn(requests=1, max_tokens=30, lengths={"prompt": 25, "output": MANY})
        assert (alone.num_new, alone.output) == (25, 5)
        (alone,) = drawn(requests=1, max_tokens=30, lengths={"prompt": MANY, "output": MANY})
        assert (alone.num_new, alone.output) == (29, 1)

    def test_shared_prefixes_leave_room(self) -> None:
        few_shot = {"examples": 2, "pool": 3, "tokens": 20}
        prefixes = {"system": [10, 30], "few_shot": few_shot}
        assert drawn(prefixes=prefixes, max_tokens=78)
        with pytest.raises(SettingsError, match=r"max_tokens 77 leaves no room .* prefixes of 70"):
            drawn(prefixes=prefixes, max_tokens=77)

    @pytest.mark.parametrize(
        ("prompt", "output", "least"),
        [
            (60, 20, 80),
            ({"uniform": [9, 99]}, 1, 10),
            ({"lognormal": {"median": 90, "sigma": 1, "min": 30}}, {"uniform": [4, 5]}, 34),
            (7, {"exponential": 50}, 8),
        ],
        ids=["fixed", "uniform", "lognormal", "exponential"],
    )
    def test_the_shortest_request_is_as_it_is_written(
        self, prompt: Any, output: Any, least: int
    ) -> None:
        values: dict[str, Any] = {"lengths": {"prompt": prompt, "output": output}}
        for request in drawn(**values, max_tokens=least):
            assert request.num_new + request.output <= least
        mix = [{"lengths": "alpaca"}, {**values, "max_tokens": least - 1}]
        for short in ({**values, "max_tokens": least - 1}, {"mix": mix}):
            with pytest.raises(SettingsError, match=f"max_tokens {least - 1} leaves no room for"):
                parse_spec(short, "").check()

    def test_trees(self) -> None:
        prefixes = {"tree": {"depth": 3, "branching": 2}}
        (first,) = parse_spec({"requests": 7, "prefixes": prefixes}, "").build().draw(0)
        assert [len(each.followers) for each in first.family()] == [2, 2, 0, 0, 2, 0, 0]
        (cut,) = parse_spec({"requests": 4, "prefixes": prefixes}, "").build().draw(0)
        assert [each.id for each in cut.family()] == ["0", "0.1", "0.3", "0.2"]


class TestClasses:
    def test_they_have_shares_tenants_priorities_deadlines_and_salts(self) -> None:
        classes = [
            {
                "weight": 3,
                "tenants": {"a": 3, "b": 1},
                "priorities": [0, 5],
                "cache_salt": "tenant",
            },
            {"tenants": "c", "deadline": 2.5, "n": {"uniform": [2, 3]}, "cache_salt": "session"},
        ]
        requests = drawn(requests=4000, mix=classes)
        shares = Counter(each.tenant for each in requests)
        for tenant, share in (("a", 9 / 16), ("b", 3 / 16), ("c", 4 / 16)):
            assert shares[tenant] / 4000 == pytest.approx(share, abs=0.03)
        c = [each for each in requests if each.tenant == "c"]
        assert {each.n for each in c} == {2, 3}
        assert all(each.deadline == 2.5 and each.cache_salt == each.id for each in c)
        others = [each for each in requests if each.tenant != "c"]
        assert {each.priority for each in others} == {0, 5}
        assert all(each.deadline is None and each.cache_salt == each.tenant for each in others)

    def test_one_may_arrive_by_a_process_of_its_own(self) -> None:
        classes = [{"arrivals": {"interval": 2}, "first": 3, "tenants": "a"}, {"tenants": "b"}]
        requests = drawn(requests=20, arrivals={"interval": 0.5}, mix=classes)
        assert [each.at for each in requests if each.tenant == "a"] == [0, 2, 4]
        assert [each.at for each in requests] == sorted(each.at for each in requests)
        assert len(requests) == 20

    @pytest.mark.parametrize("wrong", [{"first": 3}, {"weight": 1, "arrivals": "at_once"}])
    def test_a_share_and_a_process_exclude_each_other(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(SettingsError, match=r"mix\.0"):
            drawn(mix=[wrong])


def printed(code: str) -> str:
    """Return the output of a program, in a process of its own."""
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


class TestSeeds:
    def test_one_aspect_changes_and_the_others_stay(self) -> None:
        base = {"requests": 200, "lengths": "sharegpt", "prefixes": {"conversation": {"turns": 3}}}
        slow = drawn(**base, arrivals={"poisson": {"rate": 1}})
        fast = drawn(**base, arrivals={"gamma": {"rate": 9, "burstiness": 0.3}})
        assert [(a.id, a.prompt, a.output) for a in slow] == [
            (b.id, b.prompt, b.output) for b in fast
        ]
        longer = drawn(
            **base | {"lengths": {"prompt": 7, "output": NAMED_LENGTHS["sharegpt"].output}}
        )
        assert [each.output for each in longer] == [each.output for each in slow]
        tenants = drawn(**base, arrivals={"poisson": {"rate": 1}}, tenants=["a", "b"])
        assert [each.at for each in tenants] == [each.at for each in slow]

    def test_the_rate_scales_the_same_arrivals(self) -> None:
        slow, fast = (gaps({"poisson": {"rate": rate}}, 50) for rate in (1, 4))
        assert slow == pytest.approx([4 * each for each in fast])

    def test_they_are_the_same_in_another_process_and_version(self) -> None:
        """Draws are as they were before: streams must not change with a release."""
        code = (
            "from paged_plugins.workloads.spec import parse_spec\n"
            "arrivals = {'gamma': {'rate': 4, 'burstiness': 0.5}}\n"
            "spec = parse_spec({'lengths': 'sharegpt', 'arrivals': arrivals}, '')\n"
            "last = list(spec.build().draw(5))[-2:]\n"
            "print([(each.id, round(each.at, 6), each.num_new, each.output) for each in last])"
        )
        assert printed(code) == "[('98', 18.379016, 21, 190), ('99', 18.520026, 181, 398)]"

    def test_no_two_prompts_have_content_in_common_by_chance(self) -> None:
        parts = [
            part for each in drawn(requests=300, prefixes={"system": 64}) for part in each.prompt
        ]
        assert sum(map(len, set(parts))) == len(set(token_ids(set(parts), None)))
        assert max(part.stop for part in parts) < FIRST_OWN_ID


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lengths:\n  prompt: 1\n  output: {unifrom: [1, 2]}\n",
            "'unifrom' takes keys, as in `{key: value}`; did you mean 'uniform'? (line 3)",
        ),
        (
            "lengths: {prompt: 1, output: 1}\narrivals:\n  poisson: {rat: 1}\n",
            "arrivals.poisson.rat: no such key; did you mean 'rate'? (line 3)",
        ),
    ],
)
def test_mistakes_in_a_file_have_their_line_and_a_suggestion(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError) as caught:
        workload_spec(str(path))
    assert message in str(caught.value)
