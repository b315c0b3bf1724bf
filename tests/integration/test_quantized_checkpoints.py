"""The runner ``native`` on quantised safetensors: its logits are those of the numbers in there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from integration import tiny_models
from integration.quantized_checkpoints import Awq, CompressedTensors, Float8, Gptq, Method, write
from integration.step_driver import load_runner, prompt_logits, settings
from paged_core import LLM, SamplingParams
from paged_core.errors import CheckpointError, SettingsError, UnsupportedModel

pytestmark = pytest.mark.heavy


SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "head_dim": 32,
    "vocab_size": 304,
    "max_position_embeddings": 128,
    "initializer_range": 0.08,
}
PROMPT = [3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 7, 7]

EXACT: dict[str, Method] = {
    "gptq int4": Gptq(),
    "gptq int4, symmetric": Gptq(symmetric=True, group_size=128),
    "gptq int4, second version": Gptq(version=2, group_size=64),
    "gptq int4, one group": Gptq(group_size=-1),
    "gptq int4, large groups": Gptq(group_size=256),
    "gptq int8": Gptq(bits=8),
    "gptq int8, symmetric, second version": Gptq(bits=8, symmetric=True, version=2, group_size=16),
    "awq": Awq(group_size=64),
    "awq, one group": Awq(group_size=-1),
    "compressed int4": CompressedTensors(symmetric=True),
    "compressed int4 with zero points": CompressedTensors(group_size=64),
    "compressed int4, channels": CompressedTensors(group_size=-1),
    "compressed int8, channels": CompressedTensors(bits=8, group_size=-1, symmetric=True),
    "compressed int8 with zero points": CompressedTensors(bits=8),
    "plain int8": CompressedTensors(bits=8, group_size=-1, symmetric=True, format="int-quantized"),
    "plain int8 with zero points": CompressedTensors(bits=8, format="naive-quantized"),
    "plain int4": CompressedTensors(symmetric=True, format="int-quantized"),
    "plain int8, one scale": CompressedTensors(
        bits=8, group_size=-1, symmetric=True, per_tensor=True, format="int-quantized"
    ),
}
AGAIN: dict[str, Method] = {
    "gptq int4, act-order": Gptq(act_order=True),
    "gptq int8, act-order": Gptq(act_order=True, bits=8, group_size=64, symmetric=True),
    "compressed int4, act-order": CompressedTensors(act_order=True),
    "gptq int4, groups that we lack": Gptq(group_size=8),
}
"""Quantised again, so that logits are only near."""


def make(family: str = "Llama", **options: Any) -> Any:
    """A model of the library with random weights."""
    torch.manual_seed(0)
    config = tiny_models.of(family, **(SHAPE | options))()
    return (
        transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        .eval()
        .requires_grad_(False)
    )


def check(model: Any, folder: Path, bound: float) -> None:
    """Compare the logits; ``bound`` is that of their mean error, in their deviations.

    Kernels also round the activations that they multiply with quantised weights.
    """
    expected = model(torch.tensor([PROMPT])).logits[0]
    for kernels, most in (("off", bound), ("auto", bound + 0.03)):
        found = prompt_logits(load_runner(folder, "native", kernels=kernels), PROMPT)
        assert (found - expected).abs().mean() < most * expected.std(), kernels


def check_library(model: Any, folder: Path) -> None:
    """Compare the logits of runner transformers, which computes in float32."""
    found = prompt_logits(load_runner(settings(folder, dtype="float32")), PROMPT)
    torch.testing.assert_close(found, model(torch.tensor([PROMPT])).logits[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", EXACT | AGAIN)
def test_logits_are_those_of_the_numbers_in_the_file(name: str, tmp_path: Path) -> None:
    model = make()
    folder = write(model, tmp_path, (EXACT | AGAIN)[name])
    check(model, folder, 1e-5 if name in EXACT else 0.02)


FAMILIES: dict[str, tuple[dict[str, Any], Method, tuple[str, ...]]] = {
    "Qwen2": ({}, Gptq(), ()),  # with biases, and the head too
    "Qwen3": ({"tie_word_embeddings": True}, Awq(), ("lm_head",)),
    "Gemma": ({}, CompressedTensors(), ("lm_head",)),
    "Mistral": ({}, Gptq(group_size=64), ("lm_head", "k_proj", "layers.1.mlp.up_proj")),
}
"""Options of a model, and which matrices are left as they are."""


@pytest.mark.parametrize("family", list(FAMILIES))
def test_other_families(family: str, tmp_path: Path) -> None:
    options, method, plain = FAMILIES[family]
    model = make(family, **options)
    check(model, write(model, tmp_path, method, plain=plain), 1e-5)


SYMMETRIC, NOT = CompressedTensors(symmetric=True), CompressedTensors(group_size=32)
WIDE = CompressedTensors(symmetric=True, bits=8, group_size=-1)
TARGETS: dict[str, tuple[tuple[Method, ...], tuple[list[str], ...]]] = {
    "a class, and names by an expression": ((SYMMETRIC, NOT), (["Linear"], ["re:.*mlp.*"])),
    "an expression, and names": (
        (SYMMETRIC, NOT),
        (
            ["re:model.*"],
            [f"model.layers.{n}.mlp.{p}_proj" for n in range(2) for p in ("gate", "up", "down")],
        ),
    ),
    "two expressions, the first in the alphabet": (
        (SYMMETRIC, NOT),
        (["re:model.layers.*"], ["re:.*mlp.*"]),
    ),
    "of other shapes": ((SYMMETRIC, WIDE), (["re:.*attn.*"], [r"re:.*(gate|up|down)_proj$"])),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("step", [1, -1], ids=["in order", "reversed"])
def test_a_matrix_has_the_scheme_that_names_it(name: str, step: int, tmp_path: Path) -> None:
    (usual, other), targets = TARGETS[name]
    model = make()
    folder = write(model, tmp_path, usual, others={"mlp": other})
    groups = [
        method.config()["config_groups"]["group_0"] | {"targets": names}
        for method, names in zip((usual, other), targets, strict=True)
    ]
    change(folder, config_groups=dict(zip("ab", groups[::step], strict=True)))
    check(model, folder, 1e-5)
    check_library(model, folder)


@pytest.mark.parametrize(
    "name", [name for name in EXACT if isinstance(EXACT[name], CompressedTensors)]
)
def test_runner_transformers_computes_with_the_numbers_of_compressed_tensors(
    name: str, tmp_path: Path
) -> None:
    model = make()
    folder = write(model, tmp_path, EXACT[name])
    check_library(model, folder)


@pytest.mark.parametrize(
    ("other", "named"), [(WIDE, "experts.2.down"), (NOT, ".down")], ids=["wide", "zeros"]
)
def test_each_expert_has_the_scheme_that_names_it(
    other: Method, named: str, tmp_path: Path
) -> None:
    model = make("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    folder = write_each(
        model, tmp_path, "experts", lambda name: other if named in name else SYMMETRIC
    )
    group = [method.config()["config_groups"]["group_0"] for method in (SYMMETRIC, other)]
    change(folder, config_groups={"a": group[0], "b": group[1] | {"targets": [f"re:.*{named}.*"]}})
    check_plain(tmp_path)


LATENT = {"q_lora_rank": 24, "kv_lora_rank": 64, "qk_rope_head_dim": 8, "head_dim": None}
EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {"hidden_size": 160, "intermediate_size": 96}),
        ("DeepseekV3", LATENT | EXPERTS | {"num_key_value_heads": 4, "moe_intermediate_size": 96}),
    ],
)
def test_sides_of_float8_need_not_be_multiples_of_the_block(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    method = Float8(block=64)
    write_each(make(family, **options), tmp_path, "_proj", lambda name: method)
    check_plain(tmp_path)


def write_each(model: Any, place: Path, part: str, method_of: Callable[[str], Method]) -> Path:
    """Save a model, and with the matrices that have this in their names quantised."""
    plain = place / "plain"
    model.save_pretrained(plain)
    weights = load_file(plain / "model.safetensors")
    folder = write(model, place / "codes", method_of(""), plain=("",))
    stored = dict(weights)
    for name in [name for name in weights if part in name and name.endswith(".weight")]:
        method = method_of(name)
        codes = method.quantized(weights[name].double().numpy())
        weights[name] = torch.from_numpy(codes.weights()).float()
        del stored[name]
        for each, tensor in method.tensors(codes).items():
            stored[f"{name.removesuffix('weight')}{each}"] = tensor.contiguous()
    save_file(weights, plain / "model.safetensors", {"format": "pt"})
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


def check_plain(place: Path) -> None:
    """Compare the logits of what :func:`write_each` wrote, by runner transformers."""
    found, expected = (
        prompt_logits(load_runner(settings(place / each, dtype="float32")), PROMPT)
        for each in ("codes", "plain")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("runner", ["native", "transformers"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ignore": ["re:.*mlp.*"]}, "_proj is quantised, and ignore in quantization_config name"),
        ({"ignore": ["re:("]}, r"names modules by '\(', which is no regular expression"),
        ({"ignore": ["re:(.|.|..)+[0-9]{3}$"]}, "no regular expression that can be matched"),
        (
            {"targets": ["re:.*attn.*"]},
            "_proj is quantised, and config_groups .* no target",
        ),
        (
            {"weights": {"symmetric": True}},
            r"(does not use: .*)?mlp.down_proj.weight_zero_point( is not used)?",
        ),
        ({"weights": {"type": "float"}}, "weights.type must be int, as pack-quantized holds"),
        ({"weights": {"num_bits": 8}}, "weight_packed .* needs"),
        ({"weights": {"group_size": 16}}, "weight_scale .* needs"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "format must be dense"),
        ({"weights": {"lattice": 3}}, "config_groups.*weights.lattice (is not known|Extra inputs)"),
        ({"hadamard": {"size": 4}}, "quantization_config.hadamard is not known"),
    ],
    ids=str,
)
def test_a_configuration_that_does_not_describe_the_tensors(
    changes: dict[str, Any], message: str, runner: str, tmp_path: Path
) -> None:
    folder, changes = write(make(), tmp_path, NOT), dict(changes)
    (group,) = config(folder)["config_groups"].values()
    group |= {"targets": changes.pop("targets", ["Linear"])}
    group["weights"] |= changes.pop("weights", {})
    change(folder, config_groups={"group_0": group}, **changes)
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        load_runner(folder, runner)


AUTO_ROUND = {
    **{"provider": "auto-round", "autoround_version": "0.4.7", "amp": True, "iters": 200},
    **{"data_type": "int", "act_bits": 16, "enable_quanted_input": True, "scale_dtype": "fp16"},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": {"name": "lora", "rank": 8}}, "quantization_config.adapter is not known"),
        ({"is_marlin_format": True}, "is_marlin_format must be false"),
        (AUTO_ROUND | {"act_bits": 8}, "act_bits must be 16"),
        (AUTO_ROUND | {"data_type": "mx_fp"}, "data_type must be int"),
        ({"rotation": "hadamard"}, "quantization_config.rotation is not known"),
        ({"format": "gptq_v2"}, "format must be the same as checkpoint_format"),
        (AUTO_ROUND | {"adapter": None}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", [Gptq(), Awq()], ids=["gptq", "awq"])
def test_what_a_tool_notes_is_known_or_refused(
    method: Method, changes: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    folder = write(make(), tmp_path, method)
    change(folder, **changes)
    if message is None:
        load(folder)
        return
    of_both = message if isinstance(method, Gptq) else "quantization_config"
    with pytest.raises((CheckpointError, UnsupportedModel), match=of_both):
        load(folder)


def test_gptq_of_the_second_version_by_its_other_name_and_other_forms(tmp_path: Path) -> None:
    model = make()
    others = {
        "down_proj": Gptq(version=2, bits=8, group_size=64),
        "up_proj": Gptq(version=2, act_order=True),
    }
    plain = ("lm_head", "o_proj")
    folder = write(model, tmp_path, Gptq(version=2), plain=plain, others=others)
    rules = {
        "-:.*o_proj$": {},
        "+:.*down_proj": {"bits": 8, "group_size": 64},
        r".*\.up_": {"desc_act": True},
    }
    change(folder, format="gptq_v2", checkpoint_format=None, dynamic=rules)
    check(model, folder, 0.02)  # groups that are out of order are quantised again


@pytest.mark.parametrize(("bits", "version"), [(4, 1), (4, 2), (8, 1), (8, 2)])
def test_zeros_of_one_version_are_not_read_as_those_of_the_other(
    bits: int, version: int, tmp_path: Path
) -> None:
    names = ("gptq", "gptq_v2")
    folder = write(make(), tmp_path, Gptq(version=version, bits=bits, symmetric=True))
    change(folder, checkpoint_format=names[2 - version])
    with pytest.raises(CheckpointError, match=rf"qzeros.* format {names[version - 1]}, .*write"):
        load(folder)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (Gptq(), {"dynamic": {r"-:.*mlp\.down_proj": {}}}),
        (Gptq(), {"modules_to_not_convert": ["lm_head", "mlp"]}),
        (Awq(), {"modules_to_not_convert": ["model.layers.1.mlp.down_proj"]}),
        (Awq(), {"modules_to_not_convert": ["down_proj"]}),
    ],
    ids=str,
)
def test_what_is_quantised_is_not_named_as_plain(
    method: Method, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = write(make(), tmp_path, method)
    change(folder, **changes)
    with pytest.raises(CheckpointError, match=f"_proj is quantised, and {next(iter(changes))} in"):
        load(folder)
    plain = ("lm_head", "down_proj") if "down_proj" in str(changes) else ("lm_head", "mlp")
    model = make()
    folder = write(model, tmp_path, method, plain=plain)
    change(folder, **changes, **({"modules_to_not_convert": None} if "dynamic" in changes else {}))
    if "layers.1" not in str(changes):
        check(model, folder, 1e-5)


def test_the_size_of_the_model_is_that_of_its_codes(tmp_path: Path) -> None:
    folder = write(make(), tmp_path, Gptq(symmetric=True), plain=())
    size = load(folder).model_size()
    assert size.weight_bytes == (size.layer_weights + size.head_weights) * (0.5 + 2 / 32)


def test_biases_of_zeros_are_not_missed(tmp_path: Path) -> None:
    def with_bias(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        bias = float("down_proj" in name and "1" in name) * value
        return tensors | {"bias": torch.full((tensors["scales"].shape[1],), bias)}

    value = 0.0
    model = make()
    check(model, write(model, tmp_path / "zeros", Gptq(), change=with_bias), 1e-5)
    value = 1.0
    folder = write(make(), tmp_path / "ones", Gptq(), change=with_bias)
    with pytest.raises(CheckpointError, match=r"does not use: model.layers.1.mlp.down_proj.bias"):
        load(folder)


def test_the_configuration_may_be_in_the_old_file(tmp_path: Path) -> None:
    model = make()
    folder = write(model, tmp_path, Gptq(symmetric=True))
    old = config(folder)
    del old["quant_method"], old["checkpoint_format"]
    (folder / "quantize_config.json").write_text(json.dumps(old))
    content = json.loads((folder / "config.json").read_text())
    del content["quantization_config"]
    (folder / "config.json").write_text(json.dumps(content))
    check(model, folder, 1e-5)


def test_the_configuration_may_have_its_old_name(tmp_path: Path) -> None:
    model = make()
    folder = write(model, tmp_path, CompressedTensors())
    path = folder / "config.json"
    path.write_text(path.read_text().replace("quantization_config", "compression_config"))
    check(model, folder, 1e-5)
    check_library(model, folder)


# ---------------------------------------------------------------------- what is refused


def load(folder: Path) -> Any:
    return load_runner(folder, "native", kernels="off")


def config(folder: Path) -> dict[str, Any]:
    """Return what ``config.json`` says of the quantisation."""
    described: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return dict(described["quantization_config"])


def change(folder: Path, **values: Any) -> None:
    """Change what ``config.json`` says of the quantisation."""
    path = folder / "config.json"
    described = json.loads(path.read_text())
    described["quantization_config"].update(values)
    path.write_text(json.dumps(described))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each method."""
    root = tmp_path_factory.mktemp("methods")
    methods = {"gptq": Gptq(), "awq": Awq(), "compressed": CompressedTensors()}
    return {name: write(make(), root / name, method) for name, method in methods.items()}


@pytest.fixture
def copied(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda method: shutil.copytree(folders[method], tmp_path / method)


@pytest.mark.parametrize(
    ("method", "values", "reason"),
    [
        ("gptq", {"quant_method": "bitsandbytes"}, "'bitsandbytes', and what .* gptq, awq, comp"),
        ("gptq", {"quant_method": 7}, "is quantised by 'unknown'"),
        (
            "gptq",
            {"bits": 3},
            "quantization_config.bits must be 4 or 8 for runner native, not 3; take",
        ),
        ("gptq", {"bits": None}, "quantization_config.bits must be given"),
        ("gptq", {"group_size": 0}, "group_size must be -1 or at least 1"),
        (
            "gptq",
            {"checkpoint_format": "marlin"},
            "must be gptq or gptq_v2 for runner native, not 'marlin'",
        ),
        ("gptq", {"pack_dtype": "int16"}, "pack_dtype must be int32"),
        ("awq", {"version": "gemv"}, "version must be gemm"),
        ("awq", {"bits": 8}, "bits must be 4"),
        ("compressed", {"format": "nvfp4-pack-quantized"}, "format must be pack-quantized or"),
        ("compressed", {"config_groups": {}}, "config_groups must be an object of 1 to 100"),
        ("compressed", {"config_groups": {"a": {}}}, "config_groups.weights must be an object"),
        ("compressed", {"transform_config": {"a": 1}}, "transform_config must be empty"),
        ("compressed", {"sparsity_config": {"format": "sparse-24"}}, "format must be dense"),
    ],
)
def test_what_a_configuration_may_not_say(
    method: str, values: dict[str, Any], reason: str, copied: Callable[[str], Path]
) -> None:
    folder = copied(method)
    change(folder, **values)
    with pytest.raises((CheckpointError, UnsupportedModel), match=reason):
        load(folder)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"type": "float"}, "weights.type must be int"),
        ({"num_bits": 2}, "weights.num_bits must be 4 or 8 for runner native, not 2"),
        ({"strategy": "block"}, "weights.strategy must be tensor or channel or group"),
        ({"group_size": 0}, "weights.group_size must be a whole number of at least 1"),
        ({"group_size": 64}, r"weight_scale in .* is float16 of the shape \(128, 4\), .* \(128, 2"),
        ({"num_bits": 8}, r"weight_packed in .* is int32 of the shape \(128, 16\)"),
    ],
)
def test_what_a_scheme_may_not_say(
    weights: dict[str, Any], reason: str, copied: Callable[[str], Path]
) -> None:
    folder = copied("compressed")
    (group,) = config(folder)["config_groups"].values()
    change(folder, config_groups={"a": group | {"weights": group["weights"] | weights}})
    with pytest.raises((CheckpointError, UnsupportedModel), match=reason):
        load(folder)


def test_quantised_activations(copied: Callable[[str], Path]) -> None:
    folder = copied("compressed")
    (group,) = config(folder)["config_groups"].values()
    change(folder, config_groups={"a": group | {"input_activations": {"dynamic": False}}})
    with pytest.raises(CheckpointError, match="input_activations must be null or dynamic"):
        load(folder)
    change(folder, config_groups={"a": group | {"input_activations": {"dynamic": True}}})
    for runner in ("native", "transformers"):
        with capture_logs() as logs, LLM(str(folder), runner=runner, num_blocks=40):
            said = [line["keys"] for line in logs if line["event"] == "activation_scheme_ignored"]
        assert said == [["config_groups.a.input_activations"]]


STATIC = {"input_activations": {"dynamic": False}}


@pytest.mark.parametrize("runner", ["native", "transformers", "auto"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"transform_config": {"config_groups": {"R1": {}}}}, "transform_config must be empty, "),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme must be empty, .* would be wrong"),
        ({"hadamard": {"size": 4}}, "quantization_config.hadamard is not known"),
        (STATIC, "config_groups.input_activations must be null or dynamic"),
        ({"output_activations": {"num_bits": 8}}, "config_groups.output_activations must be null"),
    ],
    ids=str,
)
def test_what_no_runner_computes_with_is_refused_by_each(
    changes: dict[str, Any], reason: str, runner: str, copied: Callable[[str], Path]
) -> None:
    folder = copied("compressed")
    (group,) = config(folder)["config_groups"].values()
    within = any(name.endswith("activations") for name in changes)
    change(folder, **({"config_groups": {"a": group | changes}} if within else changes))
    with pytest.raises(CheckpointError, match=reason):
        LLM(str(folder), runner=runner, num_blocks=40)


DOWN = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("method", "part", "make_other", "reason"),
    [
        ("gptq", "scales", None, "down_proj lack scales"),
        ("gptq", "qweight", None, "lacks model.layers.1.mlp.down_proj.weight among its weights"),
        ("gptq", "qweight", lambda own: own[:-1], r"int32 of the shape \(39, 128\), .* \(40, 128"),
        ("gptq", "scales", lambda own: own.int(), "is int32 of the shape .* float16 or bfloat16"),
        ("gptq", "scales", lambda own: own / 0, "gptq.* has a scale or an offset that is not"),
        ("gptq", "g_idx", lambda own: own - 1, "names groups that are not among its 10"),
        ("gptq", "g_idx", lambda own: own + 1, "names groups that are not among its 10"),
        ("gptq", "qweight", lambda own: own > 0, "is stored as BOOL, and quantised weights are"),
        ("awq", "qzeros", lambda own: own.T, "qzeros in .* is int32 of the shape"),
        ("compressed", "weight_shape", lambda own: own + 1, r"is \[129, 321\], and \[128, 320\]"),
        ("compressed", "weight_zero_point", None, "down_proj lack weight_zero_point"),
        ("compressed", "weight_packed", None, "down_proj lack weight,|lack weight;"),
    ],
)
def test_a_malformed_tensor_is_named(
    method: str,
    part: str,
    make_other: Callable[[torch.Tensor], torch.Tensor] | None,
    reason: str,
    copied: Callable[[str], Path],
) -> None:
    path = copied(method) / "model.safetensors"
    tensors = load_file(path)
    own = tensors.pop(f"{DOWN}.{part}")
    if make_other is not None:
        tensors[f"{DOWN}.{part}"] = make_other(own).contiguous()
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=reason) as caught:
        load(path.parent)
    assert "\n" not in str(caught.value)
    assert DOWN in str(caught.value)


@pytest.mark.parametrize(
    ("part", "changed", "reason"),
    [
        ("weight_scale", None, "stored as torch.int8, and its scheme|lacks weight_scale"),
        ("weight_scale", torch.int16, "weight_scale is stored as torch.int16, .* needs torch.fl"),
        ("weight", torch.float8_e4m3fn, "weight is stored as torch.float8.* needs torch.int8"),
        ("weight", torch.float32, "weight is stored as torch.float32, .* needs torch.int8"),
    ],
)
def test_runner_transformers_names_a_malformed_tensor(
    part: str, changed: torch.dtype | None, reason: str, tmp_path: Path
) -> None:
    path = write(make(), tmp_path, EXACT["plain int8, one scale"]) / "model.safetensors"
    tensors = load_file(path)
    own = tensors.pop(f"{DOWN}.{part}")
    if changed is not None:
        tensors[f"{DOWN}.{part}"] = own.to(changed)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_runner(path.parent)
    assert DOWN in str(caught.value)


def test_groups_out_of_order_need_the_tensor_that_names_them(copied: Callable[[str], Path]) -> None:
    folder = copied("gptq")
    change(folder, desc_act=True)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(f"{DOWN}.g_idx")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="down_proj lack g_idx; download"):
        load(folder)
    folder = copied("compressed")
    (group,) = config(folder)["config_groups"].values()
    change(
        folder, config_groups={"a": group | {"weights": group["weights"] | {"actorder": "group"}}}
    )
    with pytest.raises(CheckpointError, match="lack weight_g_idx; download"):
        load(folder)


def test_runner_transformers_dequantises_compressed_tensors(folders: dict[str, Path]) -> None:
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
    found = []
    for runner in ("transformers", {"name": "native", "kernels": "off"}):
        with LLM(str(folders["compressed"]), runner=runner, num_blocks=40) as llm:
            (output,) = llm.generate([list(range(1, 20))], sampling)
        assert output.prompt_logprobs is not None
        found.append([next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:]])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_runner_transformers_names_a_method_that_it_does_not_know(
    copied: Callable[[str], Path],
) -> None:
    folder = copied("gptq")
    change(folder, quant_method="foo")
    with pytest.raises(UnsupportedModel, match="quantised by 'foo', which transformers"):
        LLM(str(folder), runner="transformers", num_blocks=40)


def test_what_a_package_has_given_up_is_no_damage(tmp_path: Path) -> None:
    folder = write(make(), tmp_path, AGAIN["compressed int4, act-order"])
    with pytest.raises(UnsupportedModel, match=r"not support: .*actorder.*set runner to native"):
        LLM(str(folder), runner="transformers", num_blocks=40)


def test_pickles_are_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("gptq")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="quantised weights in pickle form"):
        load_runner(settings(folder, allow_pickle=True), "native")


def test_quantising_again_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(SettingsError, match="quantised already, as gptq"):
        load_runner(folders["gptq"], "native", quantization="int8")
