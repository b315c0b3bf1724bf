"""Recordings of a scheduler inside vLLM: read, refused, and made into a scenario and a workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_plugins.decisions.recording import parts_of, read_recording
from paged_plugins.workloads.traces.files import TraceError

HEADER: dict[str, Any] = {
    "recording": 1,
    "settings": {"num_blocks": 16, "block_size": 4, "scheduler": {"max_num_batched_tokens": 16}},
    "block_tokens": 4,
    "async": False,
    "part": 0,
}
SHARED = {"add": "a", "step": 0, "at": 0.0, "length": 9, "output": 4, "blocks": ["k1", "k2"]}
TURN = {"add": "c", "step": 5, "at": 0.9, "length": 15, "output": 3}
LINES: list[dict[str, Any]] = [
    HEADER,
    SHARED,
    SHARED | {"add": "b", "at": 0.5, "step": 1, "blocks": ["k1", "k3"], "tenant": "t"},
    {"end": "b", "step": 2, "at": 0.6, "output": 1, "aborted": True, "planned": True},
    {"end": "a", "step": 4, "at": 0.8, "output": 4},
    TURN | {"follows": "a", "from": 13, "rest": "x", "priority": 2, "deadline": 2.4},
]


def write(path: Path, lines: list[dict[str, Any]], cut: str = "") -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    return path


def test_requests_share_what_had_the_same_keys(tmp_path: Path) -> None:
    made = read_recording(write(tmp_path / "traffic.jsonl", LINES, cut='{"trace": {"st'))
    assert made.prompts == {"a": "0:9", "b": "0:4 9:14", "c": "14:16"}
    assert made.scenario()["requests"] == [
        {"id": "a", "prompt": "0:9", "output": 4, "step": 0},
        {"id": "b", "prompt": "0:4 9:14", "output": 4, "step": 1, "tenant": "t"},
        {
            **{"id": "c", "prompt": "14:16", "output": 3, "follows": "a", "after": 1.0},
            **{"deadline": 1.5, "priority": 2},
        },
    ]
    assert made.scenario()["aborts"] == [
        {"id": "b", "step": 2, "planned": True},
        {"id": "c", "step": 6},
    ]


def test_a_workload_has_each_request_behind_the_one_it_follows(tmp_path: Path) -> None:
    lines = list(read_recording(write(tmp_path / "t.jsonl", LINES)).request_lines())
    assert [(line["id"], line.get("at"), line.get("after")) for line in lines] == [
        ("a", 0.0, None),
        ("c", None, 0.1),
        ("b", 0.5, None),
    ]
    assert [line["output"] for line in lines] == [4, 3, 1]


def test_files_that_were_kept_are_read_since_the_last_start(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(tmp_path / "t.jsonl.2", [HEADER, SHARED | {"add": "of another run"}])
    write(tmp_path / "t.jsonl.1", LINES[:3])
    write(path, [HEADER | {"part": 1}, *LINES[3:]])
    made = read_recording(path)
    assert [each.name for each in parts_of(path)] == ["t.jsonl.2", "t.jsonl.1", "t.jsonl"]
    assert list(made.requests) == ["a", "b", "c"]
    assert made.is_whole
    (tmp_path / "t.jsonl.1").unlink()
    cut = read_recording(path)
    assert (cut.is_whole, cut.unknown, list(cut.requests)) == (False, 2, ["c"])
    with pytest.raises(TraceError, match="its only line is cut short"):
        read_recording(write(tmp_path / "c.jsonl", [], '{"recording'))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "it is empty"),
        ([SHARED], "line 1: a recording begins with"),
        ([HEADER, {"what": 1}], "line 2: it has none of the keys add"),
        ([HEADER, SHARED, SHARED], "line 3: the request 'a' is added twice"),
        ([HEADER, SHARED | {"length": 0}], "line 2: length"),
        ([HEADER, TURN | {"follows": "a", "from": 15}], "line 2: `from` is beyond the prompt"),
        ([HEADER, {"trace": {"step": 1}}], "line 2: it is no step of a trace: scheduled"),
    ],
    ids=["empty", "headless", "unknown", "twice", "length", "from", "step"],
)
def test_a_broken_recording_is_refused_with_its_line(
    lines: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=message):
        read_recording(write(tmp_path / "t.jsonl", lines))


def test_what_is_imported_replays_and_is_a_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "traffic.jsonl", LINES)
    assert main(["decisions", "import", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["requests"], told["follow"], told["aborted"], told["unfinished"]) == (3, 1, 1, 1)
    case, requests, settings = map(Path, told["files"])
    assert main(["replay", str(case), "--json"]) == 0
    trace = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    recorded = [*LINES, *({"trace": line} for line in trace)]
    write(path, recorded)
    assert main(["decisions", "import", str(path)]) == 0
    assert main(["replay", str(case), "--check"]) == 0
    capsys.readouterr()
    asked = ("compare", str(requests), "--config", str(settings), "--vary", "evictor=lru,fifo")
    assert main([*asked, "--seeds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [0]
