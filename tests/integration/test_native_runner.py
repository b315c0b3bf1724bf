"""The runner ``native`` says what the library itself generates, for all that it covers."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from integration import tiny_models
from integration.step_driver import (
    load_runner,
    settings,
)
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.runners.native.families import _FAMILIES, decoder_config
from paged_backends.runners.native.ops import frequencies
from paged_backends.runners.native.runner import NativeRunner
from paged_core import LLM, SamplingParams
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.interfaces.runner import Runner
from unit import cpu_kernels

pytestmark = pytest.mark.heavy


NUM_TOKENS = 8


@pytest.mark.parametrize("name", list(tiny_models.NATIVE))
def test_it_is_described_as_the_library_describes_it(name: str, tmp_path: Path) -> None:
    tiny_models.save(name, tmp_path)
    own, other = (load_runner(tmp_path, runner) for runner in ("native", "transformers"))
    assert described(own) == described(other)


def described(runner: Runner) -> dict[str, Any]:
    # the library's opt multiplies its queries by the scale before attention
    layers = [replace(layer, scale=1.0) for layer in runner.layers]
    return {
        "layers": layers,
        "vocab_size": runner.vocab_size,
        "max_model_len": runner.max_model_len,
        "eos_token_ids": runner.eos_token_ids,
    }


# ---------------------------------------------------------------------- weights


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_models.save("llama", tmp_path / "llama")


def answers(folder: Path, **changes: Any) -> list[list[int]]:
    with LLM(str(folder), **{"runner": "native", "num_blocks": 40, **changes}) as llm:
        outputs = llm.generate(
            tiny_models.PROMPTS, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        )
    return [output.outputs[0].token_ids for output in outputs]


def test_weights_in_a_pickle(llama: Path) -> None:
    expected = answers(llama)
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    torch.save(model.state_dict(), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    assert answers(llama, allow_pickle=True) == expected


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama, linear rope, tied"])
def test_a_checkpoint_of_the_bare_decoder_or_of_its_embedding_as_the_head(
    name: str, tmp_path: Path
) -> None:
    tiny_models.save(name, tmp_path)
    expected, path = answers(tmp_path), tmp_path / "model.safetensors"
    weights = load_file(path)
    transformers.AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert answers(tmp_path) == expected
    tables = (".embed_tokens.weight", ".wte.weight")
    weights["lm_head.weight"] = weights.pop(next(each for each in weights if each.endswith(tables)))
    save_file(weights, path, {"format": "pt"})
    assert answers(tmp_path) == expected


def test_a_tied_model_that_brings_a_head_of_its_own(llama: Path) -> None:
    expected = answers(llama)
    change(llama, tie_word_embeddings=True)
    assert answers(llama) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_format_asked_for_is_obeyed(llama: Path, dtype: str) -> None:
    runner = load_runner(settings(llama, dtype=dtype), "native")
    assert {layer.dtype for layer in runner.layers} == {dtype}


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("llama", "auto"), ("llama", "off"), ("gemma2", "off"), ("opt", "auto"), ("gpt2", "off")],
)
def test_in_16_bits_logits_are_close_to_those_in_32(
    name: str, kernels: Any, tmp_path: Path
) -> None:
    tiny_models.save(name, tmp_path)
    logits = []
    for dtype in ("float32", "bfloat16"):
        runner = load_runner(settings(tmp_path, dtype=dtype), "native", kernels=kernels)
        tokens = torch.tensor(tiny_models.PROMPTS[0])
        hidden = runner.forward(tokens, torch.arange(len(tokens)), lambda _i, _q, _k, _v: _q)
        logits.append(runner.logits(hidden))
        capped = name == "gemma2"  # in float32: the cap would be rounded again
        assert logits[-1].dtype == (torch.float32 if capped else getattr(torch, dtype))
        assert torch.equal(runner.best_tokens(hidden)[0], logits[-1].argmax(-1))
    error = (logits[0] - logits[1]).norm() / logits[0].norm()
    assert error < 0.05


WAYS: list[dict[str, int]] = [
    {},
    {"max_num_seqs": 1},
    {"max_num_seqs": 3, "max_num_batched_tokens": 5},  # prompts come in chunks
]


@pytest.mark.parametrize(
    ("name", "options"),
    [("llama", {}), ("gemma2", {}), ("opt", {}), ("qwen3", {"quantization": "int4"})],
)
def test_deterministic_tokens_in_16_bits_do_not_depend_on_the_batch(
    name: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paged_backends.quantization.disk_cache.cache_dir", lambda: tmp_path / "q")
    folder, runner = tiny_models.save(name, tmp_path / "model"), {"name": "native", **options}
    chosen = {"runner": runner, "dtype": "bfloat16", "deterministic": True}
    found = [answers(folder, **chosen, scheduler=way) for way in WAYS]
    assert all(tokens == found[0] for tokens in found)


@pytest.mark.parametrize("name", sorted(tiny_models.NATIVE.keys() & tiny_models.FAMILIES.keys()))
def test_all_layers_run_in_one_call_of_the_kernels(name: str, tmp_path: Path) -> None:
    cpu_kernels.load("auto")  # skips the test where there are none
    tiny_models.save(name, tmp_path)
    assert load_runner(tmp_path, "native")._decoder.fused is not None


def test_stored_in_16_bits_and_computed_in_32(tmp_path: Path) -> None:
    tiny_models.save("llama", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    expected = tiny_models.generate(tmp_path, tiny_models.PROMPTS, NUM_TOKENS)
    assert answers(tmp_path) == expected
    assert answers(tmp_path, runner={"name": "native", "kernels": "off"}) == expected


# ---------------------------------------------------------------------- what it does not cover


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_parameters": YARN}, "'yarn'"),
        ({"rope_parameters": HALF}, "part of a head"),
        ({"hidden_act": "quick_gelu"}, "'quick_gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"warp": 2.0}}, r"what rope_parameters\.warp may mean"),
        ({"rope_scaling": {"full_attention": {}}}, r"what rope_scaling\.full_attention may"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_type": "linear"}},
            r"what rope_parameters\.rope_type may",
        ),
        ({"text_config": {}}, "a text_config of its own"),
        ({"is_causal": False}, "attention in both directions.*; choose a model"),
        ({"is_causal": None}, "attention in both directions.*; choose a model"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "with a configuration of their own"),
        ({"model_type": "phi3"}, "cover llama, .* is of type phi3"),
        (
            {"model_type": "qwen2", "layer_types": ["chunked"] * 2},
            "lack layers of the type chunked",
        ),
    ],
)
def test_a_feature_that_is_missing_is_named(
    llama: Path, changes: dict[str, Any], reason: str
) -> None:
    change(llama, **changes)
    with pytest.raises(UnsupportedModel, match=reason):
        load_runner(llama, "native")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_attention_heads": "many"}, "num_attention_heads must be a whole number"),
        ({"num_key_value_heads": 3}, "a divisor of num_attention_heads"),
        ({"rms_norm_eps": "small"}, "must be a number"),
        ({"tie_word_embeddings": 3}, "true or false"),
        ({"rope_parameters": [1]}, "must be an object"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor must be given"),
        ({"vocab_size": 0}, "at least 1"),
        *(({"layer_types": ["full_attention"] * count}, "of 2 in all") for count in (0, 1, 3)),
        *(({key: None}, key) for key in ("rms_norm_eps", "hidden_act", "attention_bias")),
    ],
)
def test_nonsense_in_the_configuration(llama: Path, changes: dict[str, Any], reason: str) -> None:
    change(llama, **changes)
    with pytest.raises(
        CheckpointError, match=f"does not describe a model of type llama: .*{reason}"
    ):
        load_runner(llama, "native")


SLIDES = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("kind", "windows"),
    [
        ("llama", {}),
        *((kind, {"sliding_window": 8}) for kind in ("qwen2", "qwen3")),
        ("qwen2", {"use_sliding_window": True, "sliding_window": None}),
        *((kind, {"sliding_window": None}) for kind in ("gemma2", "gemma3_text")),
    ],
)
def test_a_sliding_layer_has_a_window(kind: str, windows: dict[str, Any], tmp_path: Path) -> None:
    config = {"model_type": kind, "num_hidden_layers": 2, "layer_types": SLIDES, **windows}
    with pytest.raises(CheckpointError, match=r"without 'sliding_attention'|sliding_window must"):
        decoder_config(Checkpoint(tmp_path, config, {}))


def test_a_family_without_windows_may_slide_in_the_library(tmp_path: Path) -> None:
    """As there its layers do not either, whatever is said of them."""
    folder = tiny_models.save("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="lack sliding windows in models of this type"):
        LLM(str(folder), runner="native")
    with LLM(str(folder), num_blocks=8) as llm:
        assert not isinstance(llm.engine.executor._loaded.runner, NativeRunner)  # type: ignore[attr-defined]


def test_auto_takes_it_where_it_can_and_the_library_elsewhere(llama: Path, tmp_path: Path) -> None:
    with LLM(str(llama)) as llm:
        assert isinstance(llm.engine.executor._loaded.runner, NativeRunner)  # type: ignore[attr-defined]
    other = tiny_models.save("phi3", tmp_path / "phi3")
    with LLM(str(other)) as llm:
        assert not isinstance(llm.engine.executor._loaded.runner, NativeRunner)  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedModel, match="phi3"):
        LLM(str(other), runner="native")


# ---------------------------------------------------------------------- defaults, start-up


@pytest.mark.parametrize("kind", list(_FAMILIES))
def test_what_a_configuration_leaves_out_is_as_the_library_has_it(
    kind: str, tmp_path: Path
) -> None:
    """Written out in full or left out: the same model."""
    full = transformers.CONFIG_MAPPING[kind]()
    written = Checkpoint(tmp_path, {**full.to_dict(), "model_type": kind}, {})
    bare = Checkpoint(tmp_path, {"model_type": kind}, {})
    assert decoder_config(bare) == decoder_config(written)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_no_number_of_key_heads_means_as_many_as_query_heads(kind: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, {"model_type": kind, "num_key_value_heads": None}, {})
    config = decoder_config(checkpoint)
    assert config.num_kv_heads == config.num_heads


def test_tokens_that_end_a_sequence_are_token_ids(tmp_path: Path) -> None:
    config = {"model_type": "llama", "eos_token_id": [2, "x"]}
    with pytest.raises(CheckpointError, match=r"eos_token_id is .* must be a token id or a list"):
        decoder_config(Checkpoint(tmp_path, config, {}))


@pytest.mark.parametrize("runner", ["native", "transformers"])
def test_ends_beyond_the_vocabulary_are_named_and_left_out(llama: Path, runner: str) -> None:
    change(llama, eos_token_id=9999)
    (llama / "generation_config.json").write_text('{"eos_token_id": [5, 99999]}')
    with capture_logs() as logs:
        assert load_runner(llama, runner).eos_token_ids == {5}
    (warned,) = [each for each in logs if each["event"] == "end_tokens_beyond_vocabulary"]
    assert warned["token_ids"] == [9999, 99999]


def test_weights_of_which_no_dtype_is_said(tmp_path: Path) -> None:
    """The dtype is that of the first matrix, behind a vector here."""
    change(tiny_models.save("gpt2", tmp_path), dtype=None, torch_dtype=None)
    assert load_runner(tmp_path, "native").layers[0].dtype == "float32"


OLDER = {"rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 3.0}}
NEWER = {"rope_parameters": {"rope_type": "linear", "rope_theta": 77.0, "factor": 3.0}}


def test_older_configurations_say_the_same_in_other_words(llama: Path) -> None:
    plain = Checkpoint.open(str(llama)).config
    stripped = {key: value for key, value in plain.items() if key != "rope_parameters"}
    older, newer = (Checkpoint(llama, {**stripped, **rope}, {}) for rope in (OLDER, NEWER))
    assert decoder_config(older) == decoder_config(newer)


def test_the_older_word_for_the_type_is_read_where_the_library_reads_it(tmp_path: Path) -> None:
    for kind, expected in (("llama", {"linear"}), ("gemma3_text", {"default"})):
        config = {"model_type": kind, "rope_scaling": {"type": "linear", "factor": 2.0}}
        layers = decoder_config(Checkpoint(tmp_path, config, {})).layers
        assert {layer.rope and layer.rope.scaling for layer in layers} == expected


BESIDE = "original_max_position_embeddings"
WITHIN = {key: value for key, value in tiny_models.LLAMA3.items() if key != BESIDE}


@pytest.mark.parametrize("within", [{}, {BESIDE: 32}], ids=["", "within"])
@pytest.mark.parametrize("beside", [{}, {BESIDE: 64}], ids=["", "beside"])
@pytest.mark.parametrize("length", [{}, {"max_position_embeddings": 256}], ids=["", "length"])
@pytest.mark.parametrize("form", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma", "gemma3_text"])
def test_the_original_length_is_read_where_the_library_reads_it(
    kind: str,
    form: str,
    length: dict[str, int],
    beside: dict[str, int],
    within: dict[str, int],
    tmp_path: Path,
) -> None:
    rope: dict[str, Any] = {**WITHIN, **within}
    nested = kind == "gemma3_text" and form == "rope_parameters"
    given = {form: {**tiny_models.GEMMA3_ROPES, "full_attention": rope} if nested else rope}
    config = {"model_type": kind, **given, **length, **beside}
    library = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    layer_type = {"layer_type": "full_attention"} if kind == "gemma3_text" else {}
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](library, "cpu", **layer_type)
    own = decoder_config(Checkpoint(tmp_path, config, {}))
    ropes = {layer.rope for layer in own.layers if layer.rope and layer.rope.scaling == "llama3"}
    (found,) = (frequencies(rope, own.head_dim) for rope in ropes)
    torch.testing.assert_close(found, expected)


def test_it_starts_without_the_libraries_of_other_runners(llama: Path) -> None:
    code = (
        "import sys; from paged_core import LLM\n"
        f"llm = LLM({str(llama)!r}); llm.generate([[1, 2, 3]])\n"
        "sys.exit(bool({'transformers', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
