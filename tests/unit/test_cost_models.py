"""The shipped cost models, against figures worked out by hand and published ones."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from paged_core.errors import SettingsError
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_plugins.lab.cost_models.devices import DEVICES
from paged_plugins.lab.cost_models.linear import PARTS, LinearCost
from paged_plugins.lab.cost_models.model_shape import SHAPES, model_shape
from paged_plugins.lab.cost_models.roofline import RooflineCost
from paged_plugins.lab.settings import LinearSettings, RooflineSettings
from unit.lab_runs import REGISTRY


def parts(**values: Any) -> CostModelContext:
    return CostModelContext(settings=settings_class(REGISTRY)(**values))


def roofline(values: dict[str, Any] | None = None, **options: Any) -> CostModel:
    return RooflineCost(RooflineSettings(**options), parts(**values or {}))


def linear(path: Path, **options: Any) -> CostModel:
    return LinearCost(LinearSettings(file=path, **options), parts())


# ---------------------------------------------------------------------- roofline

CACHED = {
    "opt-13b": 12.85e9,
    "llama-2-7b": 6.74e9,
    "llama-2-13b": 13.02e9,
    "llama-3.1-8b": 8.03e9,
    "llama-3.1-70b": 70.55e9,
    "qwen3-0.6b": 0.596e9,
    "qwen3-8b": 8.19e9,
    "mistral-7b": 7.24e9,
    "smollm-135m": 134.5e6,
}
"""Parameters, from the cards of the models."""


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_the_published_number_of_weights(name: str) -> None:
    assert SHAPES[name].weights == pytest.approx(CACHED[name], rel=0.005)


def test_the_cache_of_opt_13b_on_an_a100_is_as_published() -> None:
    """15,700 slots: table 1 of the PagedAttention paper (Kwon et al., SOSP 2023)."""
    num_blocks = roofline(device="a100-40g", model="opt-13b").num_blocks(16)
    assert num_blocks is not None
    assert 16 * num_blocks == pytest.approx(15_700, rel=0.01)


def test_decoding_alone_takes_as_long_as_reading_the_weights() -> None:
    model = roofline(memory_efficiency=1.0, step_overhead=0.0)
    step = StepWork(decode_sequences=1, decode_context=0, sampled_rows=1)
    read = 2 * (SHAPES["llama-3.1-8b"].weights - 128_256 * 4096)  # but the embedding
    assert model.seconds(step) == pytest.approx(read / 2.039e12, rel=0.001)


def test_a_long_prompt_takes_as_long_as_its_arithmetic() -> None:
    model = roofline(compute_efficiency=1.0, step_overhead=0.0, model="llama-2-7b", device="h100")
    tokens = 4096
    step = StepWork(prefill_tokens=tokens, prefill_pairs=tokens * (tokens + 1) // 2)
    linear_layers = 2 * SHAPES["llama-2-7b"].layer_weights * tokens
    attention = 4 * 4096 * 32 * tokens * (tokens + 1) / 2
    assert model.seconds(step) == pytest.approx((linear_layers + attention) / 989e12, rel=0.001)


def test_context_is_read_once_and_at_half_the_cost_in_eight_bits() -> None:
    def cost(**values: Any) -> float:
        model = roofline(values, step_overhead=0.0)
        empty = StepWork(decode_sequences=64, sampled_rows=64)
        full = StepWork(decode_sequences=64, sampled_rows=64, decode_context=64 * 4000)
        return model.seconds(full) - model.seconds(empty)

    bytes_read = 64 * 4000 * 2 * 32 * 8 * 128 * 2
    assert cost() == pytest.approx(bytes_read / (0.8 * 2.039e12), rel=0.001)
    assert cost(kv_cache_dtype="fp8_e4m3") == pytest.approx(cost() / 2, rel=0.001)


def test_several_devices_divide_the_work_and_add_exchanges() -> None:
    step = StepWork(prefill_tokens=8192, prefill_pairs=8192 * 4096)
    one, four = (
        roofline(tensor_parallel=degree, step_overhead=0.0).seconds(step) for degree in (1, 4)
    )
    assert one / 4 < four < one / 2
    assert roofline(tensor_parallel=4).num_blocks(16) > 4 * roofline().num_blocks(16)  # type: ignore[operator]


def test_copies_swaps_and_overhead_are_added() -> None:
    model = roofline(step_overhead=0.5)
    assert model.seconds(StepWork()) == 0.5
    copied = model.seconds(StepWork(copied_blocks=10)) - 0.5
    swapped = model.seconds(StepWork(swapped_blocks=10)) - 0.5
    assert 0 < copied < swapped


def test_the_memory_of_the_cache_can_be_bounded() -> None:
    block = 16 * 2 * 32 * 8 * 128 * 2
    assert roofline({"kv_cache_memory": "1GiB"}).num_blocks(16) == 2**30 // block
    whole = roofline().num_blocks(16)
    half = roofline({"kv_cache_memory": 0.5}).num_blocks(16)
    assert whole is not None
    assert half in {whole // 2, whole // 2 + 1}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "h10"}, "no device is called 'h10'.*h100"),
        ({"model": "llama-3.1-80b"}, "no model is called 'llama-3.1-80b'.*llama-3.1-8"),
    ],
)
def test_what_is_unknown_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        roofline(**options)


def test_a_model_that_does_not_fit_is_refused_with_what_helps() -> None:
    with pytest.raises(SettingsError, match=r"takes 131.4 GiB.*raise cost_model.tensor_parallel"):
        roofline(model="llama-3.1-70b", device="a100-80g").num_blocks(16)


def test_every_device_decodes_within_a_second() -> None:
    for name in DEVICES:
        step = StepWork(decode_sequences=8, decode_context=8000, sampled_rows=8)
        assert 1e-4 < roofline(device=name, model="qwen3-0.6b").seconds(step) < 1


def write_config(folder: Path, changes: dict[str, Any] | None) -> str:
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    content = [1] if changes is None else config | changes
    (folder / "config.json").write_text(json.dumps(content), "utf-8")
    return str(folder)


def test_a_shape_is_read_from_a_folder(tmp_path: Path) -> None:
    assert model_shape(write_config(tmp_path, {})) == SHAPES["smollm-135m"]


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b"),
        ("nvidia/Qwen3-8B-NVFP4", "qwen3-8b"),
        ("us/Small-Instruct-FP8", "other/small"),
    ],
    ids=lambda each: each,
)
def test_a_name_on_the_hub_stands_for_the_model_it_is_a_form_of(
    name: str, same: str, tmp_path: Path
) -> None:
    write_config(tmp_path, {"vocab_size": 77})
    published = {"other/small": tmp_path / "config.json"}
    assert model_shape(name, published) == model_shape(same, published)
    with pytest.raises(SettingsError, match="no model is called 'us/Smaller'"):
        model_shape("us/Smaller", published)


def test_the_spellings_of_older_models_are_read(tmp_path: Path) -> None:
    old = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    (tmp_path / "config.json").write_text(json.dumps(old | {"vocab_size": 50257}), "utf-8")
    shape = model_shape(str(tmp_path))
    assert shape.weights == pytest.approx(124e6, rel=0.01)
    assert (shape.gated, shape.tied, shape.max_position_embeddings) == (False, True, 1024)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": "wide"}, 'hidden_size is "wide"'),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
        ({"vocab_size": None}, "vocab_size is null"),
        (None, "it is no table"),
    ],
)
def test_a_config_that_is_no_shape_is_refused(
    changes: dict[str, Any] | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"cannot read .*: {reason}"):
        model_shape(write_config(tmp_path, changes))


# ---------------------------------------------------------------------- linear


def test_each_weight_counts_its_own_part() -> None:
    weights = {
        "per_prefill_token": "prefill_tokens",
        "per_prefill_sequence": "prefill_sequences",
        "per_prefill_pair": "prefill_pairs",
        "per_prefill_context": "prefill_context",
        "per_decode_sequence": "decode_sequences",
        "per_context_token": "decode_context",
        "per_sampled_row": "sampled_rows",
        "wake": "after_idle",
        "per_copied_block": "copied_blocks",
        "per_swapped_block": "swapped_blocks",
    }
    for weight, part in weights.items():
        values = {"fixed": 1.0, **dict.fromkeys(weights, 0.0), weight: 2.0}
        model = LinearCost(LinearSettings(**values), parts())
        assert model.seconds(StepWork(**{part: 3})) == 7.0
        others = dict.fromkeys(set(weights.values()) - {part}, 5)
        assert model.seconds(StepWork(**others)) == 1.0


def test_every_option_is_a_weight_and_every_part_of_the_work_has_one() -> None:
    assert {*PARTS, "name", "file", "fixed"} == set(LinearSettings.model_fields)
    assert sorted(PARTS.values()) == sorted(field.name for field in fields(StepWork))


def test_weights_are_read_from_a_file_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_text(
        "weights: {fixed: 0.25, per_sampled_row: 2}\nmax_model_len: 512\nnum_tokens: 1024\n"
    )
    model = linear(path)
    assert model.seconds(StepWork(sampled_rows=3, prefill_tokens=100)) == 6.25
    assert (model.num_blocks(16), model.max_model_len) == (64, 512)
    assert linear(path, fixed=1.0).seconds(StepWork(sampled_rows=3)) == 7.0
    assert LinearCost(LinearSettings(), parts()).num_blocks(16) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("weights: {per_token: 1}", "has the weight 'per_token'"),
        ("weights: {fixed: 0}", "has fixed=0.0: Input should be greater than 0"),
        ("weights: {fixed: -1}", r"weights.fixed: .* greater than or equal to 0"),
        ("weights: {fixed: .nan}", "cannot read weights"),
        ("weights: {fixed: 1.0e+9}", "less than or equal to"),
        ("[1, 2]", "cannot read weights"),
        ("{", "cannot read weights"),
        ("fixed: 1", "cannot read weights"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=reason):
        linear(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent.yaml: No such file.*paged-core calibrate"):
        linear(tmp_path / "absent.yaml")
