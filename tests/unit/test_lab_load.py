"""Capacities that are known, loads and caches as fractions of them, and settings of no effect."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from paged_core.cli import BAD_USAGE, FAILED, OK, main
from paged_core.errors import EngineError, SettingsError
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.commands.options import LIMITED, parse_limits
from paged_plugins.lab.load.capacity import Capacity, Searched, blocks_of, find_capacity, part_of
from paged_plugins.lab.load.steady import SteadyState
from paged_plugins.lab.report.formats import markdown
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.statistics.comparison import Comparison
from paged_plugins.lab.study.arms import BASE
from paged_plugins.lab.study.study import read_study
from paged_plugins.lab.study.unused import OF_MODELS, OF_ROOFLINES
from paged_plugins.lab.tasks.pool import open_runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.lab.tasks.task import run as run_task
from paged_plugins.workloads.distinct_blocks import DistinctBlocks
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.spec import WorkloadSpec, parse_spec
from paged_policies.schedulers.token_budget import TokenBudgetScheduler
from unit.lab_runs import REGISTRY, asks, run, simulated
from unit.studies import write

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]
QUEUE: dict[str, Any] = {
    "name": "queue",
    "requests": 50,
    "arrivals": {"poisson": {"rate": 0.1}},
    "lengths": {"prompt": 4, "output": 5},
}
"""Requests that take five steps each."""


def queue(**changes: Any) -> WorkloadSpec:
    return parse_spec(QUEUE | changes, "queue")


def engine(max_num_seqs: int = 2, **values: Any) -> EngineSettings:
    scheduler = {"name": "token_budget", "max_num_seqs": max_num_seqs}
    return simulated(scheduler=scheduler, **values)


def capacity(
    workload: WorkloadSpec, seeds: Sequence[int] = (0, 1), settings: Any = None, **asked: Any
) -> Capacity:
    searched = Searched(settings=settings or engine(), workload=workload, **asked)
    with open_runner(REGISTRY, workers=1) as runner:
        return find_capacity(searched, seeds, runner)


@pytest.fixture
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load is found from few requests, for tests of what is said of it."""
    monkeypatch.setattr("paged_plugins.lab.load.capacity._LEAST_REQUESTS", 60)
    monkeypatch.setattr("paged_plugins.lab.load.capacity._LEAST_FIRST", 20)


# ---------------------------------------------------------------------- capacity


@pytest.mark.parametrize(
    "rate", [0.1, *(pytest.param(r, marks=pytest.mark.long) for r in (0.01, 10))]
)
def test_the_capacity_of_a_queue_is_what_it_serves_however_the_workload_is_written(
    rate: float,
) -> None:
    """Two requests at a time for five steps of a second each."""
    found = capacity(queue(arrivals={"poisson": {"rate": rate}}))
    assert found.rate == pytest.approx(2 / 5, rel=0.03)
    assert found.written_rate == rate
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.rate <= found.high
    count, fewest, most = found.needed
    assert fewest <= count <= most
    assert (count - 1) * found.rate < rate <= count * found.rate * (1 + 1e-6)


def test_a_cluster_serves_so_many_times_as_much() -> None:
    assert capacity(queue(), num_replicas=3).rate == pytest.approx(3 * 2 / 5, rel=0.05)


def test_rates_are_of_first_requests_where_others_follow() -> None:
    """Three turns of five steps each, with a pause between them."""
    turns = {"conversation": {"turns": 3, "think": 20}}
    found = capacity(queue(prefixes=turns), (0,))
    assert found.rate == pytest.approx(2 / 15, rel=0.1)
    assert found.has_followers
    assert found.low is None


@pytest.mark.usefixtures("_coarse")
def test_equal_seeds_find_equal_capacities_and_each_counts() -> None:
    found = capacity(queue())
    assert capacity(queue()) == found
    assert list(found.rates) == [0, 1]


@pytest.mark.usefixtures("_coarse")
def test_within_limits_the_rate_is_lower_and_they_hold_there() -> None:
    spec, limits = queue(), {"ttft_ms_p99": 8000.0}
    free, found = capacity(spec), capacity(spec, limits=limits)
    assert found.rate < free.rate
    assert found.high is not None
    assert found.rate <= found.high <= (free.high or free.rate)

    def at(rate: float) -> float:
        faster = spec.faster(rate / 0.1).model_copy(update={"requests": found.num_requests})
        ran = run_task(Task(arm="a", settings=engine(), workload=faster, seed=0), REGISTRY)
        assert ran.record is not None
        return SteadyState.of(ran.record, faster, 0).measures()["ttft_ms_p99"]

    assert at(found.rates[0]) <= 8000
    assert at(1.02 * found.rates[0]) > 8000


@pytest.mark.usefixtures("_coarse")
def test_a_limit_that_no_rate_meets_is_refused() -> None:
    with pytest.raises(SettingsError, match="no rate is low enough"):
        capacity(queue(), (0,), limits={"ttft_ms_p50": 1.0})
    with pytest.raises(SettingsError, match="no request of the workload has it; give its"):
        capacity(queue(), (0,), limits={"missed_deadlines": 0.5})


def test_where_requests_fail_nothing_is_concluded() -> None:
    with pytest.raises(EngineError, match="a request failed: request '0' has a prompt of 4 tokens"):
        capacity(queue(), (0,), settings=engine(num_blocks=1))


def test_where_requests_end_with_errors_nothing_is_chosen(
    workload: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a deliberate failure")

    monkeypatch.setattr(TokenBudgetScheduler, "schedule", broken)
    said = "a request failed: scheduler 'token_budget' raised LookupError"
    with pytest.raises(EngineError, match=said):
        capacity(queue(), (0,))
    argv = ["compare", workload, "--vary", "evictor=lru,fifo", "--cache", "0.5"]
    assert main([*argv, "--seeds", "1", "--workers", "1"], {}) == FAILED
    assert said in capsys.readouterr().err


def test_what_has_no_rate_is_refused() -> None:
    with pytest.raises(SettingsError, match="workload queue: all of its requests arrive at once"):
        capacity(queue(arrivals="at_once"))


def test_a_trace_that_is_too_short_is_refused_and_a_long_one_has_a_capacity(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    def trace(length: int) -> WorkloadSpec:
        lines = [{"id": str(i), "at": 10 * i, "prompt": 4, "output": 5} for i in range(length)]
        path.write_text("\n".join(map(json.dumps, lines)))
        return parse_spec({"name": "trace", "trace": str(path)}, "trace")

    with pytest.raises(SettingsError, match=r"has 30 requests: .* too few"):
        capacity(trace(30), (0,))
    found = capacity(trace(600), (0,))
    assert found.written_rate == pytest.approx(0.1)
    assert found.rate == pytest.approx(2 / 5, rel=0.03)


def test_the_capacity_of_a_trace_is_of_all_of_it_or_says_of_what_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    outputs = [1] * 300 + [9] * 300
    rows = [{"id": str(i), "at": i, "prompt": 4, "output": n} for i, n in enumerate(outputs)]
    path = tmp_path / "drifts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = capacity(parse_spec({"name": "drifts", "trace": str(path)}, "drifts"), (0,))
    assert found.num_requests == 600
    assert found.rate < 2 / 5  # two at once, of five steps on the mean: not the 2 of the short ones
    monkeypatch.setattr("paged_plugins.lab.load.capacity._LEAST_OF_TRACE", 300)
    command = ["--executor", "simulated", "--scheduler.max-num-seqs", "2"]
    assert main(["lab", "capacity", str(path), *command], {}) == OK
    assert ", by the first 400 of 600 requests" in capsys.readouterr().out


@pytest.mark.usefixtures("_coarse")
def test_the_command_prints_a_rate_with_its_interval_or_json(
    workload: str, capsys: Capture
) -> None:
    linear = ["--cost-model", json.dumps({"name": "linear", "fixed": 1})]
    command = ["lab", "capacity", workload, *linear, *SMALL, "--seeds", "2"]
    assert main(command, {}) == OK
    printed = capsys.readouterr().out
    assert printed.startswith("queue: requests/s that can be served: ")
    assert "as it is written it needs " in printed
    assert main([*command, "--limit", "ttft_p99=30", "--json"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["limits"] == {"ttft_ms_p99": 30_000}
    assert found["low"] <= found["rate"] <= found["high"]
    assert list(found["rates"]) == ["0", "1"]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (["ttft"], "give a latency and its limit"),
        (["ttft_p99"], "--limit ttft_p99: give a latency and its limit, as in ttft_p99=2"),
        (["tpto_p99=1"], "did you mean 'tpot_p99'?"),
        (["ttft_p99=much"], "'much' is no number above 0"),
        (["ttft_p99=0"], "no number above 0"),
        (["ttft_p99=1", "ttft_ms_p99=1"], "given twice"),
    ],
)
def test_a_wrong_limit_is_refused(limits: list[str], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_limits(limits)
    assert problem in str(error.value)


def test_limits_are_in_seconds_or_in_the_unit_of_the_measure() -> None:
    found = parse_limits(["ttft_p99=2", "e2e_ms_mean=3", "missed_deadlines=0.1"])
    assert found == {"ttft_ms_p99": 2000, "e2e_ms_mean": 3, "missed_deadlines": 0.1}
    assert "itl_ms_p99" not in LIMITED


# ---------------------------------------------------------------------- rates of workloads


def test_a_workload_is_faster_in_all_of_its_arrivals_and_in_nothing_else() -> None:
    mix = [
        {"weight": 1},
        {"arrivals": {"gamma": {"rate": 2}}},
        {"arrivals": {"interval": 0.5}, "first": 3},
    ]
    spec = queue(mix=mix)
    assert spec.rate() == 0.1 + 2
    faster = spec.faster(10)
    assert faster.rate() == 1 + 20
    for slow, fast in zip(spec.build().draw(3), faster.build().draw(3), strict=False):
        assert (fast.prompt, fast.output) == (slow.prompt, slow.output)
        assert fast.at == pytest.approx(slow.at / 10)


# ---------------------------------------------------------------------- blocks


def held(record: RunRecord) -> int:
    return record.totals.peak_blocks


def test_the_peak_of_blocks_is_that_within_a_step() -> None:
    """Eleven tokens have a state, in blocks of four; those of the last step count, too."""
    assert held(run([asks("a", 8, 4)])) == 3
    assert held(run([asks("a", 8, 1)])) == 2
    assert held(run([asks("a", 8, 4), asks("b", 8, 4)])) == 6
    assert held(run([asks("a", 8, 4), asks("b", 8, 4, at=100.0)])) == 3, "idle cached blocks"


def test_a_measure_that_one_arm_lacks_is_not_called_equal(capsys: Capture) -> None:
    argv = ["compare", "chat", "--vary", "num_blocks=1,100", "--measure", "hit_rate"]
    assert main([*argv, "--seeds", "1", "--workers", "1"], {}) == OK
    out = capsys.readouterr().out
    assert "no measure that was asked for has a value in two arms" in out
    assert "equal in all arms" not in out


@pytest.mark.parametrize(
    ("value", "says"), [("'0.5'", "give a number, not '0.5'"), ("5", "Input should be less than")]
)
@pytest.mark.parametrize("key", ["load", "cache"])
def test_fractions_of_a_file_have_the_bounds_of_the_options(
    key: str, value: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "study.yaml"
    text = "axes: {queue_order: [fcfs, sjf]}\nworkloads: [few_shot]\n"
    path.write_text(f"{text}{key}: {value}\n")
    assert main(["lab", "run", str(path), "--output", str(tmp_path / "out")], {}) == BAD_USAGE
    assert re.search(rf"{key}(\.0)?: {says}", capsys.readouterr().err)


def test_a_part_of_the_blocks_is_rounded_up_and_holds_the_largest_request() -> None:
    assert part_of(0.6, 101, 3, 0.0) == 61
    assert part_of(0.1, 20, 3, 0.0) == 3
    assert part_of(0.1, 20, 3, 0.25) == 4
    assert blocks_of(queue(requests=3, n=2), 0, 4) == (3 * 2 * 3, 2 * 3)


@pytest.mark.parametrize("name", ["chat", "few_shot", "tree_of_thoughts", "two"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_distinct_blocks_are_those_that_a_cache_without_a_limit_holds_in_the_end(
    name: str, seed: int
) -> None:
    two = queue(n=2, requests=9, lengths={"prompt": 40, "output": 30})
    spec = two if name == "two" else workload_spec(name)
    settings = engine(8, num_blocks=60_000, block_size=16 if seed else 4, max_model_len=20_000)
    record = run_workload(settings, REGISTRY, spec.build(), seed, max_samples=100_000)
    blocks = DistinctBlocks(settings.block_size)
    for first in spec.build().draw(seed):
        blocks.add(first)
    assert len(blocks) == record.steps[-1].cached_blocks > 0


@pytest.mark.parametrize(
    ("option", "fraction", "blocks"),
    [("cache", "0.5", 3), ("cache", "1", 6), ("working-set", "0.5", 6), ("working-set", "0.3", 4)],
)
def test_a_cache_is_a_fraction_of_the_peak_or_of_the_distinct_blocks(
    option: str, fraction: str, blocks: int, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "queue.yaml"
    path.write_text(yaml.safe_dump(QUEUE | {"arrivals": "at_once", "requests": 6}))
    options = ["--block-size", "4", "--scheduler.max-num-seqs", "3", "--workers", "1"]
    vary = ["--vary", "victim=newest,fewest_computed", "--seeds", "1", "--json"]
    command = ["compare", str(path), *vary, *options, f"--{option}", fraction]
    assert main([*command, "--measure", "peak_blocks"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"][0]["cache"] == {
        "fraction": float(fraction),
        "of": "peak_blocks" if option == "cache" else "distinct_blocks",
        "peak_blocks": 6,
        "distinct_blocks": 12,
        "num_blocks": blocks,
    }
    assert {run["measures"]["peak_blocks"] for run in found["runs"]} <= {blocks - 1, blocks}
    assert main(["lab", "workload", str(path), "--block-size", "4", "--json"], {}) == OK
    assert json.loads(capsys.readouterr().out)["distinct_blocks"] == 12
    assert main([*command[: command.index("--json")], *options, f"--{option}", fraction], {}) == OK
    held = f"queue: {blocks} blocks, {blocks / 6:.3g} of the 6 that victim=newest held at once"
    distinct = f" without a limit, {blocks / 12:.3g} of the 12 distinct ones of the workload"
    assert held + distinct in capsys.readouterr().out


# ---------------------------------------------------------------------- loads of studies


SMALL = ["--scheduler.max-num-seqs", "2", "--workers", "1"]


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "queue.yaml"
    path.write_text(yaml.safe_dump(QUEUE))
    return str(path)


@pytest.mark.usefixtures("_coarse")
def test_several_loads_are_fractions_of_one_capacity(workload: str, capsys: Capture) -> None:
    vary = ["--vary", "scheduler.max_num_seqs=2,4", "--seeds", "2", "--json", "--workers", "1"]
    assert main(["compare", workload, *vary, "--load", "0.5,0.7", "--cache", "2"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    first, second = found["chosen"]
    assert first["load"]["capacity"] == second["load"]["capacity"]
    assert first["load"]["rate"] * 0.7 == pytest.approx(second["load"]["rate"] * 0.5, rel=1e-3)
    names = ["queue at load 0.5", "queue at load 0.7"]
    assert [each["workload"] for each in found["chosen"]] == found["workloads"] == names
    assert {run["workload"] for run in found["runs"]} == set(names)
    assert {each["workload"] for each in found["differences"]} == set(names)
    assert main(["simulate", workload, *SMALL[:2], "--load", "0.5,0.7"], {}) == BAD_USAGE
    assert "--load: one run has one load" in capsys.readouterr().err


@pytest.mark.usefixtures("_coarse")
def test_a_load_is_a_fraction_of_the_capacity_of_the_first_arm(
    workload: str, capsys: Capture
) -> None:
    vary = ["--vary", "scheduler.max_num_seqs=2,4", "--seeds", "1", "--json", "--workers", "1"]
    assert main(["compare", workload, *vary, "--load", "0.5"], {}) == OK
    (chosen,) = json.loads(capsys.readouterr().out)["chosen"]
    assert main(["lab", "capacity", workload, *SMALL, "--json"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    load = chosen["load"]
    assert load["capacity"]["rate"] == found["rate"]
    assert load["rate"] == float(f"{0.5 * found['rate']:.4g}")


@pytest.mark.usefixtures("_coarse")
def test_a_simulation_says_its_load_and_its_cache(workload: str, capsys: Capture) -> None:
    command = ["simulate", workload, "--max-model-len", "64", "--load", "0.5", "--cache", "0.9"]
    command += ["--scheduler.max-num-seqs", "2"]
    assert main(command, {}) == OK
    lines = capsys.readouterr().out.splitlines()
    assert "0.5 of what the engine can serve without a limit of blocks: " in lines[0]
    assert "2 blocks, 1 of the 2 that the engine held" in lines[1]


def test_a_cluster_is_compared_and_its_router_varied(workload: str, capsys: Capture) -> None:
    vary = ["--vary", "router=round_robin,session", "--replicas", "3", "--seeds", "1"]
    measure = ["--measure", "replica_jain", "--measure", "ttft_p99"]
    assert main(["compare", workload, *vary, *SMALL, *measure, "--json"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["replicas"] == 3
    assert set(found["measures"]) == {"replica_jain", "ttft_ms_p99"}
    one, other = (run["measures"]["replica_jain"] for run in found["runs"])
    assert one > other


@pytest.mark.usefixtures("_coarse")
def test_a_study_has_replicas_a_load_and_a_cache_and_its_report_says_so(tmp_path: Path) -> None:
    changes = {
        "base": {"block_size": 4, "scheduler": {"name": "token_budget", "max_num_seqs": 2}},
        "axes": {"scheduler.max_num_seqs": [2, 4]},
        "workloads": [QUEUE],
        "replicas": 2,
        "load": 0.9,
        "cache": 0.8,
    }
    path, folder = write(tmp_path, **changes), tmp_path / "results"
    assert main(["lab", "run", str(path), "--output", str(folder), "--workers", "1"], {}) == OK
    results = load_results(folder)
    assert results.num_replicas == 2
    assert results.chosen[0]["load"]["fraction"] == 0.9
    record = results.record(BASE, "queue", 0)
    assert record is not None
    assert len(record.replicas) == 2
    assert record.totals.peak_blocks <= results.chosen[0]["cache"]["num_blocks"]
    text = markdown(Comparison.of(results))
    assert "- replicas: 2" in text
    text = text.replace("\\", "")
    assert "0.9 of what scheduler.max_num_seqs=2 can serve without a limit of blocks" in text
    assert "| measure | base | scheduler.max_num_seqs=4 |" in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--cache", "0.5", "--num-blocks", "9"], "num_blocks: `cache` chooses the blocks"),
        (["--cache", "0.5", "--vary", "block_size=8,16"], "block_size: `cache` counts blocks"),
        (["--cache", "0.5", "--working-set", "0.5"], "cache and working_set both choose the"),
        (["--working-set", "1", "--num-blocks", "9"], "num_blocks: `working_set` chooses the"),
        (["--cache", "nan"], "'nan' is no share; give numbers from 0.01 to 4"),
        (["--working-set", "5"], "'5.0' is no share"),
        (["--load", "0.5,0.50"], "load: a fraction is given twice"),
        (["--load", "0.5", "--real", "--executor", "memory"], "load: what it is a fraction of"),
        (["--replicas", "2", "--real", "--executor", "memory"], "--real: a cluster is simulated"),
        (["--measure", "replica_jain"], "--measure replica_jain: it is of a cluster"),
        (["--measure", "held_share", "--replicas", "2"], "it is of one engine alone"),
    ],
)
def test_what_contradicts_is_refused(
    options: list[str], problem: str, workload: str, capsys: Capture
) -> None:
    vary = [] if "--vary" in options else ["--vary", "evictor=lru,slru"]
    assert main(["compare", workload, *vary, *options], {}) == BAD_USAGE
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


# ---------------------------------------------------------------------- settings of no effect


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--vary", "router=round_robin,session"], "router has no effect here: one engine"),
        (["--router", "session"], "router has no effect here"),
        (["--vary", "model=demo,other"], "its times are those of cost_model.model"),
        (["--vary", "attention=auto,torch"], "attention has no effect here: a simulation runs no"),
        (
            ["--vary", "evictor=lru,slru", "--block-allocator", "uncached"],
            "evictor has no effect here: block_allocator uncached evicts nothing",
        ),
        (["--threads", "2"], "threads has no effect here"),
        (["--cost-model", "linear", "--vary", "dtype=float32,float16"], "dtype has no effect here"),
        (["--vary", "grammar=llguidance,xgrammar"], "grammar has no effect here: nothing in these"),
        (["--routes", '["openai"]'], "routes has no effect here: nothing in these runs makes"),
        (["--real", "--cost-model.name", "linear", "--executor", "memory"], "cost_model has no"),
    ],
)
def test_a_setting_that_changes_nothing_is_refused(
    options: list[str], problem: str, workload: str, capsys: Capture
) -> None:
    commands = [["compare", workload, "--vary", "evictor=lru,slru", *options]]
    if "--vary" in options:
        commands = [["compare", workload, *options]]
    else:
        commands += [["simulate", workload, *options]]
    for command in commands:
        assert main(command, {}) == BAD_USAGE
        assert problem in capsys.readouterr().err


def test_a_measure_that_no_run_has_is_refused(workload: str, capsys: Capture) -> None:
    vary = ["--vary", "evictor=lru,slru", "--seeds", "1", "--workers", "1"]
    assert main(["compare", workload, *vary, "--measure", "missed_deadlines"], {}) == BAD_USAGE
    assert "--measure missed_deadlines: no run has it" in capsys.readouterr().err


@pytest.mark.long
def test_it_is_refused_where_an_environment_or_a_file_of_a_study_has_it(
    workload: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["simulate", workload], {"PAGED_CORE_ROUTER": "session"}) == BAD_USAGE
    assert "router has no effect here" in capsys.readouterr().err
    for changes in (
        {"axes": {"router": ["round_robin", "session"]}},
        {"axes": {"evictor": ["lru", "slru"]}, "base": {"model": "demo"}},
        {"executor": "local", "cost_model": "linear"},
    ):
        with pytest.raises(SettingsError, match="has no effect here") as error:
            read_study(write(tmp_path, **changes), REGISTRY)
        assert str(error.value).startswith(str(tmp_path))


OTHER: dict[str, Any] = {
    "model": "other",
    "tokenizer": "other",
    "device": "cuda",
    "threads": 3,
    "deterministic": True,
    "enforce_eager": True,
    "trust_remote_code": True,
    "allow_pickle": True,
    "generation_config": "none",
    "attention": "torch",
    "runner": "native",
    "dtype": "float32",
    "kv_cache_dtype": "int8",
    "kv_cache_memory": 10**9,
}


def test_what_is_called_unused_changes_nothing() -> None:
    """And no other setting is: a new one must be looked at."""
    assert set(OTHER) == OF_MODELS | OF_ROOFLINES
    requests = [asks("a", 30, 9), asks("b", 9, 20)]
    assert len({str(run(requests, **{key: value})) for key, value in OTHER.items()}) == 1
    known = {
        *("profile", "max_model_len", "block_size", "num_blocks", "num_host_blocks", "watermark"),
        *("seed", "async_scheduling", "kv_cache", "executor", "observers", "cost_model", "router"),
        *("block_allocator", "evictor", "queue_order", "scheduler", "victim", "preemption"),
        "communicator",  # of several ranks
        "checks",  # find faults, and change nothing
        "grammar",  # the requests of workloads ask for no form
    }
    assert set(EngineSettings.model_fields) | {"cost_model", "router"} == known | set(OTHER)
