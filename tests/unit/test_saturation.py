"""Labels of runs that are given less, or more, than can be served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paged_core.cli import OK, main
from paged_plugins.lab.runs.queueing import Saturation, together
from paged_plugins.lab.runs.run_record import RunRecord
from unit.lab_runs import served


def queue(load: float, count: int, seed: int = 0) -> RunRecord:
    """Requests of a second each, served one by one, of which ``load`` arrive a second."""
    ended, requests = 0.0, []
    arrivals = np.random.default_rng(seed).exponential(1 / load, count).cumsum().tolist()
    for number, arrival in enumerate(arrivals):
        ended = max(ended, arrival) + 1
        requests.append(served(str(number), arrival, ended - 1, ended))
    return RunRecord(requests=requests)


@pytest.mark.parametrize(
    ("load", "label"), [(0.2, "under"), (0.6, "under"), (1, "near"), (1.25, "over"), (3, "over")]
)
def test_the_growth_of_a_queue_gives_its_label(load: float, label: str) -> None:
    some = [Saturation.of(queue(load, 1000, seed)) for seed in range(6)]
    found = together([each for each in some if each is not None])
    assert found is not None
    assert found.label == label
    assert found.low - 0.01 <= max(0.0, 1 - 1 / load) <= found.high + 0.01


@pytest.mark.parametrize(
    ("count", "quantile"), [(4, 3.182), (6, 2.571), (10, 2.262), (20, 2.093), (101, 1.984)]
)
def test_the_interval_of_several_runs_is_that_of_student(count: int, quantile: float) -> None:
    growths = np.arange(count) / 100
    some = [Saturation(growth=each, low=each, high=each) for each in growths.tolist()]
    found = together(some)
    assert found is not None
    error = growths.std(ddof=1) / np.sqrt(count)
    assert (found.high - found.low) / 2 == pytest.approx(quantile * error, rel=0.01)


def test_too_few_requests_and_those_that_arrive_at_once_have_none() -> None:
    assert Saturation.of(RunRecord()) is None
    assert Saturation.of(queue(1, 30)) is None
    at_once = queue(1, 1000)
    for each in at_once.requests:
        object.__setattr__(each, "arrival", 0.0)
    assert Saturation.of(at_once) is None


@pytest.mark.heavy
def test_what_is_over_is_marked_in_tables_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "busy.yaml"
    path.write_text(
        "requests: 200\nlengths: {prompt: 40, output: 12}\narrivals: {poisson: {rate: 30}}"
    )
    kept, page = tmp_path / "kept", tmp_path / "page.html"
    vary = ["--vary", "scheduler.max_num_seqs=2,64", "--measure", "ttft_p50", "--seeds", "2"]
    given = ["compare", str(path), *vary, "--workers", "1"]
    assert main([*given, "--output", str(kept), "--html", str(page)], {}) == OK
    printed = " ".join(capsys.readouterr().out.split())
    arm, other = "scheduler.max_num_seqs=2", "scheduler.max_num_seqs=64"
    assert f"busy: {arm}: over what can be served: the queue grows by " in printed
    assert f"{other} {arm} (over) TTFT p50" in printed
    assert f"over what can be served: {arm}" in page.read_text()
    assert main(["lab", "report", str(kept)], {}) == OK
    assert "(over)" not in capsys.readouterr().out  # two seeds decide nothing
    assert f"over what can be served: {arm}" in (kept / "report.md").read_text().replace("\\", "")
    assert main([*given, "--json"], {}) == OK
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {(each["arm"], each["saturation"]["label"]) for each in runs} == {
        (arm, "over"),
        (other, "under"),
    }
