"""Cases recorded from vLLM V0 and V1 replay to the recorded decisions, step by step."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_core.plugins.registry import Registry
from paged_plugins.decisions.diff import first_difference
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.scenario import read_case

CASES = Path(__file__).parent / "cases"
FILES = sorted(CASES.glob("*/*.json"))

NOT_COVERED: dict[str, str] = {}
"""Cases that need what is not there yet, by ``folder/name``, and what that is."""

Capture = pytest.CaptureFixture[str]


@cache
def registry() -> Registry:
    return Registry.discover()


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def command(capsys: Capture, *argv: str | Path, **environ: str) -> tuple[int, str, str]:
    status = main([str(arg) for arg in argv], environ or {"PATH": ""})
    return (status, *capsys.readouterr())


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A case whose recorded trace is wrong in step 1."""
    case = json.loads(FILES[0].read_text())
    case["trace"][1]["free_blocks"] += 1
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(case))
    return path


def test_there_are_cases_of_both_systems() -> None:
    assert {path.parent.name for path in FILES} == {"v0", "v1"}
    assert set(NOT_COVERED) <= {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_replays_to_the_recorded_trace(path: Path) -> None:
    if reason := NOT_COVERED.get(name_of(path)):
        pytest.skip(reason)
    case = read_case(path)
    assert case.trace
    assert first_difference(list(replay(case.scenario, registry())), case.trace) is None


@pytest.mark.heavy
@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "v0"], ids=name_of)
def test_v0_holds_with_the_ties_of_v0_too(path: Path) -> None:
    """Without the option, ties are broken in the order of release."""
    case = read_case(path)
    settings = {**case.scenario.settings, "evictor": {"name": "lru", "ties": "longest_prefix"}}
    scenario = case.scenario.model_copy(update={"settings": settings})
    assert first_difference(list(replay(scenario, registry())), case.trace or []) is None


@pytest.mark.parametrize(
    ("line", "environ", "message"),
    [
        ("replay bare.json --check", {}, "no recorded trace"),
        ("replay empty --check", {}, "has no scenario in it"),
        ("replay nowhere.json", {}, "nowhere.json"),
        ("replay bare.json", {"PAGED_CORE_NUM_BLOKCS": "5"}, "NUM_BLOKCS sets nothing"),
        ("diff broken.jsonl bare.json", {}, "line 1"),
    ],
)
def test_bad_usage(
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    environ: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bare.json").write_text(json.dumps(json.loads(FILES[0].read_text())["scenario"]))
    Path("empty").mkdir()
    Path("broken.jsonl").write_text("hello\n")
    status, out, err = command(capsys, *line.split(), **environ)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


class TestReplayCommand:
    def test_check_answers_1_where_one_differs(self, capsys: Capture, changed: Path) -> None:
        status, out, _ = command(capsys, "replay", FILES[1], changed, "--check")
        assert status == 1
        assert "DIFFERENT at step 1" in out
        assert "free_blocks" in out
        assert out.splitlines()[-1] == "1 of 2 traces equal"
        _, out, _ = command(capsys, "replay", FILES[1], changed, "--check", "--json")
        rows = [json.loads(line) for line in out.splitlines()]
        found = [(row["equal"], row["step"], row["keys"]) for row in rows]
        assert found == [(True, None, []), (False, 1, ["free_blocks"])]

    def test_check_sees_the_order_of_the_batch(self, capsys: Capture, tmp_path: Path) -> None:
        for path in FILES:
            case = json.loads(path.read_text())
            step = next((line for line in case["trace"] if len(line["scheduled"]) > 1), None)
            if step is not None:
                break
        assert step is not None
        step["scheduled"] = dict(reversed(step["scheduled"].items()))
        turned = tmp_path / "turned.json"
        turned.write_text(json.dumps(case))
        status, out, _ = command(capsys, "replay", turned, "--check", "--json")
        assert status == 1
        assert json.loads(out)["keys"] == ["scheduled"]

    def test_json_of_one_file_is_its_trace(self, capsys: Capture) -> None:
        status, out, err = command(capsys, "replay", FILES[0], "--json")
        assert (status, err) == (0, "")
        assert [json.loads(line) for line in out.splitlines()] == read_case(FILES[0]).trace

    def test_json_of_several_files_names_the_scenario_in_each_line(self, capsys: Capture) -> None:
        status, out, _ = command(capsys, "replay", *FILES[:3], "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        cases = [read_case(path) for path in FILES[:3]]
        assert status == 0
        assert lines == [
            {"scenario": case.scenario.name, **line} for case in cases for line in case.trace or ()
        ]

    def test_yaml_is_read_too(self, capsys: Capture, tmp_path: Path) -> None:
        path = tmp_path / "small.yaml"
        path.write_text(
            "name: small\nsettings: {num_blocks: 4, block_size: 2}\n"
            "requests: [{id: A, prompt: 3, output: 2}]\n"
        )
        status, out, _ = command(capsys, "replay", path, "--json")
        assert status == 0
        assert [json.loads(line)["scheduled"] for line in out.splitlines()] == [{"A": 3}, {"A": 1}]

    def test_in_words(self, capsys: Capture) -> None:
        status, out, _ = command(capsys, "replay", FILES[0])
        assert status == 0
        assert out.splitlines()[0].startswith(read_case(FILES[0]).scenario.name)
        assert "blocks free" in out

    @pytest.mark.heavy
    def test_a_folder_stands_for_the_cases_in_it(self, capsys: Capture) -> None:
        status, out, err = command(capsys, "replay", CASES, "--check")
        assert (status, err) == (0, "")
        assert out.splitlines()[-1] == f"{len(FILES)} of {len(FILES)} traces equal"

    @pytest.mark.parametrize(
        ("arguments", "environ", "said"),
        [
            (("--num-blocks", "5"), {}, "num_blocks=5 (--num-blocks)"),
            (
                (),
                {"PAGED_CORE_SCHEDULER": "prefill_or_decode"},
                "scheduler.name=prefill_or_decode (PAGED_CORE_SCHEDULER)",
            ),
            (("--config", "engine.yaml"), {}, "num_blocks=5 (engine.yaml, line 1)"),
        ],
        ids=["option", "component", "file"],
    )
    def test_settings_replace_those_of_the_scenario_and_the_output_says_so(
        self,
        capsys: Capture,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        arguments: tuple[str, ...],
        environ: dict[str, str],
        said: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("engine.yaml").write_text("num_blocks: 5\n")
        path = next(path for path in FILES if path.parent.name == "v1")
        line = f"settings over the scenario's own: {said}"
        status, out, err = command(capsys, "replay", path, "--check", *arguments, **environ)
        assert (status, err) == (1, "")
        assert out.splitlines()[0] == line
        status, out, err = command(capsys, "replay", path, "--json", *arguments, **environ)
        assert err.splitlines()[0] == line
        assert [json.loads(text) for text in out.splitlines()] != read_case(path).trace


class TestDiffCommand:
    @staticmethod
    def trace(path: Path, capsys: Capture, case: Path) -> Path:
        _, out, _ = command(capsys, "replay", case, "--json")
        path.write_text(out)
        return path

    def test_equal(self, capsys: Capture, tmp_path: Path) -> None:
        ours = self.trace(tmp_path / "ours.jsonl", capsys, FILES[0])
        steps = len(read_case(FILES[0]).trace or ())
        assert command(capsys, "diff", ours, FILES[0]) == (0, f"equal: {steps} steps\n", "")
        status, out, _ = command(capsys, "diff", ours, FILES[0], "--json")
        assert (status, json.loads(out)) == (0, {"equal": True})

    def test_shows_the_first_difference(
        self, capsys: Capture, tmp_path: Path, changed: Path
    ) -> None:
        ours = self.trace(tmp_path / "ours.jsonl", capsys, FILES[0])
        status, out, _ = command(capsys, "diff", ours, changed)
        assert status == 1
        assert out.splitlines()[0] == "DIFFERENT at step 1"
        status, out, _ = command(capsys, "diff", ours, changed, "--json")
        row: dict[str, Any] = json.loads(out)
        assert status == 1
        assert (row["equal"], row["step"], row["keys"]) == (False, 1, ["free_blocks"])
        assert row["before"]["step"] == 0
        assert row["second"]["free_blocks"] == row["first"]["free_blocks"] + 1

    def test_one_trace_is_longer(self, capsys: Capture, tmp_path: Path) -> None:
        ours = self.trace(tmp_path / "ours.jsonl", capsys, FILES[0])
        lines = ours.read_text().splitlines(keepends=True)
        shorter = tmp_path / "shorter.jsonl"
        shorter.write_text("".join(lines[:-1]))
        status, out, _ = command(capsys, "diff", ours, shorter, "--json")
        row = json.loads(out)
        assert status == 1
        assert (row["step"], row["second"]) == (json.loads(lines[-1])["step"], None)

    def test_several_scenarios_are_compared_by_name(self, capsys: Capture, tmp_path: Path) -> None:
        paths = []
        for number, cases in enumerate((FILES[:2], FILES[1::-1], FILES[:3])):
            _, out, _ = command(capsys, "replay", *cases, "--json")
            paths.append(tmp_path / f"{number}.jsonl")
            paths[-1].write_text(out)
        assert command(capsys, "diff", paths[0], paths[1])[0] == 0
        status, _, err = command(capsys, "diff", paths[0], paths[2])
        assert status == 2
        assert read_case(FILES[2]).scenario.name in err
