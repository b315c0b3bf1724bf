"""``paged-core simulate``, ``calibrate`` and ``lab validate``, as they are given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paged_core.cli import main
from paged_plugins.lab.calibration.scenes import Scene
from paged_plugins.lab.commands import calibrate

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]
BLOCKS = ("--num-blocks", "64")
SMALL = """\
name: small
requests: 6
arrivals: {poisson: {rate: 2}}
lengths: {prompt: {uniform: [10, 60]}, output: {uniform: [4, 12]}}
"""


def run(*argv: str) -> int:
    return main([*argv], {"PATH": ""})


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, "utf-8")
    return str(path)


def simulated(capsys: Capture, *argv: str) -> dict[str, Any]:
    assert run("simulate", *argv, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_is_printed(capsys: Capture, workload: str) -> None:
    assert run("simulate", workload, "--seed", "3") == 0
    out = capsys.readouterr().out
    assert "small, seed 3: 6 requests on executor simulated" in out
    assert "TTFT p50" in out
    assert "Memory while busy, of 29,206 blocks of 16 tokens" in out
    assert "internal fragmentation" in out


def test_settings_are_those_of_an_engine(capsys: Capture, workload: str) -> None:
    slow = simulated(capsys, workload, "--cost-model.device", "l4")
    fast = simulated(capsys, workload, "--cost-model.device", "h200")
    assert slow["executor"] == "simulated"
    assert slow["requests"] == fast["requests"] == 6
    assert slow["measures"]["tpot_ms_p50"] > 5 * fast["measures"]["tpot_ms_p50"]


def test_equal_seeds_measure_the_same_and_others_do_not(capsys: Capture, workload: str) -> None:
    one, other, third = (simulated(capsys, workload, "--seed", seed) for seed in ("1", "1", "2"))
    assert one["measures"] == other["measures"] != third["measures"]


def test_a_limit_makes_goodput(capsys: Capture, workload: str) -> None:
    found = simulated(capsys, workload, "--slo-ttft-ms", "0.001")
    assert found["measures"]["goodput_per_s"] == 0
    assert "goodput_per_s" not in simulated(capsys, workload)["measures"]


@pytest.mark.parametrize("replicas", [(), ("--replicas", "2")])
def test_requests_that_are_refused_are_explained(
    capsys: Capture, workload: str, replicas: tuple[str, ...]
) -> None:
    assert run("simulate", workload, *replicas, "--max-model-len", "40") == 0
    out = capsys.readouterr().out
    assert re.search(
        r"1 request, refused or ignored, the first: request '\d' has a prompt of \d\d tokens", out
    )
    assert "TTFT p50" in out
    assert run("simulate", workload, *replicas, "--max-model-len", "8") == 1
    out = capsys.readouterr().out
    assert "6 requests, refused or ignored, the first: request '0'" in out
    assert "TTFT p50" not in out, "nothing was served"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--executor", "memory"], "takes real time; give --real"),
        (["--executor", "simulated", "--real"], "runs no model"),
        (["--slo-ttft-ms", "nan"], "Input should be greater than or equal to 0"),
        (["--slo-tpot-ms", "inf"], "leave it out for no limit"),
        (["--cost-model.name", "linear", "--cost-model.fixed", "1e308"], "a step would take"),
        (["--cost-model.compute-efficiency", "1e-300"], "a step would take"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    capsys: Capture, workload: str, options: list[str], reason: str
) -> None:
    status = run("simulate", workload, *options)
    assert reason in capsys.readouterr().err
    assert status == (1 if "would take" in reason else 2), "the requests of a run failed"


def test_real_time_passes_on_an_executor_without_a_model(
    capsys: Capture, workload: str, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    log = ("--requests", str(path))
    found = simulated(capsys, workload, "--executor", "memory", "--real", *log)
    assert len(path.read_text("utf-8").splitlines()) == 6
    assert found["executor"] == "memory"
    assert found["measures"]["makespan_s"] > 1, "six requests at two a second were waited for"


def busy(folder: Path) -> str:
    """Return a file of requests that come at once, and that one of two at a time evicts."""
    path = folder / "busy.jsonl"
    rows = [{"id": str(number), "at": 0, "prompt": 60, "output": 5} for number in range(6)]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


SMALL_CACHE = ("--num-blocks", "12", "--scheduler.max-num-seqs", "2")


def observed(path: Path, *names: str) -> tuple[str, str]:
    return "--observers", json.dumps(
        [{"name": name, "path": str(path.with_stem(f"{path.stem}-{name}"))} for name in names]
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_real_run_is_counted_and_observed_alone(capsys: Capture, tmp_path: Path) -> None:
    """Without its warm-up: it does what a simulated one does."""
    workload, counts = busy(tmp_path), ("evictions", "steps", "preemptions", "hit_rate")
    found = []
    for name, executor in (("real", ("--real", "--executor", "memory")), ("virtual", ())):
        log = observed(tmp_path / f"{name}.jsonl", "decision_log", "block_map")
        measured = simulated(capsys, workload, *executor, *SMALL_CACHE, *log)["measures"]
        found.append({each: measured[each] for each in counts})
    assert found[0] == found[1]
    assert found[0]["evictions"] > 0
    real, virtual = (tmp_path / f"{name}-decision_log.jsonl" for name in ("real", "virtual"))
    assert run("diff", str(real), str(virtual)) == 0
    assert len(lines(real)) == found[0]["steps"]
    maps = [lines(tmp_path / f"{name}-block_map.jsonl") for name in ("real", "virtual")]
    for line in [line for each in maps for line in each]:
        line.pop("time", None)
    assert maps[0] == maps[1]
    assert not list(tmp_path.glob("*.1"))


@pytest.mark.parametrize("searching", [(), ("--load", "0.5"), ("--cache", "0.5")])
def test_observers_see_one_run_and_its_file_is_kept_by_the_next(
    capsys: Capture, tmp_path: Path, workload: str, searching: tuple[str, ...]
) -> None:
    log = observed(tmp_path / "d.jsonl", "decision_log", "step_log")
    path = tmp_path / "d-decision_log.jsonl"
    steps = [
        simulated(capsys, workload, *searching, *log, "--seed", seed)["measures"]["steps"]
        for seed in ("0", "1")
    ]
    assert [len(lines(each)) for each in (path.with_name(f"{path.name}.1"), path)] == steps
    assert len(lines(tmp_path / "d-step_log.jsonl")) == sum(steps)


# ---------------------------------------------------------------------- a cluster


def test_a_cluster_is_printed(capsys: Capture, workload: str) -> None:
    assert run("simulate", workload, "--replicas", "8", "--router", "power_of_two", *BLOCKS) == 0
    out = capsys.readouterr().out
    assert "small, seed 0: 6 requests on 8 replicas behind power_of_two" in out
    assert "TTFT p50" in out
    assert "busiest replica over mean" in out
    assert "..." in out, "of eight replicas the three of each end are shown"


def test_a_document_has_every_replica(capsys: Capture, workload: str) -> None:
    found = simulated(capsys, workload, *BLOCKS, "--replicas", "3")
    assert found["router"] == "round_robin"
    assert found["requests"] == 6
    assert [each["requests"] for each in found["replicas"]] == [2, 2, 2]
    assert found["measures"]["replica_jain"] > 0.5


def test_one_replica_measures_what_one_engine_does(capsys: Capture, workload: str) -> None:
    alone = simulated(capsys, workload, *BLOCKS)["measures"]
    found = simulated(capsys, workload, *BLOCKS, "--replicas", "1")["measures"]
    assert found["makespan_s"] == alone["makespan_s"]
    for name in ("ttft_ms_mean", "tpot_ms_mean", "e2e_ms_mean", "throughput_tokens_per_s"):
        assert found[name] == pytest.approx(alone[name])


def test_requests_are_written_to_a_file(capsys: Capture, workload: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    simulated(capsys, workload, *BLOCKS, "--replicas", "2", "--requests", str(path))
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(rows) == 6
    assert {row["replica"] for row in rows} == {0, 1}


def test_each_replica_has_files_of_its_own(capsys: Capture, tmp_path: Path) -> None:
    log = observed(tmp_path / "d.jsonl", "decision_log", "metrics")
    found = simulated(capsys, busy(tmp_path), *BLOCKS, "--replicas", "3", *log)["replicas"]
    for number, replica in enumerate(found):
        trace = lines(tmp_path / f"d-decision_log@{number}.jsonl")
        assert [line["step"] for line in trace] == [*range(replica["steps"])]
        text = (tmp_path / f"d-metrics@{number}.jsonl").read_text("utf-8")
        (total,) = re.findall(r"vllm:generation_tokens_total\{.*\} (.+)", text)
        assert float(total) == replica["generated_tokens"] == 10
    assert len(list(tmp_path.glob("d-*"))) == 6


def test_one_replica_has_the_files_that_are_named(capsys: Capture, tmp_path: Path) -> None:
    simulated(
        *(capsys, busy(tmp_path), *BLOCKS, "--replicas", "1"),
        *observed(tmp_path / "d.jsonl", "decision_log"),
    )
    assert [each.name for each in tmp_path.glob("d-*")] == ["d-decision_log.jsonl"]


# ---------------------------------------------------------------------- a model

MODEL = ("--model", "demo", "--num-blocks", "300", "--cpu-time")
FEW = [
    Scene(batch=batch, context=context, late=8, shares=shares, output=4)
    for batch, context, shares in ((1, 16, False), (2, 40, True), (4, 24, False), (1, 90, True))
]

SWAPS = [Scene(batch=3, context=250, output=9), Scene(batch=2, context=380, output=9)]


def calibrated(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    """Measure a few steps of the shipped model; return the name of the file of weights."""
    monkeypatch.setattr(calibrate, "choose_scenes", lambda engine, steps: FEW)
    monkeypatch.setattr(calibrate, "choose_swap_scenes", lambda engine: SWAPS)
    assert run("calibrate", *MODEL, "--output", str(path), "--repeats", "1") == 0
    return str(path)


def test_a_model_is_calibrated(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = calibrated(monkeypatch, tmp_path / "demo.yaml")
    assert "Errors of the prediction" in capsys.readouterr().out
    written = yaml.safe_load(Path(path).read_text("utf-8"))
    assert written["measured"]["clock"] == "processor"
    assert (written["max_model_len"], written["num_tokens"]) == (1024, 4800)
    assert written["weights"]["fixed"] > 0
    assert written["weights"]["per_swapped_block"] > 0
    assert list(written["unmeasured"]) == ["wake", "per_copied_block"]


def test_what_cannot_be_measured_is_said(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    few = ("--executor", "memory", "--num-blocks", "300", "--max-model-len", "600")
    command = ["calibrate", *few, "--cpu-time", "--repeats", "1", "--steps", "50"]
    assert run(*command, "--block-allocator", "contiguous", "--output", str(path)) == 0
    unmeasured = yaml.safe_load(path.read_text("utf-8"))["unmeasured"]
    assert {"per_copied_block", "per_swapped_block"} <= set(unmeasured)
    assert "per_copied_block was not measured, and takes no time" in capsys.readouterr().out


@pytest.mark.long
def test_a_model_is_compared_with_its_simulation(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = calibrated(monkeypatch, tmp_path / "demo.yaml")
    capsys.readouterr()
    few = ("--num-requests", "4", "--repeats", "1", "--tolerance", "1000", "--json")
    assert run("lab", "validate", path, *MODEL, *few) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["workload"] for row in rows} == {"at_once", "over_time", "conversations", "bursts"}
    assert all(0.02 < row["simulated"] / row["real"] < 50 for row in rows)


def test_a_prediction_that_is_too_far_off_fails(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from paged_plugins.lab.commands.calibrate import Check

    far = Check(workload="at_once", measure="ttft_ms_p50", runs=(9.0, 10.0, 10.5), simulated=12.0)
    monkeypatch.setattr(calibrate, "validate", lambda *args, **more: [far])
    assert run("lab", "validate", str(tmp_path / "absent.yaml")) == 1
    out = capsys.readouterr().out
    assert "15.0%" in out
    assert "+20.0%" in out
    assert "0 of 1 within 10%" in out
    assert run("lab", "validate", "--tolerance", "0.3") == 0


@pytest.mark.parametrize("command", [["calibrate", "--output"], ["lab", "validate"]])
def test_several_runs_write_no_files_of_observers(
    capsys: Capture, tmp_path: Path, command: list[str]
) -> None:
    log = observed(tmp_path / "d.jsonl", "decision_log")
    assert run(*command, str(tmp_path / "w.yaml"), *MODEL, *log) == 2
    assert "leave observers out: all runs would write the same" in capsys.readouterr().err
    assert not list(tmp_path.glob("d*"))


def test_a_simulation_is_not_calibrated(capsys: Capture, tmp_path: Path) -> None:
    assert run("calibrate", "--executor", "simulated", "--output", str(tmp_path / "x.yaml")) != 0
    assert "executor 'simulated' runs no model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "--output"],
        ["compare", "chat", "--vary", "evictor=lru,mru", "--html"],
    ],
)
def test_a_folder_that_is_missing_is_noticed_before_anything_runs(
    capsys: Capture, tmp_path: Path, command: list[str]
) -> None:
    assert main([*command, str(tmp_path / "missing" / "file")]) == 2
    out, err = capsys.readouterr()
    assert "there is no folder" in err
    assert not out


def test_the_workload_is_not_overwritten(capsys: Capture, workload: str) -> None:
    before = Path(workload).read_text()
    assert main(["simulate", workload, "--requests", workload]) == 2
    assert "that is the workload" in capsys.readouterr().err
    assert Path(workload).read_text() == before


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "chat", "--replicas", "2"],
        ["compare", "chat", "--vary", "evictor=lru,mru", "--replicas", "2"],
        ["lab", "run", "study.yaml"],
    ],
)
def test_several_replicas_without_the_plugin_of_routers(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """The rest of the lab works; replicas are refused with what is missing, and the remedy."""
    monkeypatch.chdir(tmp_path)
    axes = {"evictor": ["lru", "mru"]}
    Path("study.yaml").write_text(yaml.dump({"axes": axes, "workloads": ["chat"], "replicas": 2}))
    assert main([*command, "--block-plugin", "replicas"]) == 2
    err = capsys.readouterr().err
    assert "the slot 'router' is missing: the plugin 'replicas' declares it; do not block" in err
    assert "plugin 'replicas' (paged-core" in err
    if command[0] == "simulate":
        assert main([*command[:2], "--block-plugin", "replicas"]) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--num-blocks", "2000000"], "num_blocks=2,000,000 is more than the "),
        (["--max-model-len", "300000"], "max_model_len=300,000 is more than the 131,072 tokens"),
        (["--num-blocks", "64", "--max-model-len", "4096"], ""),
        (["--num-blocks", "64", "--cost-model.model", "llama-3.1-70b"], "note: cost_model"),
    ],
    ids=lambda each: each[1] if isinstance(each, list) else "",
)
def test_caches_and_lengths_that_the_machine_cannot_have_are_told_of(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["simulate", "alpaca"],
        ["compare", "alpaca", "--vary", "victim=newest,most_blocks", "--seeds", "1"],
    ):
        status = main([*command, *options, "--cost-model.device", "l4"], {})
        told = capsys.readouterr().err
        assert status == 0, told
        assert says in told
        assert bool(says) == ("note:" in told)
