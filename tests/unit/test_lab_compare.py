"""``paged-core compare``, and policies of which it is known what they do."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import create_model

from paged_core.cli import BAD_USAGE, FAILED, OK, main
from paged_core.cli.options import SettingsArgs
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_core.settings.documents import parse_yaml
from paged_core.settings.layers import Entry, Origin
from paged_core.settings.schema import settings_class
from paged_plugins.lab.measures import SHOWN
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.lab.results.results import Results, run_study
from paged_plugins.lab.statistics.comparison import Comparison, print_differences
from paged_plugins.lab.study.arms import PlannedArm, block_size_note, parse_variation, varied_arms
from paged_plugins.lab.study.study import Study, read_study
from paged_plugins.lab.study.unused import draws
from paged_plugins.lab.tasks.pool import open_runner
from paged_plugins.workloads.spec import parse_spec
from paged_testing.engines import registry_with
from unit.planted_policies import PLANTED
from unit.studies import write

pytestmark = pytest.mark.heavy

REGISTRY = Registry.discover()

BURST = """
requests: 40
lengths: {prompt: {uniform: [16, 200]}, output: {uniform: [20, 60]}}
"""
TURNS: dict[str, Any] = {
    "name": "turns",
    "requests": 60,
    "arrivals": {"poisson": {"rate": 4}},
    "lengths": {"prompt": {"uniform": [16, 48]}, "output": {"uniform": [4, 8]}},
    "prefixes": {"system": 128, "conversation": {"turns": 4, "think": {"exponential": 1}}},
}


@pytest.fixture
def burst(tmp_path: Path) -> str:
    path = tmp_path / "burst.yaml"
    path.write_text(BURST)
    return str(path)


def layer(**settings: Any) -> list[Entry]:
    return [Entry((key,), value, Origin("python", "")) for key, value in settings.items()]


def compared(
    arms: Sequence[PlannedArm], workload: dict[str, Any], num_seeds: int, registry: Registry
) -> Results:
    workloads = [parse_spec({"name": "w", **workload}, "w")]
    study = Study(arms=arms, workloads=workloads, seeds=range(num_seeds))
    with open_runner(registry, workers=1) as runner:
        return run_study(study, runner)


def comparison(vary: str, workload: dict[str, Any], **settings: Any) -> Comparison:
    registry = registry_with(*PLANTED)
    arms = varied_arms(
        [parse_variation(vary)],
        SettingsArgs(registry, {}),
        layer(executor="simulated", num_blocks=64, **settings),
    )
    return Comparison.of(compared(arms, workload, 6, registry), SHOWN)


def moved(found: Comparison, arm: str) -> set[str]:
    return {each.measure for each in found.differences if each.moved and each.arm == arm}


def test_a_worse_evictor_is_found_and_a_copy_of_the_base_moves_nothing() -> None:
    found = comparison("evictor=lru,lru_twin,wasteful", TURNS)
    assert moved(found, "evictor=lru_twin") == set()
    for each in found.differences:
        if each.arm == "evictor=lru_twin":
            assert (each.change, each.low, each.high) == (0, 0, 0)
    assert moved(found, "evictor=wasteful") == {"hit_rate", "evictions"}
    verdicts = {each.measure: each.verdict for each in found.differences if each.arm[8] == "w"}
    assert (verdicts["hit_rate"], verdicts["evictions"]) == ("worse", "worse")
    assert {*verdicts.values()} <= {"worse", "undecided", "equal"}


def test_a_run_that_gives_no_result_makes_its_arm_failed() -> None:
    registry = registry_with()
    large = layer(executor="simulated", cost_model={"name": "roofline", "model": "llama-3.1-70b"})
    arms = varied_arms([parse_variation("evictor=lru,mru")], SettingsArgs(registry, {}), large)
    results = compared(arms, TURNS, 2, registry)
    assert list(results.failures) == ["evictor=lru", "evictor=mru"]
    start = "2 runs gave no result, the first: SettingsError: "
    assert all(str(failure).startswith(start) for failure in results.failures.values())
    assert not Comparison.of(results).differences


def test_it_is_told_on_which_workload_arms_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    registry = registry_with()
    some = layer(executor="simulated")
    arms = varied_arms([parse_variation("evictor=lru,mru")], SettingsArgs(registry, {}), some)
    own = compared(arms, {"requests": 2}, 2, registry)
    others = [replace(run, workload="other") for run in own.runs]
    both = replace(own, workloads=["w", "other"], runs=[*own.runs, *others])
    print_differences(Comparison.of(both))
    told = [line for line in capsys.readouterr().out.splitlines() if "equal in all arms" in line]
    assert [line.partition(" equal")[0] for line in told] == ["w:", "other:"]


def test_no_arm_runs_at_a_better_time_than_others() -> None:
    arms = varied_arms([parse_variation("evictor=lru,mru")], SettingsArgs(registry_with(), {}), ())
    study = Study(arms=arms, workloads=[parse_spec(TURNS, "w")], seeds=range(4))
    starts = {one.arm.label: 0 for one in arms}
    for place, task in enumerate(study.tasks()):
        starts[task.arm] += place
    assert len(set(starts.values())) == 1


def test_the_command_prints_a_table_with_verdicts(
    burst: str, capsys: pytest.CaptureFixture[str]
) -> None:
    vary = ["--vary", "queue_order=fcfs,sjf", "--vary", "num_blocks=64,1000"]
    assert main(["compare", burst, *vary, "--workers", "1"], {}) == OK
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].startswith("burst: 24 runs, 6 seeds, ")
    header = "arm compared with measure reference value change interval"
    assert header in {" ".join(line.split()) for line in lines}
    (row,) = [
        line for line in lines if "sjf, num_blocks=64 " in line and " completion p50 " in line
    ]
    assert re.search(r"fcfs, num_blocks=64 .* -\d+% +\[-\d+, -\d+\] +better *$", row)
    assert any(line.startswith("equal in all arms: ") for line in lines)


@pytest.mark.parametrize("limit", ["num_blocks=6,100", "max_model_len=80,200"])
def test_answers_that_are_cut_short_are_not_served_in_full(
    limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": str(i), "at": 2 * i, "prompt": 60, "output": 100} for i in range(5)]
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    slo = ["--slo-ttft-ms", "500", "--measure", "goodput_per_s", "--measure", "e2e_mean"]
    blocks = [] if "num_blocks" in limit else ["--num-blocks", "100"]
    assert main(["compare", str(path), "--vary", limit, *slo, *blocks], {}) == OK
    printed = capsys.readouterr().out
    assert re.search(r" goodput +0 requests/s +0\.\d+ requests/s .* better", printed)
    assert re.search(r" completion mean .* worse, 5 to 0 not served in full", printed)
    assert "cut short by the model's length or the cache, so less to do: " in printed
    assert main(["simulate", str(path), "--num-blocks", "6"], {}) == OK
    assert "cut short by the model's length or the cache: 5 answers by " in capsys.readouterr().out


@pytest.mark.parametrize("evictor", ["slru", "random"])
def test_what_draws_nothing_runs_once_and_is_exact(
    evictor: str, burst: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy that draws is run with every seed, on a trace too."""
    trace = str(tmp_path / "trace.jsonl")
    assert main(["lab", "workload", burst, "--output", trace], {}) == OK
    capsys.readouterr()
    vary = ["--vary", f"evictor=lru,{evictor}", "--vary", "num_blocks=64,1000", "--workers", "1"]
    study = write(tmp_path, workloads=[trace], axes={"evictor": [evictor], "num_blocks": [9, 99]})
    assert main(["lab", "run", str(study), "--output", str(tmp_path / "results")], {}) == OK
    results = load_results(tmp_path / "results")
    assert len(results.seeds) == (1 if evictor == "slru" else 2)
    few = ["--seeds", "3"]
    for options in ([], few) if evictor == "slru" else (few,):
        capsys.readouterr()
        assert main(["compare", trace, *vary, *options, "--json"], {}) == OK
        found = json.loads(capsys.readouterr().out)
        if evictor == "random":
            assert len(found["seeds"]) > 1
            continue
        assert (found["exact"], found["seeds"]) == (True, [0])
        assert "differences are exact" in found["limits"][0]
        assert {each["verdict"] for each in found["differences"]} - {"undecided"}
        for each in (*found["differences"], *Comparison.of(results).document()["differences"]):
            assert each["low"] == each["high"] == each["change"]
            assert (each["verdict"] == "equal") == (each["change"] == 0)
    assert main(["compare", trace, *vary, *few], {}) == OK
    assert ("exact" in capsys.readouterr().out) == (evictor == "slru")


def test_arms_may_have_labels(
    burst: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "{name: token_budget, max_num_seqs: 2}"
    vary = ["--vary", f"scheduler=tight:{table},wide: {table.replace('2', '9')}"]
    command = ["compare", burst, *vary, "--seeds", "1", "--workers", "1"]
    assert main([*command, "--json"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    assert [each["arm"] for each in found["arms"]] == ["scheduler=tight", "scheduler=wide"]
    assert found["arms"][0]["changes"]["scheduler"]["max_num_seqs"] == 2
    vary[1] = f"scheduler=tight:{table},tight:{table.replace('2', '9')}"
    assert main(["compare", burst, *vary], {}) == BAD_USAGE
    assert "'tight' is given twice" in capsys.readouterr().err
    axes = {"scheduler": {"tight": parse_yaml(table)[0], "plain": {"name": "token_budget"}}}
    (base, tight) = read_study(write(tmp_path, axes=axes), REGISTRY).arms
    assert (base.arm.title, tight.arm.label) == ("scheduler=plain", "scheduler=tight")
    assert dict(tight.settings.scheduler)["max_num_seqs"] == 2


@pytest.mark.parametrize(("step", "tied"), [(0, True), (1, False)])
def test_differences_that_ties_decide_are_marked(
    step: int, tied: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long requests before short ones, all at once: the order is told apart by the order alone."""
    path = tmp_path / "listed.jsonl"
    outputs = (60, 40, 20, 5)
    path.write_text(
        "".join(
            json.dumps({"id": str(n), "at": n * step / 100, "prompt": 20, "output": output}) + "\n"
            for n, output in enumerate(outputs)
        )
    )
    one = ["--scheduler.max-num-seqs", "1", "--measure", "ttft_mean", "--workers", "1"]
    given = ["compare", str(path), "--vary", "queue_order=fcfs,sjf", *one]
    assert main([*given, "--ties", "--json"], {}) == OK
    document = json.loads(capsys.readouterr().out)
    (difference,) = document["differences"]
    assert (difference["ties"], difference["moved"]) == (tied, True)
    told = f"ties decide {int(tied)} difference{'' if tied else 's'}, outside the interval"
    assert any(limit.startswith(told) for limit in document["limits"])
    if tied:
        assert main([*given, "--ties"], {}) == OK
        assert "better, by ties" in capsys.readouterr().out


def test_json_has_everything(burst: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", burst, "--vary", "num_blocks=64,1000", "--seeds", "1", "--json"]
    assert main([*command, "--measure", "ttft_ms_p50", "--measure", "steps"], {}) == OK
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [
        *("workload", "workloads", "exact", "seeds", "confidence", "minimum_seeds", "arms"),
        *("measures", "differences", "limits", "split", "asked", "idle"),
        *("runs", "replicas", "chosen"),
    ]
    assert document["arms"][1] == {
        "arm": "num_blocks=1000",
        "changes": {"num_blocks": 1000},
        "compared_with": "num_blocks=64",
        "failed": None,
    }
    assert set(document["measures"]) == {"ttft_ms_p50", "steps"}
    row = document["differences"][0]
    told = [row[key] for key in ("measure", "unit", "low", "moved")]
    assert told == ["ttft_ms_p50", "%", None, False]
    assert document["limits"] == ["1 seed: too few to decide anything with 95% confidence; run 6"]
    assert {run["seed"] for run in document["runs"]} == {0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vary", "evictor"], "write KEY=A,B"),
        (["--vary", "evictor=lru"], "one value varies nothing"),
        (["--vary", "evictor=lru,slru,lru"], "--vary evictor: 'lru' is given twice"),
        (["--vary", "replicas=2,4"], "--vary replicas: all arms have as many; give --replicas N"),
        (["--vary", "num_blocks=64,+64"], "are the same settings"),
        (["--vary", "num_blocks=64,0100"], "leading zeros can mean"),
        (["--vary", "scheduler={name: token_budget, max_num_seqs: 010},orca"], "leading zeros"),
        (["--vary", "evictor='lru',lru"], "are the same settings"),
        (["--vary", "evictor=lru,slur"], "did you mean 'slru'"),
        (["--vary", "evictr=lru,slru"], "did you mean 'evictor'"),
        (
            ["--cost-model", "roofline", "--vary", "cost_model.device=h100,h1000"],
            "did you mean 'h100'? (arm cost_model.device=h1000)",
        ),
        (["--vary", "scheduler={name: token_budget]},orca"], "cannot be read"),
        (["--vary", "evictor={name: lru"], "--vary: { is not closed in {name: lru"),
        (["--vary", "evictor='lru,slru"], "--vary: ' is not closed"),
        (["--vary", "evictor=lru,{name:", "slru}"], "at a space: quote it, as in '{name: lru}'"),
        (["--vary", "victim=newest,fewest_computed", "--evictor", "{name: lru}"], "write it as in"),
        (["--vary", "evictor=lru,mru", "--vary", "evictor=slru,fifo"], "evictor is given twice"),
        (["--vary", "evictor=lru,mru", "--evictor", "lru"], "keep one of them"),
        (["--vary", "executor=simulated,local"], "give --real as well"),
        (["--vary", "evictor=lru,mru", "--real", "--executor", "simulated"], "runs no model"),
        (["--vary", "evictor=lru,mru", "--measure", "hitrate"], "did you mean 'hit_rate'"),
        (
            ["--vary", "evictor=lru,mru", "--measure", "ttft"],
            "there are: ttft_ms_mean, ttft_ms_p50, ttft_ms_p90, ttft_ms_p99 (--measure)",
        ),
        (["--vary", "seed=0,1"], "seed has no effect here: no component of these runs draws"),
        (["--vary", "evictor=lru,mru", "--seed", "3"], "seed has no effect here"),
        (["--vary", "observers=none,metrics"], "leave observers out"),
        (["--vary", f"num_blocks={','.join(map(str, range(1002)))}"], "more than 1,000 arms"),
        (["--vary", "evictor=lru,mru", "--seeds", "99999999999999"], "100,000 is the most"),
        (
            ["--vary", "victim=newest,fewest_computed", "--observers", '["chrome_trace"]'],
            "all runs would write the same files",
        ),
    ],
)
def test_bad_options_are_refused_in_one_line(
    options: list[str], message: str, burst: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", burst, *options], {}) == BAD_USAGE
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_seed_has_an_effect_where_something_draws(burst: str) -> None:
    vary = ["--vary", "seed=0,1", "--evictor", "random", "--num-blocks", "64"]
    assert main(["compare", burst, *vary, "--seeds", "1", "--workers", "1"], {}) == OK


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request in it"),
        ("a.jsonl", '{"prompt": 1, "output": 1, "id": "a"}\n{"id": 1}', "line 2"),
        ("a.yaml", "{lengths: {prompt: 60, output: 20}, max_tokens: 40}", "max_tokens 40"),
        ("a.yaml", "{arrivals: {replay: none.csv}}", "seen from the working directory, "),
        ("a.folder", None, " is a folder; give the name of a workload"),
    ],
    ids=["empty", "broken", "impossible", "missing", "folder"],
)
def test_a_workload_that_cannot_be_drawn_is_refused_before_anything_runs(
    name: str,
    content: str | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    study = write(tmp_path, workloads=[str(path)])
    results = tmp_path / "results"
    for command in (
        ["compare", str(path), "--vary", "evictor=lru,mru"],
        ["simulate", str(path)],
        ["lab", "run", str(study), "--output", str(results)],
        ["lab", "capacity", str(path)],
    ):
        assert main(command, {}) == BAD_USAGE, command
        shown = capsys.readouterr()
        assert message in shown.err
        assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert not results.exists()


def test_nothing_served_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("name: long\nlengths: {prompt: 900, output: 1}\nrequests: 2\n", "utf-8")
    results = str(tmp_path / "results")
    asked = ["--vary", "evictor=lru,slru", "--num-blocks", "4", "--workers", "1"]
    assert main(["compare", str(path), *asked, "--output", results], {}) == FAILED
    assert "in all arms; the first: request" in capsys.readouterr().out
    assert main(["lab", "report", results], {}) == FAILED


def test_a_value_may_be_a_table_or_quoted_and_its_commas_separate_nothing() -> None:
    found = parse_variation("scheduler={name: token_budget, max_num_seqs: 8}, 'orca,2' ,[1, 2]")
    assert found.key == "scheduler"
    assert list(found.values) == [{"name": "token_budget", "max_num_seqs": 8}, "orca,2", [1, 2]]


def test_each_combination_of_the_further_settings_has_its_reference() -> None:
    given = SettingsArgs(registry_with(), {})
    variations = [
        parse_variation("scheduler.max-num-seqs=8,16"),
        parse_variation("evictor=lru,{name: slru, protected: 0.5}"),
    ]
    planned = varied_arms(variations, given, layer(executor="simulated"))
    labels = [one.arm.label for one in planned]
    assert labels == [
        "scheduler.max_num_seqs=8, evictor=lru",
        "scheduler.max_num_seqs=16, evictor=lru",
        "scheduler.max_num_seqs=8, evictor={name: slru, protected: 0.5}",
        "scheduler.max_num_seqs=16, evictor={name: slru, protected: 0.5}",
    ]
    assert [one.arm.compared_with for one in planned] == [labels[0]] * 2 + [labels[2]] * 2
    assert {one.arm.axis for one in planned} == {"scheduler.max_num_seqs"}
    settings = planned[3].settings.model_dump()
    assert settings["evictor"] == {"name": "slru", "protected": 0.5}
    assert settings["scheduler"]["max_num_seqs"] == 16


def test_blocks_of_several_sizes_make_caches_of_several_sizes() -> None:
    def note(vary: str, **settings: Any) -> str | None:
        arms = varied_arms(
            [parse_variation(vary)], SettingsArgs(registry_with(), {}), layer(**settings)
        )
        return block_size_note(one.settings for one in arms)

    expected = "num_blocks is 100 everywhere (tokens: 800 at 8, 1,600 at 16)"
    assert expected in str(note("block_size=8,16", num_blocks=100))
    assert note("block_size=8,16") is None
    assert note("num_blocks=64,128", block_size=8) is None


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2])
def test_the_page_shows_what_the_command_says(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text("utf-8")
    block = page.split("```\n$ paged-core compare ")[number].split("```")[0]
    command, shown = block.split("\n", 1)
    assert main(["compare", *command.split()], {}) == OK
    printed = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in printed] == shown.splitlines()


@pytest.mark.parametrize(
    ("slot", "name", "may_draw"),
    [
        ("evictor", "lru", True),
        ("queue_order", "fcfs", False),
        ("scheduler", "token_budget", False),
    ],
)
def test_what_others_wrote_may_draw_where_it_gets_a_seed(
    slot: str, name: str, may_draw: bool
) -> None:
    """Whatever its text looks like: what draws may be in another module."""
    ours = Registry.discover()
    part = ours.get(slot, name)
    own_name: Any = (Literal["elsewhere"], "elsewhere")
    options = create_model("Elsewhere", __base__=part.settings, name=own_name)
    registry = ours.extended(Component(slot, options, part.factory))
    for chosen, expected in ((name, False), ("elsewhere", may_draw)):
        settings = settings_class(registry)(executor="simulated", **{slot: chosen})
        assert draws(settings, registry, None) is expected
