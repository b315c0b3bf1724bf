"""``bench compare``: contenders in processes of their own, who take turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from integration import tiny_models
from paged_core.cli import main
from paged_core.errors import EngineError
from paged_plugins.bench.peer_process import PeerProcess
from paged_plugins.bench.peers import OURS, PEERS, Peer, Task, Vllm
from paged_plugins.bench.workloads import NAMED, Item, Workload

Capture = pytest.CaptureFixture[str]

ITEMS = [Item([5, 6, 7], 3), Item([8, 9], 5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save("llama", tmp_path_factory.mktemp("llama")))


def task(model: str) -> Task:
    settings = {"model": model, "dtype": "float32", "threads": 1, "num_blocks": 32}
    return Task(model=model, dtype="float32", threads=1, max_model_len=64, settings=settings)


def run(capfd: Capture, *argv: str, status: int = 0) -> str:
    assert main(["bench", "compare", *argv], {"PATH": ""}) == status
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return err if status else out


def test_all_generate_the_same(
    model: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(NAMED, "W2", Workload("W2", "", lambda _: ITEMS))
    monkeypatch.setattr("paged_plugins.bench.roofline._READ_BYTES", 1 << 20)
    argv = ("--model", model, "--dtype", "float32", "--workload", "W2", "--repeats", "1")
    out = run(
        *(capfd, *argv, "--threads", "1", "--peer", "transformers_static", "--json"),
        *("--output", str(tmp_path / "rows"), "--num-blocks", "32"),
    )
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (row["workload"], row["requests"], row["output_tokens"]) == ("W2", 2, 8)
    ours, other = row["contenders"]
    assert (ours["name"], other["name"]) == (OURS.name, "transformers_static")
    assert ours["ratio"] == ours["same_tokens"] == other["same_tokens"] == 1
    assert (tmp_path / "rows").read_text() == out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "--model demo"),
        (("--model", "x"), "--dtype auto"),
        (("--model", "x", "--dtype", "float32", "--peer", "none"), "no peer is called 'none'"),
    ],
)
def test_errors(argv: tuple[str, ...], message: str, capfd: Capture) -> None:
    assert message in run(capfd, *argv, status=2)


def test_a_peer_that_is_not_installed(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "absent", Peer("absent", "no_such_package", Vllm, ""))
    argv = ("--model", "x", "--dtype", "float32", "--peer", "absent")
    assert "needs the package no_such_package" in run(capfd, *argv, status=2)


def test_a_contender_that_cannot_load_says_why(model: str) -> None:
    with pytest.raises(EngineError, match=r"paged_core: .*no folder"):
        PeerProcess(OURS, task("./none"))


def test_a_contender_that_fails_says_why(model: str) -> None:
    with PeerProcess(OURS, task(model)) as ours, pytest.raises(EngineError, match="vocabulary"):
        ours.run([Item([100_000], 2)])


def test_what_vllm_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    class Engine:
        def __init__(self, model: str, **options: Any) -> None:
            asked.update(options, model=model)

        def generate(self, prompts: Any, sampling: Any, use_tqdm: bool) -> Any:
            asked.update(prompts=prompts, sampling=sampling)
            answers = [
                SimpleNamespace(token_ids=(1,) * params["max_tokens"]) for params in sampling
            ]
            return [SimpleNamespace(outputs=[answer]) for answer in answers]

    module = SimpleNamespace(LLM=Engine, SamplingParams=dict, __version__="0")
    monkeypatch.setitem(sys.modules, "vllm", module)
    assert [len(output) for output in Vllm(task("some/model")).run(ITEMS)] == [3, 5]
    assert (asked["model"], asked["dtype"], asked["max_model_len"]) == ("some/model", "float32", 64)
    assert asked["prompts"][0] == {"prompt_token_ids": [5, 6, 7]}
    assert asked["sampling"][0]["ignore_eos"]
