"""Requests that end with an error make their run no result: it is named, nothing is concluded
about it, the exit status is 1, and what others gave stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paged_core.cli import FAILED, OK, main
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.report.formats import html, markdown
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.comparison import Comparison
from paged_policies.orders.sjf import SjfOrder
from unit.lab_runs import asks, run
from unit.studies import ABLATION, WORKLOAD

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]
SETTINGS: dict[str, Any] = {"profile": "vllm-v1", "num_blocks": 64}
HERE = ("--workers", "1")
"""Where the policies are that fail."""
OPTIONS = ("--profile", "vllm-v1", "--num-blocks", "64")
TYPO = "queue_order 'sjf' raised NameError: a typo"


@pytest.fixture(autouse=True)
def fifth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the order ``sjf`` raise at request 5."""
    key = SjfOrder.key

    def fails(self: SjfOrder, group: SequenceGroup, now: float, /) -> Any:
        if group.id == "5":
            raise NameError("a typo")
        return key(self, group, now)

    monkeypatch.setattr(SjfOrder, "key", fails)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(WORKLOAD), "utf-8")
    return str(path)


def paged(*argv: str) -> int:
    return main([*argv], {"PATH": ""})


def failures(text: str) -> list[str]:
    """Return the parts of lines that say how many requests failed, and why."""
    told = [line for line in text.splitlines() if TYPO in line and "[error " not in line]  # no log
    return [line.partition("ended with an error")[2] for line in told]


def test_a_simulation(capsys: Capture, workload: str, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    assert paged("simulate", workload, *OPTIONS, "--queue-order", "sjf") == FAILED
    out = capsys.readouterr().out
    told = next(line for line in out.splitlines() if TYPO in line)
    assert told.startswith("failed: ")
    assert " of 8 requests ended with an error, the first: " in told
    assert told.endswith("; what follows is of the others, and no measure of these settings")
    for cluster in ((), ("--replicas", "2")):
        options = (*OPTIONS, "--queue-order", "sjf", "--requests", str(log), "--json", *cluster)
        assert paged("simulate", workload, *options) == FAILED
        found = json.loads(capsys.readouterr().out)
        reasons = [json.loads(line)["finish_reason"] for line in log.read_text().splitlines()]
        assert found["errors"] == reasons.count("error") > 0
        assert TYPO in found["error"]
        assert found["failure"] is None
    assert paged("simulate", workload, *OPTIONS, "--json") == OK
    assert json.loads(capsys.readouterr().out)["errors"] == 0


def test_what_is_refused_is_no_error_and_is_told_beside_errors(
    capsys: Capture, workload: str
) -> None:
    short = ("--max-model-len", "45")
    assert paged("simulate", workload, *OPTIONS, *short, "--json") == OK
    assert json.loads(capsys.readouterr().out)["errors"] == 0
    mixed = run([asks("5", 8, 2), asks("6", 900, 2)], queue_order="sjf", max_model_len=64)
    assert (mixed.num_errors, len(mixed.requests)) == (1, 2)
    assert TYPO in str(mixed.error)
    assert "has a prompt of 900 tokens" in str(mixed.failure)


def test_a_comparison_says_nothing_about_an_arm_that_failed(
    capsys: Capture, workload: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    options = (*OPTIONS, *HERE, "--html", str(page))
    assert paged("compare", workload, "--vary", "queue_order=fcfs,sjf,edf", *options) == FAILED
    out = capsys.readouterr().out
    assert "equal in all arms that did not fail: throughput, hit rate, " in out
    start = "queue_order=sjf failed, so nothing is concluded about it: "
    said = next(line for line in out.splitlines() if line.startswith(start))
    assert " of 48 requests ended with an error" in said
    assert out.count("queue_order=sjf") == 1, "in no row"
    source = page.read_text("utf-8")
    assert ">failed<" in source
    assert "queue_order=sjf failed, so nothing" in source
    assert paged("compare", workload, "--vary", "queue_order=fcfs,sjf,edf", *options, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert {each["arm"] for each in found["differences"]} == {"queue_order=edf"}
    told = {each["arm"]: each["failed"] for each in found["arms"]}
    assert TYPO in told.pop("queue_order=sjf")
    assert set(told.values()) == {None}
    assert len(found["runs"]) == 18


def write_study(folder: Path, **changes: Any) -> str:
    path = folder / "study.yaml"
    axes = {"queue_order": ["fcfs", "sjf"], "victim": ["newest", "fewest_computed"]}
    path.write_text(yaml.safe_dump(ABLATION | {"axes": axes} | changes), "utf-8")
    return str(path)


def repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SjfOrder, "key", lambda self, group, now: group.arrival)


def test_a_study_is_told_and_failed_runs_are_tried_again(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["lab", "run", write_study(tmp_path), "--output", str(tmp_path / "results")]
    command += HERE
    for done in ("", "4 done before"):
        assert paged(*command) == FAILED
        err = capsys.readouterr().err
        assert done in err
        assert "failed: queue_order=sjf, small, seed 0: " in err
        assert len(failures(err)) == 2
        assert "2 runs failed; run this again to retry" in err
    results = load_results(tmp_path / "results")
    assert list(results.failures) == ["queue_order=sjf"]
    assert TYPO in str(results.failures["queue_order=sjf"])
    assert len(results.runs) == 6
    repaired(monkeypatch)
    assert paged(*command) == OK
    assert not load_results(tmp_path / "results").failures


def reports(results: Results) -> list[str]:
    told = Comparison.of(results)
    return [html(told), markdown(told)]


def test_a_report_shows_a_failed_arm_as_failed(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    study = write_study(tmp_path, seeds=6)
    assert paged("lab", "run", study, "--output", str(folder), *HERE) == FAILED
    results = load_results(folder)
    for page in reports(results):
        assert "failed, so nothing is concluded about it" in page
    table = [line for line in markdown(Comparison.of(results)).splitlines() if "TTFT p50" in line]
    assert [each.split(" | ")[2] for each in table] == ["failed"]
    assert paged("lab", "report", str(folder)) == FAILED
    out = capsys.readouterr().out
    assert "queue_order=sjf failed, so nothing" in out
    assert out.endswith(f"wrote {folder / 'report.html'}\n"), "the report is written"


def test_a_report_of_a_base_that_failed_has_the_values_of_the_others(tmp_path: Path) -> None:
    axes = {"queue_order": ["sjf", "fcfs"]}
    path = write_study(tmp_path, axes=axes, base={**SETTINGS, "queue_order": "sjf"})
    assert paged("lab", "run", path, "--output", str(tmp_path / "results"), *HERE) == FAILED
    results = load_results(tmp_path / "results")
    assert not Comparison.of(results).differences
    text = markdown(Comparison.of(results))
    row = next(line for line in text.splitlines() if "TTFT p50" in line).split(" | ")
    assert row[1] == "failed"
    assert row[2].split()[1] == "ms"
    assert "nor about what is compared with it" in text
    assert ">failed<" in html(Comparison.of(results))


SCENARIO: dict[str, Any] = {
    "name": "small",
    "settings": {"queue_order": "sjf", "num_blocks": 16},
    "requests": [{"id": name, "prompt": 8, "output": 4} for name in ("4", "5", "6")],
}


@pytest.mark.parametrize("options", [(), ("--json",), ("--requests",)])
def test_a_replay(capsys: Capture, tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO), "utf-8")
    assert paged("replay", str(path), *options) == FAILED
    out, err = capsys.readouterr()
    told = err if "--json" in options else out
    assert "of 3 requests ended with an error, the first: " in told
    assert TYPO in told
    assert out, "what there is of the trace is kept"
    if "--json" in options:
        assert all(json.loads(line) for line in out.splitlines())


def test_traces_of_replays_that_failed_are_told_apart_from_sound_ones(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, traces = tmp_path / "scenario.yaml", [tmp_path / f"{name}.jsonl" for name in "ab"]
    path.write_text(yaml.safe_dump(SCENARIO), "utf-8")

    def recorded(status: int) -> list[Any]:
        assert paged("replay", str(path), "--json") == status
        lines = capsys.readouterr().out
        for each in traces:
            each.write_text(lines, "utf-8")
        return [json.loads(line) for line in lines.splitlines()]

    *before, last = recorded(FAILED)
    assert TYPO in last["failed"]
    assert not any("failed" in line for line in before)
    assert paged("diff", *map(str, traces)) == FAILED
    out = capsys.readouterr().out
    for each in traces:
        assert f"{each} failed: " in out
    assert "equal: " in out
    assert paged("diff", *map(str, traces), "--json") == FAILED
    out, err = capsys.readouterr()
    assert json.loads(out) == {"equal": True}
    assert TYPO in err
    repaired(monkeypatch)
    assert not any("failed" in line for line in recorded(OK))
    assert paged("diff", *map(str, traces)) == OK
    traces[0].write_text(json.dumps({"scenario": SCENARIO, "trace": []}), "utf-8")
    assert paged("diff", str(traces[0]), str(traces[0])) == OK, "there is no last line"


def test_a_replay_that_is_checked(capsys: Capture, tmp_path: Path) -> None:
    path, case = tmp_path / "scenario.yaml", tmp_path / "case.json"
    path.write_text(yaml.safe_dump(SCENARIO), "utf-8")
    assert paged("replay", str(path), "--json") == FAILED
    trace = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    case.write_text(json.dumps({"scenario": SCENARIO, "trace": trace}), "utf-8")
    assert paged("replay", str(case), "--check") == FAILED
    out = capsys.readouterr().out
    assert "1 of 1 traces equal" in out
    assert TYPO in out


def test_a_benchmark_keeps_what_it_has_measured(capsys: Capture, tmp_path: Path) -> None:
    sound, output = tmp_path / "sound.yaml", tmp_path / "rows.jsonl"
    sound.write_text(yaml.safe_dump(WORKLOAD | {"name": "sound", "requests": 4}), "utf-8")
    broken = tmp_path / "broken.yaml"
    broken.write_text(yaml.safe_dump(WORKLOAD | {"name": "broken"}), "utf-8")
    options = ("--executor", "simulated", *OPTIONS, "--queue-order", "sjf", "--repeats", "1")
    options += ("--workload", str(sound), "--workload", str(broken), "--output", str(output))
    assert paged("bench", "throughput", *options) == FAILED
    out, err = capsys.readouterr()
    assert [json.loads(line)["workload"] for line in output.read_text().splitlines()] == ["sound"]
    assert "sound" in out
    assert "not measured: broken" in err
    told = err.splitlines()[-1]
    assert told.startswith("error: request ")
    assert "ended with an error: " in told
    assert TYPO in told
    assert "raise max_model_len" not in told
