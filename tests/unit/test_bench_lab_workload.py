"""Workloads of the lab, sent to a live engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paged_backends.text.tokenizer import CheckpointTokenizer
from paged_core import LLM
from paged_core.cli import main
from paged_core.clock import VirtualClock
from paged_plugins.bench.completion import complete
from paged_plugins.bench.lab_workload import LabWorkload
from paged_plugins.bench.turns import full_prompt, is_batch
from paged_plugins.bench.workloads import NAMED, Item
from paged_plugins.workloads.named import names, workload_spec

Capture = pytest.CaptureFixture[str]

LINES = [
    {"id": "a", "at": 1.5, "prompt": "0:20 30:40", "output": 3, "tenant": "t", "priority": 4},
    {"id": "b", "follows": "a", "after": 2, "prompt": 5, "output": 2, "deadline": 9.5},
    {"id": "c", "follows": "a", "prompt": 4, "output": 2, "n": 2, "cache_salt": "s"},
    {"id": "d", "at": 30, "prompt": "0:20", "output": 1},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)))
    return path


def test_requests_arrive_at_their_times(path: Path) -> None:
    items = LabWorkload(workload_spec(str(path))).items()
    clock = VirtualClock(100.0)
    with LLM(executor="memory", num_blocks=64, max_model_len=64, clock=clock) as llm:
        done = complete(llm, items, lambda: None)
    groups = [each.generation.group for each in done]
    assert [group.arrival for group in groups] == [101.5, 103.5, 101.5, 130.0]
    assert [each.arrival for each in done] == [101.5, 103.5, 101.5, 130.0]
    first, second, third, _ = (group.request for group in groups)
    assert (first.tenant, first.priority, second.deadline) == ("t", 4, 113.0)
    assert (third.cache_salt, third.sampling.n, len(groups[2].sequences)) == ("s", 2, 2)
    outputs = {place: group.sequences[0].output for place, group in enumerate(groups)}
    for place, group in enumerate(groups):
        assert list(group.request.prompt) == full_prompt(items, place, outputs)


def test_what_prompts_share_they_share_in_one_repeat_only(path: Path) -> None:
    workload = LabWorkload(workload_spec(str(path)))
    first, again = workload.items(0, vocab_size=5000), workload.items(1, vocab_size=5000)
    assert first[0].prompt[:20] == first[3].prompt
    assert first == workload.items(0, vocab_size=5000)
    for one, other in zip(first, again, strict=True):
        assert len(one.prompt) == len(other.prompt)
        assert one.prompt != other.prompt
        assert max(one.prompt) < 5000


@pytest.mark.parametrize("name", names())
def test_every_named_workload_becomes_items(name: str) -> None:
    spec = workload_spec(name).model_copy(update={"requests": 60})
    items = LabWorkload(spec).items()
    assert len(items) == 60
    assert all(item.follows is None or item.follows < place for place, item in enumerate(items))


def test_the_roofline_is_that_of_batches() -> None:
    assert all(is_batch(workload.items()) for workload in NAMED.values())
    assert not is_batch([Item([1], 1, at=1.0)])
    assert not is_batch([Item([1], 1, n=2)])
    assert not is_batch([Item([1], 1), Item([2], 1, follows=0), Item([3], 1, follows=0)])


def test_measured_beside_each_other(path: Path, capsys: Capture) -> None:
    lines = [{**line, "at": 0.0} if "at" in line else line for line in LINES]
    lines[1]["after"] = 0.01
    path.write_text("\n".join(map(json.dumps, lines)))
    command = [
        "bench",
        "throughput",
        "--executor",
        "memory",
        "--num-blocks",
        "64",
        "--repeats",
        "2",
    ]
    given = ["--workload", str(path), "--workload", "W4", "--no-roofline", "--json"]
    assert main([*command, *given]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["workload"] for row in rows] == ["W4", "requests"]
    assert rows[1]["output_tokens"] == 3 + 2 + 2 * 2 + 1
    assert rows[1]["input_tokens"] == 30 + (30 + 3 + 5) + (30 + 3 + 4) + 20


def test_texts_are_counted_with_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "custom.jsonl"
    path.write_text('{"prompt": "What is the capital of India?", "output_tokens": 2}')
    spec = workload_spec(str(path))
    by_bytes = CheckpointTokenizer(lambda text, _: list(text.encode()), str, frozenset())
    (counted,) = LabWorkload.counted(spec, by_bytes).items()
    (estimated,) = LabWorkload.counted(spec, None).items()
    assert (len(counted.prompt), len(estimated.prompt)) == (29, 8)


@pytest.mark.parametrize(
    ("workload", "problem"),
    [
        ("W4,missing.jsonl", "no workload is called 'missing.jsonl', and there is no such file"),
        (__file__, "is unknown"),
    ],
)
def test_what_is_no_workload_is_refused(workload: str, problem: str, capsys: Capture) -> None:
    assert main(["bench", "throughput", "--executor", "memory", "--workload", workload]) == 2
    assert problem in capsys.readouterr().err
