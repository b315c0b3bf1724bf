"""Scenarios and traces: what is read, what is refused, and that a live engine logs the same."""

from __future__ import annotations

import itertools
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paged_core.cli import main
from paged_core.errors import RequestError, SettingsError
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.decisions.diff import first_difference, side_by_side, totals
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.replay_run import Outcome
from paged_plugins.decisions.scenario import Scenario, read_case
from paged_plugins.decisions.trace import (
    DECISIONS,
    KEYS,
    UNFINISHED,
    differing_keys,
    in_version,
    read_traces,
    version_of,
)
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import Workload

SCHEDULERS = ("token_budget", "prefill_or_decode", "iteration_level", "static_batch")
REGISTRY = Registry.discover()

SMALL: dict[str, Any] = {
    "name": "small",
    "settings": {"num_blocks": 8, "block_size": 4},
    "requests": [{"id": "A", "prompt": 5, "output": 2}],
}


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def line(step: int = 0, **changes: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {key: [] for key in KEYS}
    times = {"time": float(step), "seconds": 1.0, "idle": 0.0}
    values = {"version": 2, "step": step, "scheduled": {}, "cached": {}, "free_blocks": 0}
    return {**empty, **values, "hits": {}, **times, **changes}


class TestScenario:
    def test_prompts_are_lengths_or_ranges(self) -> None:
        requests = [
            {"id": "A", "prompt": 3, "output": 1},
            {"id": "B", "prompt": "10:13 20:22", "output": 1},
        ]
        first, second = Scenario.model_validate({**SMALL, "requests": requests}).asked
        assert first.prompt == (range(10**9, 10**9 + 3),)
        assert second.prompt == (range(10, 13), range(20, 22))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"settings": {"block_size": 4}}, "give settings.num_blocks"),
            ({"requests": SMALL["requests"] * 2}, "two requests have the same id"),
            ({"requests": [{"id": "A", "prompt": 1}]}, "requests.0.output"),
            ({"requests": [{"id": "A", "prompt": 1, "output": 0}]}, "requests.0.output"),
            ({"requests": [{"id": "A", "prompt": 1, "output": 1, "n": 0}]}, "requests.0.n"),
            ({"requests": [{"id": "A", "prompt": 1, "output": 1, "step": -1}]}, "requests.0.step"),
            ({"aborts": [{"id": "A"}]}, "aborts.0.step"),
            ({"seconds_per_step": 0}, "seconds_per_step"),
            ({"seconds_per_step": float("inf")}, "seconds_per_step"),
            ({"seconds_per_step": True}, "seconds_per_step"),
            ({"max_steps": "9"}, "max_steps"),
            (
                {"requests": [{"id": "A", "prompt": 3, "output": 1, "step": 2, "at": 3.5}]},
                "exclude each other",
            ),
            *(
                ({"requests": [{"id": "A", "prompt": prompt, "output": 1}]}, message)
                for message, prompts in {
                    "neither a length nor ranges": ("ten", "1:2:3", "5", "1:x"),
                    "no tokens": (0, -1, "", "5:2", "1:4 7:7"),
                    "more than": (10**10, "0:99999999999"),
                }.items()
                for prompt in prompts
            ),
            ({"aborts": [{"id": "B", "step": 1}]}, "aborts.*'B', which no request is called"),
            ({"aborts": [{"id": "A", "step": True}]}, "aborts.0.step"),
            (
                {
                    "requests": [{"id": "A", "step": 5, "prompt": 1, "output": 1}],
                    "aborts": [{"id": "A", "step": 4}],
                },
                "'A' before it has arrived",
            ),
            ({"settings": {"num_blocks": 8, "observers": ["decision_log"]}}, "can write files"),
            (
                {"requests": [{"id": str(i), "prompt": 10**7, "output": 1} for i in range(11)]},
                "110,000,011 tokens together",
            ),
            *(
                ({"requests": [{"id": "A", "prompt": 1, "output": 1, key: value}]}, key)
                for key, values in {
                    "id": (1, None, True),
                    "prompt": (True, 1.5, "-5:3", "0:1_0", "5:٩", "1000000000:1000000001"),
                    "output": (True, 1.0, "1", 10**400),
                    "priority": (True, float("nan"), 1.5, "1", 10**400),
                    "n": (True, 10**400),
                    "step": (True, 0.0, 10**400),
                    "at": (True, "1", -1.0, float("nan"), float("inf"), 1e300),
                    "deadline": (True, float("nan"), float("inf")),
                    "tenant": (None, 1),
                    "cache_salt": (1, ["x"]),
                }.items()
                for value in values
            ),
            ({"maximum": 3}, "maximum"),
        ],
    )
    def test_what_is_wrong_is_named(
        self, tmp_path: Path, change: dict[str, Any], message: str
    ) -> None:
        path = write(tmp_path / "bad.json", {**SMALL, **change})
        with pytest.raises(ValidationError, match=message):
            Scenario.model_validate({**SMALL, **change})
        with pytest.raises(SettingsError, match=f"{message}|is not JSON|100 digits") as caught:
            read_case(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.json", "{", "cannot be parsed"),
            ("a.yaml", "a: [", "cannot be parsed"),
            ("a.yaml", "- 1", "must hold a mapping"),
            ("a.json", "3", "must hold a mapping"),
            ("a.json", '{"name": "a", "name": "b"}', "the key 'name' is given twice"),
            ("a.yaml", "name: a\nrequests:\n- {id: A, id: B}", "line 3, .*'id' is given twice"),
            ("a.yaml", "name: a\nrequests: [{prompt: 10:48}]", "line 2, .*base 60; quote it"),
            ("a.json", '{"at": NaN}', "NaN is not JSON"),
            ("a.json", "[" * 10**5, "nested deeper than 64 levels"),
            ("a.yaml", "[" * 10**5, "nested deeper than 64 levels"),
            ("a.json", {"scenario": SMALL, "trace": "hi"}, "list of steps"),
            ("a.json", {"scenario": SMALL, "trace": [{"step": 0}]}, "entry 0 .*scheduled"),
        ],
    )
    def test_a_file_that_is_none(
        self, tmp_path: Path, name: str, content: object, message: str
    ) -> None:
        with pytest.raises(SettingsError, match=message):
            read_case(write(tmp_path / name, content))

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(SettingsError, match="cannot read"):
            read_case(tmp_path / "binary.json")


class TestReplay:
    def run(self, **changes: Any) -> tuple[list[dict[str, Any]], Outcome]:
        outcome = Outcome()
        trace = list(replay(Scenario.model_validate({**SMALL, **changes}), REGISTRY, outcome))
        return trace, outcome

    def trace(self, **changes: Any) -> list[dict[str, Any]]:
        return self.run(**changes)[0]

    def test_has_a_line_per_step_with_all_keys_in_order(self) -> None:
        trace = self.trace()
        assert [tuple(step) for step in trace] == [KEYS, KEYS]
        assert trace[0] == line(
            0, scheduled={"A": 5}, cached={"A": 0}, running=["A"], free_blocks=6
        )
        assert trace[1] == line(1, scheduled={"A": 1}, finished=["A"], free_blocks=8)

    @pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode", "static_batch"])
    @pytest.mark.parametrize("preemption", ["never", "recompute"])
    def test_a_run_longer_than_the_cache_is_refused_with_the_reason(
        self, scheduler: str, preemption: str
    ) -> None:
        settings = {
            "num_blocks": 16,
            "block_allocator": "contiguous",
            "scheduler": scheduler,
            "preemption": preemption,
        }
        trace, outcome = self.run(settings=settings)
        assert trace == [line(0, ignored=["A"], free_blocks=16)]
        assert "128 adjacent blocks" in outcome.refused["A"]
        trace = self.trace(settings={**settings, "max_model_len": 128})
        assert [step["finished"] for step in trace] == [[], ["A"]]

    def test_several_sequences_cannot_share_a_run(self) -> None:
        settings = {"num_blocks": 16, "block_allocator": "contiguous", "max_model_len": 64}
        requests = [{"id": "A", "prompt": 5, "output": 2, "n": 2}]
        trace, outcome = self.run(settings=settings, requests=requests)
        assert len(trace) == 1
        assert "none can share" in outcome.refused["A"]

    def test_people_are_told_what_the_trace_does_not_say(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        requests = [
            {"id": "A", "prompt": 5, "output": 9},
            {"id": "B", "prompt": 3000, "output": 1},
            {"id": "C", "prompt": 1, "output": 1, "step": 7},
        ]
        path = write(tmp_path / "s.json", {**SMALL, "requests": requests, "max_steps": 2})
        assert main(["replay", str(path)], {"PATH": ""}) == 1
        *_, refused, last = capsys.readouterr().out.splitlines()
        assert refused.startswith("B was not completed: the prompt has 3000 tokens")
        assert last == "stopped after 2 steps; unfinished: A C"

    def test_a_trace_that_was_cut_off_says_so(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """In its last line, on standard error and by the exit status."""
        path = write(tmp_path / "s.json", {**SMALL, "max_steps": 1})
        assert main(["replay", str(path), "--json"], {"PATH": ""}) == 1
        printed = capsys.readouterr()
        (only,) = [json.loads(text) for text in printed.out.splitlines()]
        assert only[UNFINISHED] == ["A"]
        assert printed.err == "small: stopped after 1 steps; unfinished: A; raise max_steps\n"
        (tmp_path / "cut.jsonl").write_text(printed.out)
        assert read_traces(tmp_path / "cut.jsonl") == {"": [only]}
        del only[UNFINISHED]  # as recorded before
        recorded = write(tmp_path / "case.json", {"scenario": SMALL, "trace": [only]})
        assert main(["diff", str(tmp_path / "cut.jsonl"), str(recorded)], {"PATH": ""}) == 0

    def test_lines_of_scenarios_of_one_name_could_not_be_told_apart(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [str(write(tmp_path / name, SMALL)) for name in ("a.json", "b.json")]
        assert main(["replay", *paths, "--json"], {"PATH": ""}) == 2
        assert "have the same name, 'small'" in capsys.readouterr().err
        assert main(["replay", *paths], {"PATH": ""}) == 0

    @pytest.mark.parametrize("arrival", [{"step": 10**9}, {"at": 1e9}, {"at": 1e9 - 0.5}], ids=str)
    def test_steps_in_which_nothing_can_happen_are_not_walked_through(
        self, arrival: dict[str, Any]
    ) -> None:
        requests = [*SMALL["requests"], {"id": "B", "prompt": 1, "output": 1, **arrival}]
        trace = self.trace(requests=requests, max_steps=2 * 10**9)
        assert [step["step"] for step in trace] == [0, 1, 10**9]
        trace, outcome = self.run(requests=requests, max_steps=10**9)
        assert len(trace) == 2
        assert outcome.unfinished == ["B"]

    @given(
        seconds=st.floats(1e-9, 1e9),
        arrivals=st.lists(st.floats(0, 200), min_size=1, max_size=6),
    )
    def test_a_request_arrives_in_the_first_step_at_or_after_its_time(
        self, seconds: float, arrivals: list[float]
    ) -> None:
        requests = [
            {"id": str(number), "at": at * seconds, "prompt": 1, "output": 1}
            for number, at in enumerate(arrivals)
        ]
        trace = self.trace(requests=requests, seconds_per_step=seconds, max_steps=300)
        found = {name: step["step"] for step in trace for name in step["cached"]}
        for request in requests:
            clock = (step for step in range(300) if step * seconds >= request["at"])
            assert found[request["id"]] == next(clock)

    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_a_prompt_that_the_cache_never_holds_is_refused(self, scheduler: str) -> None:
        """Instead of stopping what comes after it until `max_steps`."""
        requests = [{"id": "A", "prompt": 1200, "output": 2}, {**SMALL["requests"][0], "id": "B"}]
        settings = {"num_blocks": 64, "scheduler": scheduler}
        trace, outcome = self.run(settings=settings, requests=requests)
        assert trace[0]["ignored"] == list(outcome.refused) == ["A"]
        assert trace[-1]["finished"] == ["B"]
        assert outcome.unfinished == []

    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_a_request_that_could_only_wait_is_refused_as_in_an_engine(
        self, scheduler: str
    ) -> None:
        settings = {"num_blocks": 64, "scheduler": {"name": scheduler, "max_num_seqs": 4}}
        requests = [{"id": "A", "prompt": 5, "output": 2, "n": 5}, *SMALL["requests"]]
        requests[1] = {**requests[1], "id": "B"}
        trace, outcome = self.run(settings=settings, requests=requests)
        assert trace[0]["ignored"] == ["A"]
        assert trace[-1]["finished"] == ["B"]
        assert outcome.unfinished == []
        engine = build_memory_engine(REGISTRY, **settings)
        with pytest.raises(RequestError) as caught:
            engine.add(
                Request(id="A", prompt=(1, 2), sampling=SamplingParams(n=5, temperature=1.0))
            )
        assert str(caught.value).endswith(outcome.refused["A"])
        engine.close()

    def test_a_replay_takes_work_in_proportion_to_its_requests(self) -> None:
        """Counted in calls, of which a queue that is gone through in each step makes many."""

        def num_calls(num_requests: int) -> int:
            requests = [
                {"id": str(number), "step": 0, "prompt": 4, "output": 1}
                for number in range(num_requests)
            ]
            settings = {"num_blocks": 64, "scheduler": {"max_num_seqs": 8}}
            values = {**SMALL, "settings": settings, "requests": requests, "max_steps": 10**6}
            scenario = Scenario.model_validate(values)
            count = itertools.count()
            sys.setprofile(lambda *_: next(count))
            try:
                list(replay(scenario, REGISTRY))
            finally:
                sys.setprofile(None)
            return next(count)

        first, second, fourth = (num_calls(number) for number in (100, 300, 700))
        assert fourth - second < 2.2 * (second - first)

    def test_blocks_are_not_made_before_they_are_written(self) -> None:
        settings = {"num_blocks": 1_000_000, "block_size": 10**12, "max_model_len": 2048}
        assert len(self.trace(settings=settings)) == 2

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"executor": "local", "model": "nowhere"}, "leave `executor` out"),
            ({"async_scheduling": True}, "leave `async_scheduling` out"),
            ({"num_blocks": 10**12}, "4,000,000 blocks at most"),
            ({"num_host_blocks": 10**12}, "4,000,000 blocks at most"),
            ({"num_blokcs": 3}, "num_blokcs"),
        ],
        ids=str,
    )
    def test_what_a_replay_cannot_do(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            self.trace(settings={**SMALL["settings"], **changes})

    @pytest.mark.parametrize(
        ("scheduler", "over"),
        [
            ("token_budget", None),
            ("prefill_or_decode", None),
            ("token_budget", "refuse"),
            ("token_budget", "hold"),
        ],
    )
    def test_a_live_engine_logs_the_same(
        self, tmp_path: Path, scheduler: str, over: str | None
    ) -> None:
        settings: dict[str, Any] = {
            "num_blocks": 7,
            "block_size": 2,
            "num_host_blocks": 6,
            "max_model_len": 64,
            "scheduler": scheduler,
            "preemption": "auto",
        }
        if over is not None:
            settings["admission"] = {"name": "token_bucket", "rate": 0.1, "burst": 2, "over": over}
        prompts = {"A": "0:5", "B": "0:4 9:12", "C": "20:23"}
        requests = [
            {"id": name, "prompt": prompt, "output": 6, "step": step, "n": 1 + (name == "C")}
            for step, (name, prompt) in enumerate(prompts.items())
        ]
        scenario = Scenario.model_validate(
            {"name": "live", "settings": settings, "requests": requests}
        )
        path = tmp_path / "new" / "decisions.jsonl"
        engine = build_memory_engine(
            REGISTRY, **settings, observers=[{"name": "decision_log", "path": str(path)}]
        )
        engine.executor.sample = (  # type: ignore[attr-defined]
            lambda new, tokens, index: hash((new.request_id, index, len(tokens)))
        )
        engine.clock = lambda: float(engine.num_steps)  # on which holds are not skipped
        workload = tuple(
            (
                number,
                Request(
                    id=request.id,
                    prompt=tuple(chain.from_iterable(request.prompt)),
                    sampling=SamplingParams(n=request.n, max_tokens=request.output),
                    arrival=float(number),
                ),
            )
            for number, request in enumerate(scenario.asked)
        )
        serve(engine, Workload(workload))
        engine.close()
        expected = list(replay(scenario, REGISTRY))
        shown = {
            None: any(step["preempted"] or step["swapped_out"] for step in expected),
            "refuse": expected[2]["ignored"] == ["C"],
            "hold": any(step["waiting"] and not step["running"] for step in expected),
        }
        assert shown[over]
        logged = read_traces(path)[""]
        assert first_difference(logged, expected) is None
        assert [tuple(each) for each in logged] == [KEYS] * len(expected)
        assert [each["time"] for each in logged] == [each["time"] for each in expected]

    def test_a_log_that_cannot_be_written_is_a_settings_error(self, tmp_path: Path) -> None:
        write(tmp_path / "file", "")
        observers = [{"name": "decision_log", "path": str(tmp_path / "file" / "log.jsonl")}]
        with pytest.raises(SettingsError, match=r"decision_log\.path: .* cannot be written: "):
            build_memory_engine(REGISTRY, observers=observers)


class TestTraces:
    def test_lines_by_scenario(self, tmp_path: Path) -> None:
        lines = [
            {"scenario": "a", **line(0)},
            {"scenario": "b", **line(0)},
            {"scenario": "a", **line(1)},
        ]
        path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
        assert read_traces(path) == {"a": [line(0), line(1)], "b": [line(0)]}

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "holds no step"),
            ("hello", "line 1"),
            ('{"step": 0}', "line 1, is not a step of a trace: scheduled: field required"),
            ("[1, 2]\n[3]", "line 1, is not a step of a trace: it is not a mapping"),
            ('{"scenario": {}, "trace": "hi"}', "a trace is a list of steps"),
            *(
                (json.dumps(line() | change), message)
                for change, message in (
                    ({"version": 3}, "version: 3 is none that can be read; there are 1 and 2"),
                    ({"version": True}, "version: True is none"),
                    ({"time": -1.0}, "time: "),
                    ({"seconds": "1"}, "seconds: "),
                    ({"hits": {"A": 3}}, "hits.A: "),
                    ({"evicted": ["3"]}, "evicted.0: "),
                )
            ),
            *(
                (
                    json.dumps({name: value for name, value in line().items() if name != key}),
                    f"not a step of a trace: {key}: field required",
                )
                for key in ("evicted", "hits", "time", "seconds", "idle")
            ),
        ],
    )
    def test_what_is_no_trace(self, tmp_path: Path, content: str, message: str) -> None:
        path = write(tmp_path / "t.jsonl", content)
        with pytest.raises(SettingsError, match=message) as caught:
            read_traces(path)
        assert str(path) in str(caught.value)

    def test_version_1_is_read_and_compared_by_the_keys_of_both(self, tmp_path: Path) -> None:
        old = in_version(line(), 1)
        assert list(old) == ["step", *DECISIONS[: DECISIONS.index("free_blocks") + 1]]
        path = write(tmp_path / "old.jsonl", json.dumps(old))
        assert read_traces(path) == {"": [old]}
        assert (version_of([old]), version_of([line()]), version_of([])) == (1, 2, 2)
        assert differing_keys(old, line(evicted=[1], hits={"A": [2]})) == []
        assert differing_keys(line(free_blocks=1), old) == ["free_blocks"]
        shown = list(side_by_side(("old", "new"), (old, line(evicted=[1], free_blocks=1))))
        assert [row.split()[1] for row in shown if row.startswith("  *")] == ["free_blocks"]
        assert not any("evicted" in row for row in totals(("a", "b"), ([old], [line()])))

    def test_times_are_no_decisions(self) -> None:
        assert differing_keys(line(), line(time=9.0, seconds=3.0, idle=1.0)) == []

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot read"):
            read_traces(tmp_path / "nowhere.jsonl")

    def test_every_key_counts_and_the_order_of_the_batch(self) -> None:
        for key in ("step", *DECISIONS):
            assert differing_keys(line(), line() | {key: "other"}) == [key]
        assert differing_keys({**line(), "new": 1}, {**line(), "new": 2}) == ["new"]
        one, other = {"A": 1, "B": 1}, {"B": 1, "A": 1}
        assert differing_keys(line(scheduled=one), line(scheduled=other)) == ["scheduled"]
        assert differing_keys(line(cached=one), line(cached=other)) == []

    def test_first_difference(self) -> None:
        ours = [line(0), line(1), line(2)]
        assert first_difference(ours, ours) is None
        found = first_difference(ours, [line(0), line(1, free_blocks=3), line(2, free_blocks=4)])
        assert found is not None
        assert (found.step, found.keys, found.before) == (1, ("free_blocks",), line(0))
        for pair in ((ours, ours[:2]), (ours[:2], ours)):
            found = first_difference(*pair)
            assert found is not None
            assert (found.step, found.keys) == (2, ())
            assert (found.first is None) != (found.second is None)
        found = first_difference([], ours)
        assert found is not None
        assert (found.step, found.before) == (0, None)


def test_traces_that_are_matched_by_name_are_missed_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.jsonl", json.dumps(line()))
    named = [json.dumps({"scenario": name, **line()}) for name in ("a", "b")]
    two = write(tmp_path / "two.jsonl", "\n".join(named))
    assert main(["diff", str(one), str(two)], {"PATH": ""}) == 2
    said = capsys.readouterr().err
    assert "only one of the two files has a trace of no name, a, b;" in said
    assert "matched by the scenario name" in said


class TestSideBySide:
    def test_a_star_marks_what_differs(self) -> None:
        ours = line(3, scheduled={"A": 1, "B": 2}, running=["A", "B"], waiting=["C"])
        theirs = line(3, scheduled={"A": 1}, running=["A"], waiting=["C"], preempted=["B"])
        shown = list(side_by_side(("one", "other"), (ours, theirs)))
        marked = {row.split()[1]: row.split()[2:] for row in shown if row.startswith("  *")}
        assert marked == {
            "scheduled": ["A:1", "B:2", "A:1"],
            "preempted": ["-", "B"],
            "running": ["A", "B", "A"],
        }
        assert shown[0].split() == ["one", "other"]
        assert any(row.split() == ["waiting", "C", "C"] for row in shown)

    def test_of_long_queues_what_differs_is_shown(self) -> None:
        names = [f"r{number}" for number in range(40)]

        def shown(others: list[str]) -> str:
            lines = (line(running=names), line(running=others))
            (row,) = (row for row in side_by_side(("a", "b"), lines) if "running" in row)
            return row

        lacking = shown([*names[:20], *names[21:], "new"])
        assert " ".join(lacking.split()) == "* running r20 and 39 in both new and 39 in both"
        turned = shown([*names[:30], *reversed(names[30:])])
        assert "from index 30: r30 r31" in turned
        assert "from index 30: r39 r38" in turned

    def test_totals_count_what_happened(self) -> None:
        trace = [line(0, scheduled={"A": 5}, cached={"A": 4}), line(1, preempted=["A", "B"])]
        shown = [row.split() for row in totals(("one", "other"), (trace, trace[:1]))]
        assert ["steps", "2", "1"] in shown
        assert ["tokens", "5", "5"] in shown
        assert ["cached", "4", "4"] in shown
        assert ["preempted", "2", "0"] in shown
        assert not any("swapped_out" in row for row in shown)


class TestMistakesInFiles:
    """Each has its line, and a suggestion where there is one; as in settings files."""

    @pytest.mark.parametrize(
        ("text", "messages"),
        [
            (
                "name: a\nsettings:\n  num_blocks: 6\nrequests:\n  - id: A\n    promt: 3\n"
                "    output: 0\n",
                (
                    "requests.0.promt: no such key; did you mean 'prompt'? (line 6)",
                    "requests.0.prompt: give it (line 5)",
                    "requests.0.output: Input should be greater than 0, not 0 (line 7)",
                ),
            ),
            (
                "name: a\nsettings: {num_blocks: 6}\nrequests:\n- {id: A, prompt: 1, output: 1}\n"
                "- {id: B, prompt: 1, output: 1, follows: C}\n",
                ("'B' follows 'C', which no request above it is called (line 5)",),
            ),
            (
                "name: a\nsettings: {num_blocks: 6}\nprefixes: {one: 3}\nrequests:\n"
                "- id: A\n  prompt: 1\n  prefix: onn\n  output: 1\n",
                ("`prefixes` does not have; did you mean 'one'? (line 7)",),
            ),
            (
                "name: a\nsettings: {num_blocks: 6}\nworkload:\n  lengths: {prompt: 1, output: 1}\n"
                "  arrivals:\n    poison: {rate: 1}\n",
                (
                    "workload.arrivals: no kind is called 'poison'; did you mean 'poisson'?"
                    " (line 6)",
                ),
            ),
        ],
    )
    def test_of_a_scenario(self, tmp_path: Path, text: str, messages: tuple[str, ...]) -> None:
        path = tmp_path / "a.yaml"
        path.write_text(text, "utf-8")
        with pytest.raises(SettingsError) as caught:
            read_case(path)
        assert str(caught.value).startswith(f"{path} is not a scenario: ")
        for message in messages:
            assert message in str(caught.value)

    def test_of_a_case_in_json(self, tmp_path: Path) -> None:
        request = {"id": "A", "prompt": 3, "outputs": 1}
        scenario = {"name": "a", "settings": {"num_blocks": 6}, "requests": [request]}
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"scenario": scenario}, indent=1), "utf-8")
        line = path.read_text("utf-8").splitlines().index('    "outputs": 1') + 1
        with pytest.raises(SettingsError, match=rf"did you mean 'output'\? \(line {line}\)"):
            read_case(path)

    def test_of_the_settings_in_a_scenario(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "a.yaml"
        for settings, message in (
            ("  shceduler: x\n", "did you mean 'scheduler'? ({path}, line 4)"),
            ("  queue_order: fcsf\n", "did you mean 'fcfs'? ({path}, line 4)"),
            (
                "  scheduler:\n    name: token_budget\n    max_num_sqs: 3\n",
                "did you mean 'max_num_seqs'? ({path}, line 6)",
            ),
        ):
            text = f"name: a\nsettings:\n  num_blocks: 6\n{settings}requests: []\n"
            path.write_text(text, "utf-8")
            assert main(["replay", str(path)]) == 2
            assert message.format(path=path) in capsys.readouterr().err


@pytest.mark.parametrize("planned", [False, True])
def test_aborts_that_end_nothing_are_said(
    planned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aborts = [
        {"id": name, "step": step, "planned": planned} for name, step in [("A", 1), ("B", 999)]
    ]
    requests = [{"id": name, "prompt": 5, "output": 4} for name in "AB"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**SMALL, "requests": requests, "aborts": aborts}))
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.count("abort of ") == 1
    assert main(["replay", str(path), "--json"]) == 0
    assert "the abort of B at step 999 had no effect" in capsys.readouterr().err


class TestAbortsOnceAStepIsPlanned:
    @pytest.mark.parametrize("scheduler", SCHEDULERS)
    def test_the_tokens_of_that_step_are_lost_and_its_blocks_come_back(
        self, scheduler: str
    ) -> None:
        requests = [{"id": name, "prompt": 5, "output": 4} for name in "AB"]
        aborts = [{"id": "A", "step": 1, "planned": True}, {"id": "B", "step": 9, "planned": True}]
        settings = {"num_blocks": 8, "block_size": 4, "scheduler": scheduler}
        asked = {**SMALL, "requests": requests, "aborts": aborts, "settings": settings}
        outcome = Outcome()
        trace = list(replay(Scenario.model_validate(asked), REGISTRY, outcome))
        assert trace[0]["running"] == ["A", "B"]
        assert list(trace[1]["scheduled"]) == ["A", "B"]
        assert (trace[1]["running"], trace[1]["finished"]) == (["B"], [])
        assert (trace[-1]["finished"], trace[-1]["free_blocks"]) == (["B"], 8)
        assert {each.id: each.num_output for each in outcome.requests} == {"A": 1, "B": 4}
        assert outcome.errors == {}

    def test_one_whose_step_computes_nothing_is_aborted_all_the_same(self) -> None:
        requests = [{"id": "A", "prompt": 5, "output": 4}, {"id": "B", "prompt": 30, "output": 4}]
        aborts = [{"id": "A", "step": 0, "planned": True}, {"id": "B", "step": 1, "planned": True}]
        asked = {**SMALL, "requests": requests, "aborts": aborts, "max_steps": 6}
        trace = list(replay(Scenario.model_validate(asked), REGISTRY))
        assert not trace[-1]["running"] + trace[-1]["waiting"]
