"""`paged-core generate`, as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_policies.schedulers.token_budget import TokenBudgetScheduler

pytestmark = pytest.mark.heavy


PROMPTS = ["Once upon a time", "What is paged attention?", "Count from one to ten:", "Hello!"]
KEYS = {"prompt", "prompt_token_ids", "num_cached_tokens", "outputs"}
OUTPUT_KEYS = {
    "index", "text", "token_ids", "finish_reason", "is_cut", "error",
    "cumulative_logprob", "logprobs",
}  # fmt: skip


def run(
    capsys: pytest.CaptureFixture[str], *args: str, environ: dict[str, str] | None = None
) -> tuple[int, str, str]:
    status = main(["generate", *args], {**os.environ, **(environ or {})})
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_has_the_documented_shape(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *PROMPTS, "--json", "--max-tokens", "8", "--n", "2")
    assert status == 0
    found = rows(out)
    assert [row["prompt"] for row in found] == PROMPTS
    for row in found:
        assert set(row) == KEYS
        assert [output["index"] for output in row["outputs"]] == [0, 1]
        assert all(set(output) == OUTPUT_KEYS for output in row["outputs"])
        assert row["outputs"][0]["cumulative_logprob"] is None


def test_one_part_swapped_gives_the_same_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("scheduler: {name: prefill_or_decode, max_num_seqs: 2}\n")
    ways: list[tuple[tuple[str, ...], dict[str, str]]] = [
        ((), {}),
        (("--config", str(file)), {}),
        ((), {"PAGED_CORE_BLOCK_ALLOCATOR__NAME": "uncached"}),
        (("--profile", "vllm-v0", "--num-blocks", "7"), {}),
    ]
    texts = set()
    for options, environ in ways:
        # the pool holds 112 tokens at most, and these four want far more between them
        status, out, _ = run(
            capsys, *PROMPTS, "--json", "--max-tokens", "48", "--max_model_len", "100",
            *options, environ=environ,
        )  # fmt: skip
        assert status == 0
        texts.add(json.dumps([row["outputs"] for row in rows(out)]))
    assert len(texts) == 1


def test_text_for_people_and_streaming_agree(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain, _ = run(capsys, "Hello!", "--max-tokens", "16")
    _, streamed, _ = run(capsys, "Hello!", "--max-tokens", "16", "--stream")
    assert plain.startswith("Hello!")
    assert streamed == plain
    _, plain, _ = run(capsys, *PROMPTS, "--max-tokens", "16")
    _, streamed, _ = run(capsys, *PROMPTS, "--max-tokens", "16", "--stream")
    assert [line for line in streamed.splitlines() if line] == [
        line for line in plain.splitlines() if line
    ]


def test_one_refused_prompt_does_not_keep_the_others_from_running(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "word " * 2000
    status, out, err = run(capsys, "Hello!", long, "2 + 2 =", "--json", "--max-tokens", "4")
    assert status == 1
    found = rows(out)
    assert [row["outputs"][0]["finish_reason"] for row in found][1] == "error"
    assert "max_model_len" in found[1]["outputs"][0]["error"]
    assert all(row["outputs"][0]["token_ids"] for row in (found[0], found[2]))
    assert err.startswith("error: prompt 2: ")


def test_a_policy_that_raises_is_shown_with_its_line_and_ends_with_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise StopIteration

    monkeypatch.setattr(TokenBudgetScheduler, "schedule", broken)
    status, _, err = run(capsys, "Hello!", "2 + 2 =")
    assert status == 1
    line = f"{__file__}:{broken.__code__.co_firstlineno + 1} in broken"
    for prompt in ("prompt 1", "prompt 2"):
        (told,) = (each for each in err.splitlines() if each.startswith(f"error: {prompt}: "))
        assert "raised StopIteration" in told
        assert line in told


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 2, "give a prompt"),
        (["a", "--top-p", "3"], 2, "top_p"),
        (["a", "--device", "mps"], 2, "mps is not there"),
        (["a", "--scheduler", "token_buget"], 2, "did you mean 'token_budget'"),
        (["a", "--no-such-option", "3"], 2, "no-such-option"),
        (["a", "--prompts-file", "/no/such/file"], 2, "/no/such/file"),
        (["a", "--stream", "--json"], 2, "exclude"),
        (["a", "--max_model_len", "5000"], 2, "max_model_len"),
    ],
)
def test_mistakes_get_one_clear_line(
    capsys: pytest.CaptureFixture[str], args: list[str], status: int, message: str
) -> None:
    got, out, err = run(capsys, *args)
    assert (got, out) == (status, "")
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err


def test_ctrl_c_prints_what_is_finished(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("2 + 2 =\n" + "Once upon a time\n" * 200)
    command = [sys.executable, "-m", "paged_core", "generate", "--prompts-file", str(prompts)]
    command += ["--json", "--max-tokens", "900", "--scheduler.max_num_seqs", "1"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert started.stdout is not None
    first = json.loads(started.stdout.readline())
    assert first["prompt"] == "2 + 2 ="
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "Traceback" not in err
    assert len(out.splitlines()) < 200
    assert "unfinished" in err
    assert all(json.loads(line)["outputs"][0]["finish_reason"] for line in out.splitlines())
