"""``generate --prompts-file``: lines with parameters, messages, and the OpenAI batch format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from integration import damage
from paged_core.cli import main
from paged_core.cli import prompts_file as module
from paged_core.cli.prompts_file import read_tasks

Capture = pytest.CaptureFixture[str]
QUESTION = "What is a block table?"


def written(folder: Path, *lines: Any) -> str:
    path = folder / "tasks.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts), "utf-8")
    return str(path)


def batch(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m"} | body}


def generated(capsys: Capture, name: str, *args: str, status: int = 0) -> list[dict[str, Any]]:
    got = main(["generate", "--prompts-file", name, "--json", "--num-blocks", "64", *args])
    out, err = capsys.readouterr()
    assert got == status, err
    return [json.loads(line) for line in out.splitlines()]


def test_a_line_has_parameters_of_its_own(capsys: Capture, tmp_path: Path) -> None:
    name = written(
        tmp_path,
        json.dumps(QUESTION),
        "",
        {"prompt": QUESTION, "max_tokens": 2},
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 3, "ignore_eos": True, "priority": 1},
        {"prompt": QUESTION, "n": 2, "temperature": 1.0, "seed": 1},
        {"messages": [{"role": "user", "content": QUESTION}], "stop": [" "], "max_tokens": 9},
    )
    plain, short, ids, several, chat = generated(capsys, name, "--max-tokens", "5")
    assert len(plain["outputs"][0]["token_ids"]) == 5
    assert short["outputs"][0]["token_ids"] == plain["outputs"][0]["token_ids"][:2]
    assert ids["prompt_token_ids"] == [5, 6, 7]
    assert len(ids["outputs"][0]["token_ids"]) == 3
    assert len(several["outputs"]) == 2
    assert len(chat["prompt_token_ids"]) > 0
    assert " " not in chat["outputs"][0]["text"]


def test_a_batch_is_answered_in_its_format(capsys: Capture, tmp_path: Path) -> None:
    name = written(
        tmp_path,
        batch("one", prompt=QUESTION, max_tokens=4, stream=False, user="u"),
        batch(
            "two",
            "/v1/chat/completions",
            messages=[{"role": "user", "content": QUESTION}],
            max_completion_tokens=4,
            n=2,
            temperature=1,
        ),
        batch("three", prompt="a " * 3000),
        {"prompt": QUESTION, "max_tokens": 4},
    )
    one, two, three, plain = generated(capsys, name, status=1)
    assert [row["custom_id"] for row in (one, two, three)] == ["one", "two", "three"]
    body = one["response"]["body"]
    assert (one["response"]["status_code"], one["error"]) == (200, None)
    assert (body["object"], body["model"]) == ("text_completion", "demo")
    assert body["choices"][0]["text"] == plain["outputs"][0]["text"]
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 4
    chat = two["response"]["body"]
    assert chat["object"] == "chat.completion"
    assert [choice["message"]["role"] for choice in chat["choices"]] == ["assistant"] * 2
    assert three["response"]["status_code"] == 400
    assert "tokens" in three["response"]["body"]["error"]["message"]


BAD_LINES: list[tuple[Any, str]] = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("9" * 5000, "not JSON"),
    ('{"prompt": "a", "prompt": "b"}', "the key 'prompt' is given twice"),
    (7, "neither a text"),
    ({"max_tokens": 3}, "give one of 'prompt'"),
    ({"prompt": "a", "messages": []}, "give one of 'prompt'"),
    ({"prompt": 3}, "'prompt' is a text, not 3"),
    ({"prompt_token_ids": "abc"}, "list of token ids"),
    ({"messages": "hello"}, "'messages' is a list of objects"),
    ({"prompt": "a", "max_token": 3}, "did you mean 'max_tokens'?"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens must be at least 1"),
    ({"custom_id": "x", "body": {}}, "'method' is missing"),
    (batch("x", "/v1/embeddings", input="a"), "POST /v1/embeddings is not there"),
    (batch("x"), "the body for /v1/completions needs 'prompt'"),
    (batch("x", prompt=["a", "b"]), "list of token ids"),
    (batch("x", prompt="a", stream=True), "'stream' is not supported"),
    (batch("x", prompt="a", best=3), "no parameter is called 'best'; did you mean 'best_of'?"),
]


def test_a_bad_line_is_answered_in_its_place_and_the_others_go_on(
    capsys: Capture, tmp_path: Path
) -> None:
    fine = {"prompt": "fine", "max_tokens": 1}
    name = written(tmp_path, "", fine, *(line for line, _ in BAD_LINES), fine)
    assert main(["generate", "--prompts-file", name, "--json", "--num-blocks", "64"]) == 1
    out, err = capsys.readouterr()
    first, *bad, last = map(json.loads, out.splitlines())
    assert {each["outputs"][0]["finish_reason"] for each in (first, last)} <= {"length", "stop"}
    said = err.splitlines()
    for place, ((line, message), row, error) in enumerate(zip(BAD_LINES, bad, said, strict=True)):
        assert error.startswith(f"error: {name}, line {place + 3}: ")
        assert message in error
        if isinstance(line, dict) and "custom_id" in line:
            assert (row["custom_id"], row["response"]["status_code"]) == ("x", 400)
            assert message in row["response"]["body"]["error"]["message"]
        else:
            assert row["outputs"][0]["finish_reason"] == "error"
            assert message in row["outputs"][0]["error"]


def test_no_model_is_loaded_where_every_line_is_bad(capsys: Capture, tmp_path: Path) -> None:
    name = written(tmp_path, "{", {"prompt": 3})
    assert main(["generate", "--prompts-file", name, "--model", "there-is-none"]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 2)


def test_streaming_and_a_line_that_chooses_at_the_end_exclude_each_other(
    capsys: Capture, tmp_path: Path
) -> None:
    name = written(tmp_path, {"prompt": "a", "beam_width": 2})
    assert main(["generate", "--prompts-file", name, "--stream"]) == 2
    assert "--stream prints text as it comes" in capsys.readouterr().err


def test_a_file_without_an_end_is_refused(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    assert main(["generate", "--prompts-file", "/dev/zero"]) == 2
    assert "more than 1 Mi characters; split it" in capsys.readouterr().err


def test_a_closed_standard_input_is_an_empty_one() -> None:
    line = f"{sys.executable} -m paged_core generate --prompts-file - <&-"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: give a prompt")


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    name = written(tmp_path, '"a\u2028b"\r', '"c"')
    assert [task.prompt for task in read_tasks(name, {})] == ["a\u2028b", "c"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = [*module._PARAMETERS, *module._OTHERS, *module._PROMPTS]
TASKS = st.dictionaries(st.sampled_from([*KEYS, "no_such"]), JSON, max_size=4)
LINES = (
    JSON
    | TASKS.map(lambda task: task | {"prompt": "a"})
    | TASKS
    | TASKS.map(lambda body: batch("x") | {"body": body})
    | JSON.map(lambda url: batch("x", prompt="a") | {"url": url})
)


def check_line(folder: Path, line: Any) -> None:
    (task,) = read_tasks(written(folder, json.dumps(line)), {})
    assert task.problem is None or "line 1: " in str(task.problem)


@damage.lengths(150, 20_000)
def test_any_line_is_a_task_or_an_error(examples: int, tmp_path: Path) -> None:
    damage.for_examples(examples, lambda data: check_line(tmp_path, data.draw(LINES)))
