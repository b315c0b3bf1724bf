"""``bench quality``: what an engine predicts of a text, and how far two engines are apart."""

from __future__ import annotations

import json
import random
import shutil
import sys
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core import LLM, EngineSettings, SamplingParams
from paged_core.cli.options import SettingsArgs
from paged_core.errors import EngineError, SettingsError
from paged_core.plugins.registry import Registry
from paged_plugins.bench.quality_command import base_changes, default_variants
from paged_plugins.bench.quality_engines import (
    QualityEngines,
    Variant,
    Window,
    quality_text,
    windows_of,
)
from paged_plugins.bench.quality_scores import RowDifference, Tally, score
from unit.bench_tasks import runner

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]

DEMO = Path(__file__).parents[2] / "backends/paged_backends/demo"
SMALL = ("--threads", "1", "--dtype", "float32", "--window", "48", "--limit", "140")
run = runner("quality", *SMALL)


@pytest.fixture(scope="module")
def demo() -> Any:
    with LLM(model="demo", threads=1, dtype="float32", num_blocks=32) as llm:
        yield llm


# ------------------------------------------------------------------ the text


def test_the_text_is_what_the_demo_model_was_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO.parents[2] / "examples"))
    from demo_corpus import documents

    stream, expected = documents(random.Random(2026)), list[str]()
    while sum(map(len, expected)) < 16_000:
        text = "".join(piece.text for piece in next(stream))
        if "<|" not in text and any(map(str.isalpha, text)) and text not in expected:
            expected.append(text)
    sys.modules.pop("demo_corpus", None)
    assert quality_text(None) == "\n\n".join(expected) + "\n"


@given(
    length=st.integers(2, 80),
    num_decoded=st.none() | st.integers(1, 79),
    limit=st.integers(2, 200),
)
def test_windows_hold_consecutive_tokens(length: int, num_decoded: int | None, limit: int) -> None:
    text, tokenizer = quality_text(None)[:1000], load_tokenizer("demo")
    assert tokenizer is not None
    start, *body = tokenizer.encode(text)
    try:
        windows = windows_of(text, tokenizer, length=length, num_decoded=num_decoded, limit=limit)
    except SettingsError:
        assert length < 3 or (num_decoded or 0) >= min(length, limit + 1, len(body) + 1)
        return
    assert all(window.tokens[0] == start for window in windows)
    held = [token for window in windows for token in window.tokens[1:]]
    assert held == body[: len(held)]
    assert len(held) <= limit < len(held) + length or len(windows) == 1
    for window in windows:
        assert [*window.prompt, *window.decoded] == list(window.tokens)
        assert window.prompt
        assert len(window.decoded) == (num_decoded or max(1, len(window.tokens) // 4))


# ------------------------------------------------------------------ what an engine predicts


def test_decoded_tokens_score_as_prefilled_ones_do(demo: LLM) -> None:
    windows = windows_of(
        quality_text(None), demo.get_tokenizer(), length=40, num_decoded=15, limit=100
    )
    scores = score(demo, windows)
    outputs = demo.generate(
        [list(window.tokens) for window in windows], SamplingParams(max_tokens=1, prompt_logprobs=1)
    )
    for window, found, output in zip(windows, scores, outputs, strict=True):
        (_, *entries) = output.prompt_logprobs or ()
        expected = [
            entry[token].logprob
            for token, entry in zip(window.tokens[1:], entries, strict=True)
            if entry is not None
        ]
        assert found.prefilled + found.decoded == pytest.approx(expected, abs=1e-3)
        assert len(found.decoded) == len(found.logits_DV) == 15
        assert len(found.best_tokens) == len(window.tokens) - 1


def test_a_window_that_ends_early_is_an_error(demo: LLM) -> None:
    with (
        LLM(model="demo", threads=1, dtype="float32", num_blocks=3, max_model_len=47) as small,
        pytest.raises(EngineError, match=r"after 15 of 20 decoded tokens \(length\)"),
    ):
        score(small, [Window(range(10, 62), 32)])


def test_differences_are_those_of_the_definitions() -> None:
    generator = torch.Generator().manual_seed(1)
    base, other = torch.randn(2, 50, generator=generator).unbind()
    found = RowDifference.between(base, other)
    p, q = ([exp(x) for x in row.tolist()] for row in (base, other))
    p, q = ([x / sum(row) for x in row] for row in (p, q))
    assert found.divergence == pytest.approx(
        sum(x * log(x / y) for x, y in zip(p, q, strict=True)), rel=1e-5
    )
    apart = [abs(x - y) for x, y in zip(base.tolist(), other.tolist(), strict=True)]
    assert found.mean == pytest.approx(sum(apart) / 50)
    assert found.largest == pytest.approx(max(apart))
    assert RowDifference.between(base, base) == RowDifference(0, 0, 0)


def test_a_prompt_of_one_token_has_no_perplexity(demo: LLM) -> None:
    tally, (scores,) = Tally(), score(demo, [Window([1, 20, 30], 1)])
    tally.add(scores, scores)
    figures = tally.figures()
    assert figures["perplexity_prefilled"] is None
    assert figures["perplexity"] == figures["perplexity_decoded"]


def test_a_perplexity_beyond_all_numbers_is_the_largest() -> None:
    tally = Tally(prefilled=[-1e6], decoded=[-2.0])
    assert tally.figures()["perplexity_prefilled"] == pytest.approx(exp(700), rel=1e-5)
    assert tally.figures()["perplexity_decoded"] == pytest.approx(exp(2), rel=1e-5)


# ------------------------------------------------------------------ the command


def changed_demo(folder: Path) -> Path:
    """Copy the demo model, one matrix of it a tenth larger."""
    shutil.copytree(DEMO, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.3.mlp.down_proj.weight"] *= 1.1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_change_of_one_matrix_is_found(capfd: Capture, tmp_path: Path) -> None:
    changed = changed_demo(tmp_path / "changed")
    out = run(
        *(capfd, "--variant", "same={seed: 1}", "--variant", f"changed={{model: {changed}}}"),
        *("--json", "--output", str(tmp_path / "figures.json")),
    )
    found = json.loads(out)
    assert json.loads((tmp_path / "figures.json").read_text()) == found
    assert (found["windows"], found["window"], found["decoded"]) == (2, 48, 12)
    assert found["tokens"] == 96
    same, other = found["variants"]
    assert (same["name"], other["name"], other["model"]) == ("same", "changed", str(changed))
    assert same["perplexity"] == found["base"]["perplexity"]
    assert same["logit_difference_max"] == same["divergence_max"] == 0
    assert same["perplexity_ratio"] == same["same_best_token"] == 1
    assert same["perplexity_ratio_error"] == 0 < other["perplexity_ratio_error"]
    assert other["logit_difference_max"] > 0.1
    assert other["divergence_mean"] > 1e-5
    assert other["logprob_difference_prefilled"] > 1e-3


def test_the_table_names_what_was_left_out(capfd: Capture, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("A block table maps the blocks of a sequence to blocks of the cache. " * 5)
    out = run(capfd, "--text", str(text), "--runner", "native", "--attention", "cpu")
    assert "left out fp8_e4m3 cache: attention 'cpu' cannot serve it" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--variant", "base={seed: 1}"), "'base' is another engine's name"),
        (("--variant", "a={atention: cpu}"), "--variant a: atention"),
        (("--base", "float32"), "--base float32: write {KEY: VALUE}"),
        (("--base", "{"), "--base {: not valid YAML"),
        (("--window", "2000"), "--window 2000 is more than the 1024 tokens"),
        (("--decode", "48"), "--decode 48 leaves no token of a window of 48"),
        (("--window", "2"), "greater than or equal to 3"),
        (("--text", "/no/such/file"), "cannot read /no/such/file"),
        (("--executor", "memory", "--max-model-len", "64"), "no tokenizer"),
    ],
)
def test_mistakes(argv: tuple[str, ...], message: str, capfd: Capture) -> None:
    assert message in run(capfd, *argv, status=2)


def test_another_vocabulary_is_refused(capfd: Capture, tmp_path: Path) -> None:
    other = shutil.copytree(DEMO, tmp_path / "other")
    config = json.loads((other / "config.json").read_text()) | {"vocab_size": 2000}
    (other / "config.json").write_text(json.dumps(config))
    weights = load_file(other / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:2000].clone()
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    message = run(capfd, "--variant", f"other={{model: {other}}}", status=2)
    assert "--variant other: its vocabulary has 2000 tokens and that of the base 2048" in message


def test_another_tokenizer_is_refused(capfd: Capture, tmp_path: Path) -> None:
    other = shutil.copytree(DEMO, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = run(capfd, "--variant", f"other={{model: {other}}}", status=2)
    assert "--variant other: its tokenizer turns the text into other tokens" in message


def test_logits_must_be_in_this_process() -> None:
    registry, executor = Registry.discover(), {"name": "process", "inner": "memory"}
    with QualityEngines(SettingsArgs(registry, {}), Variant("base", {}), None) as engines:
        engines.load_if_served(Variant("remote", {"executor": executor}), "text")
    assert "'process' runs the model in another process" in engines.left_out["remote"]


def test_default_variants() -> None:
    registry = Registry.discover()
    plain = EngineSettings()
    names = [variant.name for variant in default_variants(plain, registry)]
    assert names[:3] == ["int8", "int4", "fp8_e4m3 cache"]
    quantised = EngineSettings(
        runner={"name": "onnxruntime", "quantization": "int4", "group_size": 64}
    )
    first, *others = default_variants(quantised, registry)
    assert (first.name, first.changes) == ("as given", {})
    assert [variant.name for variant in others] == names
    off = {"name": "onnxruntime", "quantization": "off"}
    assert others[1].changes["runner"] == {"name": "onnxruntime", "quantization": "int4"}
    assert others[2].changes == {"runner": off, "kv_cache_dtype": "fp8_e4m3"}
    assert base_changes(quantised) == {
        "kv_cache_dtype": "auto",
        "runner": off,
    }
    cached = default_variants(EngineSettings(runner="transformers"), registry)
    assert [variant.name for variant in cached] == names[2:]
