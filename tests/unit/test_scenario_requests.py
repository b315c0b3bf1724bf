"""Requests of a scenario: follow-ups, prefixes, workloads, steps that take time."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_core.interfaces.scheduler import Schedule
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import EngineSettings
from paged_plugins.decisions.replay import replay, settings_of
from paged_plugins.decisions.replay_run import LastStep, Outcome, RequestTimes
from paged_plugins.decisions.scenario import Scenario, read_case
from paged_plugins.workloads.named import workload_spec
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked

REGISTRY = Registry.discover()
SETTINGS = {"num_blocks": 32, "block_size": 4}
_FREE = dict.fromkeys(
    ("per_prefill_pair", "per_decode_sequence", "per_context_token", "per_copied_block"), 0.0
)
SIMULATED = {
    **SETTINGS,
    "executor": "simulated",
    "cost_model": {"name": "linear", "fixed": 0.5, "per_prefill_token": 0.25, **_FREE},
}


def scenario(*requests: dict[str, Any], **values: Any) -> Scenario:
    return Scenario.model_validate(
        {"name": "test", "settings": SETTINGS, "requests": list(requests), **values}
    )


def run(*requests: dict[str, Any], **values: Any) -> tuple[list[dict[str, Any]], Outcome]:
    outcome = Outcome()
    return list(replay(scenario(*requests, **values), REGISTRY, outcome)), outcome


def times(outcome: Outcome) -> dict[str, RequestTimes]:
    return {each.id: each for each in outcome.requests}


def admitted(trace: list[dict[str, Any]]) -> dict[str, int]:
    """The step in which each request was admitted."""
    return {name: line["step"] for line in trace for name in line["cached"]}


class LateSettings(TokenBudgetSettings):
    name: Literal["late"] = "late"  # type: ignore[assignment]


class LateScheduler(TokenBudgetScheduler):
    """Plans nothing in the first second."""

    def schedule(self, now: float, /) -> Schedule:
        return Schedule() if now < 1.0 else super().schedule(now)


A = {"id": "A", "prompt": 6, "output": 3}


class TestFollows:
    @pytest.mark.parametrize(
        ("after", "step"), [(0.0, 3), (0.25, 4), (0.5, 4), (2.5, 8), (1e9, None)]
    )
    def test_it_arrives_a_think_time_after_the_end(self, after: float, step: int | None) -> None:
        follower = {"id": "B", "follows": "A", "after": after, "prompt": 5, "output": 2}
        trace, outcome = run(A, follower, seconds_per_step=0.5)
        assert admitted(trace).get("B") == step
        assert outcome.unfinished == ([] if step is not None else ["B"])
        if step is not None:
            assert times(outcome)["B"].arrived == 3 * 0.5 + after

    def test_the_answer_is_that_of_the_first_sequence(self) -> None:
        """Each of the three has a second block of its own."""
        trace, _ = run({**A, "n": 3}, {"id": "B", "follows": "A", "prompt": 5, "output": 1})
        assert trace[-1]["hits"] == {"B": [0, 2]}

    def test_after_an_abort_it_continues_what_was_generated(self) -> None:
        long = {**A, "output": 20}
        follower = {"id": "B", "follows": "A", "after": 1.0, "prompt": 5, "output": 1}
        trace, outcome = run(long, follower, aborts=[{"id": "A", "step": 2}])
        assert times(outcome)["A"].finish_reason == "abort"
        assert times(outcome)["A"].finished == 2.0
        assert times(outcome)["B"].num_prompt == 6 + 2 + 5
        assert admitted(trace)["B"] == 3

    def test_what_follows_a_request_that_cannot_run_cannot_either(self) -> None:
        family = [
            {"id": "B", "follows": "A", "prompt": 5, "output": 1},
            {"id": "C", "follows": "B", "prompt": 5, "output": 1},
            {"id": "D", "follows": "C", "prompt": 5, "output": 1},
        ]
        trace, outcome = run({**A, "prompt": 3000}, *family, {"id": "E", "prompt": 1, "output": 1})
        assert trace[0]["ignored"] == ["A", "B", "C", "D"]
        assert trace[0]["finished"] == ["E"]
        assert outcome.refused["B"] == "it follows A, which was not completed"
        assert list(outcome.refused) == ["A", "B", "C", "D"]
        assert not outcome.unfinished

    def test_what_follows_a_request_that_a_scheduler_ignores_is_ignored(self) -> None:
        """The scheduler finds only later that the prompt is too long for one step."""
        settings = {
            **SETTINGS,
            "scheduler": {"name": "prefill_or_decode", "max_num_batched_tokens": 64},
            "max_model_len": 64,
        }
        family = [
            {"id": "A", "prompt": 60, "output": 2},
            {"id": "B", "follows": "A", "prompt": 50, "output": 1},
            {"id": "C", "follows": "B", "prompt": 1, "output": 1},
        ]
        trace, outcome = run(*family, settings=settings)
        assert trace[-1]["ignored"] == ["B", "C"]
        assert "112 tokens" in outcome.refused["B"]

    def test_a_deadline_counts_from_the_arrival(self) -> None:
        settings = {**SETTINGS, "queue_order": "edf", "scheduler": {"max_num_seqs": 1}}
        follower = {"id": "B", "follows": "A", "prompt": 1, "output": 1, "deadline": 4}
        others = [
            {"id": name, "at": 2.5, "prompt": 1, "output": 1, "deadline": deadline}
            for name, deadline in (("early", 6.5), ("late", 7.5))
        ]
        trace, _ = run(A, follower, *others, settings=settings)
        assert list(admitted(trace)) == ["A", "early", "B", "late"]

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"follows": "C"}, "'B' follows 'C', which no request above it is called"),
            ({"follows": "B"}, "'B' follows 'B', which no request above it is called"),
            ({"follows": "A", "step": 1}, "`step` and `follows` exclude each other"),
            ({"follows": "A", "at": 1.0}, "`at` and `follows` exclude each other"),
            ({"follows": "A", "prefix": "P"}, "`prefix` and `follows` exclude each other"),
            ({"after": 1.0}, "`after` is for a request that `follows` another"),
            ({"follows": "A", "after": -1.0}, "requests.1.after"),
            ({"follows": "A", "after": "1"}, "requests.1.after"),
            ({"follows": 1}, "requests.1.follows"),
            ({"prefix": "Q"}, "'B' begins with the prefix 'Q', which `prefixes` does not have"),
        ],
    )
    def test_what_is_wrong_is_named(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            scenario(A, {"id": "B", "prompt": 1, "output": 1, **values}, prefixes={"P": 4})

    def test_a_misspelt_request_is_suggested(self) -> None:
        first, told = {**A, "id": "first"}, r"is called; did you mean 'first'\?"
        with pytest.raises(ValidationError, match=told):
            scenario(first, {"id": "B", "follows": "frist", "prompt": 1, "output": 1})
        with pytest.raises(ValidationError, match=told):
            scenario(first, aborts=[{"id": "frst", "step": 2}])

    def test_whole_prompts_are_bounded(self) -> None:
        """Each of a chain is as long as all before it together."""
        chain: list[dict[str, Any]] = [{"id": "0", "prompt": 100_000, "output": 1}]
        for number in range(1, 60):
            follows = str(number - 1)
            chain.append({"id": str(number), "follows": follows, "prompt": 10**5, "output": 1})
        with pytest.raises(ValidationError, match="tokens together"):
            scenario(*chain)

    def test_whole_prompts_are_read_back(self) -> None:
        long = {"prompt": 1_000_000, "output": 1000}
        chain = [{"id": "0", **long}]
        chain += [{"id": str(i), "follows": str(i - 1), **long} for i in range(1, 13)]
        settings = {"num_blocks": 1_000_000, "max_model_len": 10**9}
        settings_of(scenario(chain[0], settings=settings), REGISTRY)
        with pytest.raises(SettingsError, match=r"would read .* tokens back"):
            settings_of(
                scenario(*[{**each, "output": 2000} for each in chain], settings=settings),
                REGISTRY,
            )


@st.composite
def families(draw: Any) -> list[dict[str, Any]]:
    """Requests, some of which follow earlier ones."""
    requests: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 6))):
        request: dict[str, Any] = {
            "id": str(number),
            "prompt": draw(st.sampled_from(["0:5", "0:3 20:29", "40:49"])),
            "output": draw(st.integers(1, 5)),
        }
        if requests and draw(st.booleans()):
            request["follows"] = draw(st.sampled_from([each["id"] for each in requests]))
            request["after"] = float(draw(st.integers(0, 3)))
        else:
            request["step"] = draw(st.integers(0, 4))
        requests.append(request)
    return requests


@given(families(), st.sampled_from([24, 64]), st.sampled_from(["hash_cached", "uncached"]))
def test_a_replay_does_what_an_engine_driven_by_hand_does(
    requests: list[dict[str, Any]], num_blocks: int, allocator: str
) -> None:
    settings = {"num_blocks": num_blocks, "block_size": 4, "block_allocator": allocator}
    trace, outcome = run(*requests, settings=settings)
    decided = {line["step"]: (line["scheduled"], line["cached"]) for line in trace}
    assert drive(requests, settings) == decided
    assert not outcome.unfinished


def drive(requests: list[dict[str, Any]], settings: dict[str, Any]) -> dict[int, Any]:
    """Offer requests and their follow-ups to an engine; what each step computed and shared."""
    last = LastStep()
    engine = build_memory_engine(REGISTRY, **settings, max_model_len=2048, observers=[last])
    numbers = {each["id"]: number for number, each in enumerate(requests)}
    engine.executor.sample = (  # type: ignore[attr-defined]
        lambda new, tokens, index: 10**6 + 1000 * numbers[new.request_id] + len(tokens)
    )
    due: defaultdict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for number, each in enumerate(requests):
        if "follows" not in each:
            due[each["step"]].append((number, ()))
    decided: dict[int, Any] = {}
    step = 0
    while engine.has_unfinished or any(at >= step for at in due):
        for number, before in sorted(due.pop(step, [])):
            asked = requests[number]
            parts = (part.split(":") for part in asked["prompt"].split())
            own = (i for low, high in parts for i in range(int(low), int(high)))
            engine.add(
                Request(
                    id=asked["id"],
                    prompt=(*before, *own),
                    sampling=SamplingParams(max_tokens=asked["output"]),
                    arrival=step + 1e-6 * number,
                )
            )
        if engine.has_unfinished:
            finished = engine.step().finished
            record = last.record
            decided[step] = (record.scheduled, record.cached)
            for group in finished:
                for number, each in enumerate(requests):
                    if each.get("follows") == group.id:
                        at = step + 1 + int(each["after"])
                        due[at].append((number, tuple(group.sequences[0].tokens)))
        step += 1
    check_nothing_leaked(engine)
    return decided


class TestPrefixes:
    def test_requests_with_equal_ones_share_blocks(self) -> None:
        asked = [
            {"id": name, "step": step, "prefix": prefix, "prompt": 3, "output": 1}
            for step, (name, prefix) in enumerate([("A", "P"), ("B", "P"), ("C", "Q")])
        ]
        trace, outcome = run(*asked, prefixes={"P": 8, "Q": 8})
        assert [line["cached"] for line in trace] == [{"A": 0}, {"B": 8}, {"C": 0}]
        assert [each.num_prompt for each in outcome.requests] == [11, 11, 11]

    def test_they_may_be_ranges(self) -> None:
        prefixed = {"id": "A", "prefix": "P", "prompt": "20:24", "output": 1}
        plain = {"id": "B", "step": 1, "prompt": "0:8 20:25", "output": 1}
        trace, _ = run(prefixed, plain, prefixes={"P": "0:8"})
        assert trace[1]["cached"] == {"B": 12}

    @pytest.mark.parametrize("prompt", [0, True, "x", "5:2", 10**8, f"0:{10**9 + 1}"])
    def test_what_is_none(self, prompt: object) -> None:
        with pytest.raises(ValidationError, match=r"prompt|prefixes"):
            scenario(A, prefixes={"P": prompt})


class TestWorkloads:
    spec: ClassVar[dict[str, Any]] = {
        "requests": 12,
        "arrivals": {"poisson": {"rate": 2}},
        "lengths": {"prompt": {"uniform": [5, 20]}, "output": 4},
        "prefixes": {"system": 16, "conversation": {"turns": 3, "think": 2}},
    }

    def test_are_drawn_with_a_seed(self) -> None:
        one, again, other = (run(workload=self.spec, seed=seed)[0] for seed in (1, 1, 2))
        assert one == again != other
        assert sum(len(line["finished"]) for line in one) == 12
        assert any(line["hits"] for line in one)

    def test_conversations_continue(self) -> None:
        _, outcome = run(workload=self.spec)
        turns = times(outcome)
        first = next(each for each in turns if "." not in each)
        followed = turns[f"{first}.1"]
        assert followed.arrived == turns[first].finished + 2
        assert followed.num_prompt > turns[first].num_prompt + 4

    def test_have_content_of_their_own(self) -> None:
        spec = {"requests": 1, "arrivals": {"interval": 1}, "lengths": {"prompt": 9, "output": 1}}
        trace, _ = run({"id": "A", "prompt": "0:9", "output": 1}, workload=spec)
        assert {name: count for line in trace for name, count in line["cached"].items()} == {
            "A": 0,
            "0": 0,
        }

    def test_deadlines_count_from_arrivals(self) -> None:
        spec = {"requests": 3, "arrivals": {"interval": 2}, "deadline": 5}
        drawn = scenario(workload=spec).asked
        assert all(each.at and each.deadline == 5 for each in drawn[1:])

    def test_may_be_named(self, tmp_path: Path) -> None:
        played = scenario(workload="chat")
        asked = played.asked
        assert len(played.numbers) == workload_spec("chat").requests
        path = tmp_path / "s.yaml"
        path.write_text("name: s\nsettings: {num_blocks: 9}\nworkload: chat\nseed: 3\n")
        assert read_case(path).scenario.asked != asked
        assert read_case(path).scenario.max_steps == 1_000_000

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({}, "give `requests`, or a `workload`"),
            ({"requests": [A], "seed": 3}, "`seed` is of the `workload`"),
            ({"workload": "nowhere"}, "no workload is called 'nowhere'; there are: W1"),
            ({"workload": {"request": 3}}, "workload.request"),
            ({"workload": {"requests": 3}, "seed": -1}, "seed"),
            ({"workload": {"requests": 3}, "seed": True}, "seed"),
            ({"workload": {"requests": 3}, "requests": [{**A, "id": "1"}]}, "same id, '1'"),
            (
                {"workload": {"requests": 10**7, "lengths": {"prompt": 10**7, "output": 1}}},
                "draws more than .* 100,000,000 tokens",
            ),
            *(
                ({"workload": values}, r"it reads the file 'private\.jsonl', and")
                for values in (
                    {"trace": "private.jsonl"},
                    {"arrivals": {"replay": "private.jsonl"}},
                    {"mix": [{"lengths": {"trace": "private.jsonl"}}]},
                )
            ),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_named(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            Scenario.model_validate({"name": "test", "settings": SETTINGS, **values})

    def test_as_many_as_a_replay_takes_are_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paged_plugins.decisions.scenario.MAX_DRAWN", 50)
        assert len(scenario(workload={"requests": 50}).asked) == 50
        with pytest.raises(ValidationError, match="draws more than 50 requests"):
            scenario(workload={"requests": 10**7})


class TestStepsThatTakeTime:
    """0.5 s each, and 0.25 s for each token of a prompt."""

    def test_the_trace_says_when(self) -> None:
        trace, outcome = run(A, {**A, "id": "B", "at": 10.0, "prompt": 2}, settings=SIMULATED)
        assert [(line["time"], line["seconds"], line["idle"]) for line in trace] == [
            (0.0, 2.0, 0.0),
            (2.0, 0.5, 0.0),
            (2.5, 0.5, 0.0),
            (10.0, 1.0, 7.0),
            (11.0, 0.5, 0.0),
            (11.5, 0.5, 0.0),
        ]
        assert times(outcome)["A"].ttft == 2.0
        assert times(outcome)["B"].ttft == 1.0
        assert times(outcome)["B"].tpot == 0.5

    def test_think_time_passes_on_its_clock(self) -> None:
        follower = {"id": "B", "follows": "A", "after": 5.0, "prompt": 4, "output": 1}
        trace, outcome = run(A, follower, settings=SIMULATED)
        assert times(outcome)["B"].arrived == 3.0 + 5.0
        assert trace[-1]["time"] == 8.0
        assert trace[-1]["cached"] == {"B": 8}
        assert times(outcome)["B"].ttft == 0.5 + 0.25 * (13 - 8)

    def test_time_passes_while_a_scheduler_waits(self) -> None:
        late = Component("scheduler", LateSettings, f"{__name__}:LateScheduler")
        registry = REGISTRY.extended(late, plugin="late")
        played = scenario(A, settings={**SIMULATED, "scheduler": "late"}, max_steps=2000)
        outcome = Outcome()
        waited = [line for line in replay(played, registry, outcome) if not line["scheduled"]]
        assert times(outcome)["A"].ttft == pytest.approx(1.0 + 2.0, abs=0.01)
        assert waited[-1]["time"] < 1.0
        assert waited[-1]["seconds"] == 0.0

    def test_the_decisions_are_those_of_equal_steps(self) -> None:
        requests = [A, {**A, "id": "B", "step": 1, "n": 2}, {**A, "id": "C", "follows": "A"}]
        settings = {"num_blocks": 9, "block_size": 4}
        one, _ = run(*requests, settings=settings)
        other, _ = run(*requests, settings={**SIMULATED, **settings})
        decisions = [
            [
                {key: line[key] for key in ("scheduled", "cached", "preempted", "evicted", "hits")}
                for line in trace
            ]
            for trace in (one, other)
        ]
        assert decisions[0] == decisions[1]

    def test_equal_steps_have_times_too(self) -> None:
        trace, outcome = run(A, {**A, "id": "B", "step": 9}, seconds_per_step=0.5)
        assert [(line["time"], line["idle"]) for line in trace][2:4] == [(1.0, 0.0), (4.5, 3.0)]
        assert (times(outcome)["B"].arrived, times(outcome)["B"].ttft) == (4.5, 0.5)

    def test_the_time_of_a_step_is_not_given_twice(self) -> None:
        with pytest.raises(SettingsError, match="leave `seconds_per_step` out"):
            settings_of(scenario(A, settings=SIMULATED, seconds_per_step=0.5), REGISTRY)

    def test_a_line_per_request(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "s.json"
        values = {"name": "s", "settings": SIMULATED}
        path.write_text(json.dumps({**values, "requests": [{**A, "output": 1}, {**A, "id": "B"}]}))
        assert main(["replay", str(path), "--requests", "--json"], {"PATH": ""}) == 0
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert (first["id"], first["ttft"], first["tpot"]) == ("A", 3.5, None)
        assert (second["id"], second["ttft"], second["tpot"]) == ("B", 3.5, 0.5)
        assert main(["replay", str(path), "--requests"], {"PATH": ""}) == 0
        assert "3.500 s" in capsys.readouterr().out
        assert main(["replay", str(path)], {"PATH": ""}) == 0
        assert "step    1 | 3.500 s | runs B:1" in capsys.readouterr().out
        assert main(["replay", str(path), "--requests", "--check"], {"PATH": ""}) == 2
        assert "leave --requests out" in capsys.readouterr().err


def test_belady_is_told_of_follow_ups_by_a_rehearsal() -> None:
    """Conversations whose turns alternate, in a cache that holds half of them."""
    requests = [
        {"id": f"{name}{turn}", "prompt": 13, "output": 3}
        | (
            {"follows": f"{name}{turn - 1}", "after": 3.0 + 2 * (at % 3)}
            if turn
            else {"at": float(at)}
        )
        for at, name in enumerate("ABCDEF")
        for turn in range(5)
    ]
    cached = {}
    for evictor in ("lru", "mru", "belady"):
        settings = {"num_blocks": 44, "block_size": 4, "evictor": evictor}
        trace, _ = run(*requests, settings=settings, max_steps=1000)
        cached[evictor] = sum(sum(line["cached"].values()) for line in trace)
    assert cached["belady"] > max(cached["lru"], cached["mru"])


def test_a_rehearsal_is_not_observed(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    settings = {**SETTINGS, "num_blocks": 8, "evictor": "belady"}
    requests = [{"id": str(i), "step": 3 * i, "prompt": 9, "output": 2} for i in range(6)]
    played = scenario(*requests, settings=settings)
    trace = list(replay(played, REGISTRY, settings=watched(played, name="decision_log", path=path)))
    assert sum(len(line["evicted"]) for line in trace)
    assert len(path.read_text("utf-8").splitlines()) == len(trace)


def watched(played: Scenario, **observer: Any) -> EngineSettings:
    """The settings of a scenario, with an observer."""
    own = settings_of(played, REGISTRY)
    return type(own)(**{**own.model_dump(), "observers": [observer]})
