"""Workloads of the lab, sent to a live engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paged_backends.text.tokenizer import CheckpointTokenizer
from paged_core import LLM
from paged_core.engine.clock import VirtualClock
from paged_core.errors import EngineError
from paged_plugins.bench.measurement import complete
from paged_plugins.bench.workloads import LabWorkload
from paged_plugins.workloads.batch import NAMED, BatchWorkload, by_turn, is_batch
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.request import WorkloadRequest, token_ids
from unit.bench_tasks import runner

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]
run = runner("throughput")

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
    firsts = LabWorkload(workload_spec(str(path))).requests()
    clock = VirtualClock(100.0)
    with LLM(executor="memory", num_blocks=64, max_model_len=64, clock=clock) as llm:
        done = complete(llm, firsts, lambda: None, 0.0)
    groups = {name: each.generation.group for name, each in done.items()}
    arrivals = {"a": 101.5, "b": 103.5, "c": 101.5, "d": 130.0}
    assert {name: group.arrival for name, group in groups.items()} == arrivals
    assert {name: 100 + each.record.arrival for name, each in done.items()} == arrivals
    first, second, third = (groups[name].request for name in "abc")
    assert (first.tenant, first.priority, second.deadline) == ("t", 4, 113.0)
    assert (third.cache_salt, third.sampling.n, len(groups["c"].sequences)) == ("s", 2, 2)
    for request, follows in by_turn(firsts):
        before = [] if follows is None else groups[follows].sequences[0].tokens
        own = token_ids(request.prompt, None)
        assert list(groups[request.id].request.prompt) == [*before, *own]


@pytest.mark.parametrize("follows", [1, 2])
def test_a_turn_follows_one_before_it(follows: int) -> None:
    batch = BatchWorkload("chat", lambda _: [([1], 1, None), ([1], 1, follows), ([1], 1, None)])
    with pytest.raises(ValueError, match=f"follows '{follows}', which stands not before it"):
        batch.requests()


def test_no_turn_follows_one_that_ended_early() -> None:
    firsts = BatchWorkload("chat", lambda _: [([1, 2, 3], 4, None), ([4], 1, 0)]).requests()
    with LLM(executor="memory", num_blocks=64, max_model_len=6) as llm:
        with pytest.raises(EngineError, match="ended after 3 of 4 tokens"):
            complete(llm, firsts, lambda: None, 0.0)
        assert not llm.engine.scheduler


def test_what_prompts_share_they_share_in_one_repeat_only(path: Path) -> None:
    workload = LabWorkload(workload_spec(str(path)))
    first, again = workload.requests(0, vocab_size=5000), workload.requests(1, vocab_size=5000)
    assert first[0].prompt[0][:20] == first[1].prompt[0]
    assert first == workload.requests(0, vocab_size=5000)
    for one, other in zip(first, again, strict=True):
        assert one.num_new == other.num_new
        assert one.prompt != other.prompt
        assert max(one.prompt[0]) < 5000


def test_the_roofline_is_that_of_batches() -> None:
    assert all(is_batch(workload.requests()) for workload in NAMED.values())
    one = WorkloadRequest(id="1", prompt=((1,),), output=1)
    assert is_batch([one])
    assert not is_batch([replace(one, at=1.0)])
    assert not is_batch([replace(one, n=2)])
    assert not is_batch([replace(one, followers=(one, one))])
    assert not is_batch([replace(one, followers=(replace(one, at=1.0),))])


def test_measured_beside_each_other(path: Path, capsys: Capture) -> None:
    lines = [{**line, "at": 0.0} if "at" in line else line for line in LINES]
    lines[1]["after"] = 0.01
    path.write_text("\n".join(map(json.dumps, lines)))
    sizes = ("--executor", "memory", "--num-blocks", "64", "--repeats", "2")
    given = ("--workload", str(path), "--workload", "W4", "--no-roofline", "--json")
    rows = [json.loads(line) for line in run(capsys, *sizes, *given).splitlines()]
    assert [row["workload"] for row in rows] == ["W4", "requests"]
    assert rows[1]["output_tokens"] == 3 + 2 + 2 * 2 + 1
    assert rows[1]["input_tokens"] == 30 + (30 + 3 + 5) + (30 + 3 + 4) + 20


def test_texts_are_counted_with_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "custom.jsonl"
    path.write_text('{"prompt": "What is the capital of India?", "output_tokens": 2}')
    spec = workload_spec(str(path))
    by_bytes = CheckpointTokenizer(lambda text, _: list(text.encode()), str, frozenset())
    (counted,) = LabWorkload.counted(spec, by_bytes).requests()
    (estimated,) = LabWorkload.counted(spec, None).requests()
    assert (counted.num_new, estimated.num_new) == (29, 8)


@pytest.mark.parametrize(
    ("workload", "problem"),
    [
        ("W4,missing.jsonl", "no workload is called 'missing.jsonl', and there is no such file"),
        (__file__, "is unknown"),
    ],
)
def test_what_is_no_workload_is_refused(workload: str, problem: str, capsys: Capture) -> None:
    argv = ("--executor", "memory", "--workload", workload)
    assert problem in run(capsys, *argv, status=2)
