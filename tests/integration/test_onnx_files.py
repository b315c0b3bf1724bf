"""ONNX files that other libraries made are served, and say what their source models say.

``tools/make_onnx_files.py`` makes them.
"""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from integration.step_driver import load_runner, served_at_random, settings
from paged_core import LLM, SamplingParams

FOLDER = Path(__file__).parents[1] / "data" / "onnx"
NAMES = sorted(path.name for path in FOLDER.iterdir())
NUM_TOKENS = 24
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)


def expected(name: str) -> tuple[list[str], list[list[int]]]:
    read = json.loads((FOLDER / name / "expected.json").read_text())
    return read["prompts"], read["tokens"]


def load(name: str, **changes: Any) -> Any:
    return load_runner(settings(FOLDER / name, **changes), "onnxruntime")


def answers(name: str, **changes: Any) -> list[list[int]]:
    prompts, _ = expected(name)
    options = {"runner": "onnxruntime", "num_blocks": 60, "block_size": 4, **changes}
    with LLM(str(FOLDER / name), **options) as llm:
        outputs = llm.generate(prompts, GREEDY)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("name", NAMES)
def test_generates_the_text_of_its_source_model(name: str) -> None:
    """``auto`` finds the runner, and the tokenizer lies in the same folder."""
    assert answers(name, runner="auto") == expected(name)[1]


@pytest.mark.parametrize("name", NAMES)
def test_does_not_depend_on_the_schedule(name: str) -> None:
    """In chunks and batches, and swapped out and in, at random."""
    chosen = settings(FOLDER / name, block_size=4, num_blocks=60)
    runner = load_runner(chosen, "onnxruntime")
    prompts, tokens = expected(name)
    encoded = [[_token(character) for character in prompt] for prompt in prompts]
    assert served_at_random(chosen, runner, encoded, NUM_TOKENS, seed=3) == [tokens]


def _token(character: str) -> int:
    vocabulary = json.loads((FOLDER / NAMES[0] / "tokenizer.json").read_text())["model"]["vocab"]
    return int(vocabulary[character])


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("name", ["genai-gemma2", "optimum-gpt2"])
def test_an_engine_that_prefills_in_chunks_and_preempts(name: str, preemption: str) -> None:
    scheduler = {"name": "token_budget", "max_num_batched_tokens": 8}
    given = answers(name, num_blocks=18, preemption=preemption, scheduler=scheduler)
    assert given == expected(name)[1]


def test_a_prefix_that_is_cached_changes_nothing() -> None:
    prompt = expected("optimum-gemma2")[0][2]
    with LLM(str(FOLDER / "optimum-gemma2"), num_blocks=60, block_size=4) as llm:
        first, again = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert again.num_cached_tokens > 0
    assert first.outputs[0].token_ids == again.outputs[0].token_ids


@pytest.mark.parametrize("name", ["genai-qwen3", "optimum-gemma2", "genai-llama-multi-head"])
def test_a_cache_of_another_dtype(name: str) -> None:
    """The graph computes as it is; queries, keys and values leave it in the chosen dtype."""
    layers = load(name, dtype="bfloat16").layers
    assert {layer.dtype for layer in layers} == {"bfloat16"}
    tokens = [token for output in answers(name, dtype="bfloat16") for token in output[:4]]
    wanted = [token for output in expected(name)[1] for token in output[:4]]
    assert sum(map(int.__eq__, tokens, wanted)) >= len(wanted) // 2


def test_an_8_bit_cache() -> None:
    layers = load("genai-qwen3", kv_cache_dtype="fp8_e4m3").layers
    assert {layer.kv_cache_dtype for layer in layers} == {"fp8_e4m3"}


@pytest.mark.parametrize("name", ["genai-gemma2", "optimum-gemma2"])
def test_windows_and_caps(name: str) -> None:
    """One library writes both into the graph; the other only the window, and that into a mask."""
    layers = load(name).layers
    assert [(layer.sliding_window, layer.soft_cap) for layer in layers] == [(8, 2.0), (None, 2.0)]


def test_deterministic_computes_4_bit_weights_in_floating_point() -> None:
    """The file asks for 8-bit arithmetic, in which last bits can depend on the batch."""
    rows = []
    for deterministic in (False, True):
        runner = load("genai-llama-int4", deterministic=deterministic)
        hidden = runner.forward(torch.tensor([5]), torch.tensor([0]), lambda _, query, *__: query)
        rows.append(runner.logits(hidden))
    assert 1e-4 < float((rows[0] - rows[1]).abs().max()) < 0.5


def test_what_is_known_of_a_model() -> None:
    runner = load("genai-llama-int4")
    assert (runner.vocab_size, runner.max_model_len, runner.eos_token_ids) == (98, 96, {2})
    size = runner.model_size()
    hidden, heads, kv_heads, wide = 32, 64, 32, 64
    layer = hidden * (heads + 2 * kv_heads) + heads * hidden + 3 * hidden * wide
    assert (size.layer_weights, size.head_weights) == (2 * layer, hidden * 98)
    assert list(size.layers) == list(runner.layers)


def test_the_example_serves_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = FOLDER / "genai-qwen3"
    prompts, tokens = expected(folder.name)
    example = str(FOLDER.parents[2] / "examples" / "onnx_folder.py")
    monkeypatch.setattr("sys.argv", [example, str(folder), "--max-tokens", str(NUM_TOKENS)])
    monkeypatch.setattr("sys.stdin", StringIO("\n".join([*prompts, prompts[0]])))
    run_path(example, run_name="__main__")
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(prompts) + 1
    text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(tokens[0])
    assert f"{prompts[0]!r}: {text!r}\n" in out
    assert f"{len(prompts) + 1} answers in " in err
