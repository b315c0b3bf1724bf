"""A damaged checkpoint is refused in one line, whatever the damage; what is served is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import note
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from integration import damage, tiny_models
from integration.test_checkpoints import change
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.runners.transformers import model_loader
from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core import LLM, SamplingParams
from paged_core.cli import main
from paged_core.errors import CheckpointError, PagedCoreError, SettingsError, UnsupportedModel
from unit.test_tokenizer import KINDS
from unit.test_tokenizer import save as save_tokenizer

pytestmark = pytest.mark.heavy


RUNNERS = ["native", "transformers"]


def serve(folder: Path, runner: str, **options: Any) -> list[int]:
    """Load a model and generate a little."""
    with LLM(str(folder), runner=runner, num_blocks=8, block_size=16, **options) as llm:
        (output,) = llm.generate([[3, 4, 5]], SamplingParams(max_tokens=3, temperature=0))
        return list(output.outputs[0].token_ids)


def outcome(do: Callable[[], object]) -> str:
    """Return ``served``, or the error, which must be one of ours, in one line of modest length."""
    try:
        do()
    except PagedCoreError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1500
        return str(error)
    return "served"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in shards, with a tokenizer and everything else."""
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("whole"), max_shard_size="100KB")
    save_tokenizer(
        folder,
        KINDS["byte_level"](),
        bos_token="<s>",
        eos_token={"__type": "AddedToken", "content": "</s>", "special": True},
        add_bos_token=True,
        added_tokens_decoder={"0": {"content": "<s>", "special": True}},
        additional_special_tokens=["<x>"],
        chat_template=[{"name": "default", "template": "{{ messages[0].content }}"}],
    )
    (folder / "special_tokens_map.json").write_text('{"pad_token": {"content": "<pad>"}}')
    return folder


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("single"))


@pytest.fixture
def folder(single: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(single, tmp_path / "model"))


def refused(folder: Path, runner: str, reason: str, **options: Any) -> None:
    with pytest.raises(CheckpointError, match=reason):
        serve(folder, runner, **options)


# ---------------------------------------------------------------------- headers of weights


QUERY = "model.layers.0.self_attn.q_proj.weight"
_MATRIX = "model.layers.0.mlp.up_proj.weight"


def _overlap(header: dict[str, Any]) -> None:
    first, second = [name for name in header if name != "__metadata__"][:2]
    header[second] = header[first]


def _gap(header: dict[str, Any]) -> None:
    del header[max(header, key=lambda name: header[name].get("data_offsets", [-1])[0])]


def _eight_bits(header: dict[str, Any]) -> None:
    entry = header[QUERY]
    entry |= {"dtype": "F8_E4M3", "shape": [entry["shape"][0], 4 * entry["shape"][1]]}


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (_overlap, "corrupt safetensors header"),
        (_gap, "corrupt safetensors header"),
        (lambda header: header[QUERY].update(dtype="I32"), "stored as I32"),
        (_eight_bits, "stored as F8_E4M3"),
        (lambda header: header["model.norm.weight"].update(shape=[63]), "corrupt safetensors"),
        (lambda header: header[_MATRIX]["shape"].reverse(), "shape"),
    ],
)
def test_a_header_that_contradicts_its_file_is_refused(
    folder: Path, damaged: Callable[[Any], None], reason: str
) -> None:
    damage.change_header(folder / "model.safetensors", lambda header: (damaged(header), header)[1])
    refused(folder, "native", reason)


def test_a_name_with_two_entries_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"model.norm.weight"', b'"lm_head.weight"   ', 1))
    refused(folder, "native", "given twice")


def more(folder: Path, name: str, value: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), name: value}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "model.layers.2.self_attn.q_proj.weight",
            "is 2 by its configuration and 3 by its weights",
        ),
        ("model.layers.0.self_attn.q_proj.bias", r"does not use: model\.layers\.0\.self_attn"),
        ("adapter.weight", r"does not use: adapter\.weight"),
    ],
)
def test_weights_that_the_model_does_not_use_are_named(
    folder: Path, runner: str, name: str, reason: str
) -> None:
    more(folder, name, torch.zeros(64))
    refused(folder, runner, reason)


_GROUPS = {"a": {"targets": ["Linear"], "weights": {"num_bits": 4}}}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("described", "reason"),
    [
        *((described, "quant_method") for described in ({}, {"bits": 4}, {"quant_method": None})),
        *(
            ({"quant_method": method, "bits": 4, "group_size": 32}, "no weight is quantised")
            for method in ("gptq", "awq")
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": _GROUPS},
            "no weight is quantised",
        ),
        ({"quant_method": "gptq", "bits": "4", "group_size": 32}, "bits must be"),
    ],
    ids=str,
)
def test_quantisation_of_plain_weights_is_a_contradiction(
    folder: Path, runner: str, described: dict[str, Any], reason: str
) -> None:
    change(folder / "config.json", quantization_config=described)
    with pytest.raises((CheckpointError, UnsupportedModel), match=reason):
        serve(folder, runner)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("part", ["qweight", "weight_packed", "weight_scale"])
def test_quantised_weights_are_described(folder: Path, runner: str, part: str) -> None:
    more(folder, f"{QUERY.removesuffix('weight')}{part}", torch.zeros(8, dtype=torch.int32))
    refused(folder, runner, rf"q_proj\.{part} in .* is quantised, .* has no quantization_config")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(folder: Path, value: float) -> None:
    weight = load_file(folder / "model.safetensors")[_MATRIX]
    more(folder, _MATRIX, weight.index_fill(0, torch.tensor([5]), value))
    refused(folder, "transformers", rf"{_MATRIX} holds numbers that are infinite or none")


@pytest.mark.parametrize("runner", RUNNERS)
def test_tables_that_older_versions_stored_are_ignored(folder: Path, runner: str) -> None:
    expected = serve(folder, runner)
    more(folder, "model.embeddings.position_ids", torch.zeros(8, dtype=torch.int64))
    for name in ("model.layers.0.self_attn.rotary_emb.inv_freq", "mtp.x"):
        more(folder, name, torch.zeros(8))
    assert serve(folder, runner) == expected


def test_layers_that_predict_further_tokens_are_ignored(folder: Path) -> None:
    more(folder, "model.layers.2.self_attn.q_proj.weight", torch.zeros(64))
    change(folder / "config.json", num_nextn_predict_layers=1)
    assert serve(folder, "transformers")


# ---------------------------------------------------------------------- the index


@pytest.mark.parametrize(
    "name",
    ["../{other}", "{absolute}", "linked/{other}", "x/../{other}", "."],
)
def test_an_index_does_not_leave_its_folder(whole: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    shard = min(folder.glob("*.safetensors"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "linked").symlink_to(outside)
    for place in (outside, tmp_path):
        shutil.copy(shard, place / shard.name)
    named = name.format(other=shard.name, folder=folder, absolute=outside / shard.name)
    path = folder / "model.safetensors.index.json"
    weights = json.loads(path.read_text())["weight_map"]
    changed = {key: named if file == shard.name else file for key, file in weights.items()}
    change(path, weight_map=changed)
    refused(folder, "native", "not in its folder")


@pytest.mark.parametrize("names", [5, {"a": 5}, {"a": ["x"]}, {}, None])
def test_an_index_names_files(whole: Path, tmp_path: Path, names: Any) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    change(folder / "model.safetensors.index.json", weight_map=names)
    refused(folder, "native", "names no weight files|not in its folder")


def test_a_hub_cache_of_links_is_read(whole: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    shutil.copytree(whole, blobs)
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    assert serve(snapshot, "native") == serve(whole, "native")


def test_one_weight_in_two_shards_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    save_file({**load_file(first), **load_file(second)}, second, metadata={"format": "pt"})
    refused(folder, "native", "which another weight file")


# ---------------------------------------------------------------------- types of values

_INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("file", "name", "value", "kind"),
    [
        *((_INDEX, "metadata", value, "an object") for value in (5, "x", [1])),
        *(("config.json", "text_config", value, "an object") for value in (5, "x", [1])),
        ("config.json", "quantization_config", [1], "an object"),
        ("config.json", "auto_map", 5, "an object"),
        ("config.json", "id2label", "x", "an object"),
        ("config.json", "tokenizer_class", 5, "a string"),
        ("config.json", "dtype", False, "a string"),
        ("tokenizer_config.json", "added_tokens_decoder", [1], "an object of objects"),
        ("tokenizer_config.json", "added_tokens_decoder", {"5": 3}, "an object of objects"),
        ("tokenizer_config.json", "added_tokens_decoder", {"x": {"content": "a"}}, "an object of"),
        ("tokenizer_config.json", "added_tokens_decoder", {"5": {"content": 7}}, "an object of"),
        ("tokenizer_config.json", "added_tokens_decoder", {"05": {"content": "a"}}, "an object of"),
        ("tokenizer_config.json", "eos_token", {"a": 1}, "a string, or an object"),
        ("tokenizer_config.json", "split_special_tokens", "x", "true or false"),
        ("tokenizer_config.json", "additional_special_tokens", 5, "a list"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_named_with_its_file(
    whole: Path, tmp_path: Path, runner: str, file: str, name: str, value: Any, kind: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    change(folder / file, **{name: value})
    refused(folder, runner, f"{file}: {name} must be {kind}.*, not .*; download")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("vocab_size", value) for value in (0, -1)),
        *(("head_dim", value) for value in (0, 1.5)),
        *(("sliding_window", value) for value in ("12", False)),
        *(("num_attention_heads", value) for value in (0, -1)),
        *(("hidden_act", value) for value in (5, "12", "")),
        ("layer_types", ["full_attention", "x"]),
        *(("pad_token_id", value) for value in (300, 10**9)),
        ("text_config", {}),
        *(("rope_parameters", {"rope_theta": value}) for value in ([1], "x", 10**20, 0)),
        *(("rope_parameters", {"rope_theta": 1e4, "rope_type": value}) for value in ([], 0, "z")),
        *(("rope_parameters", {"rope_type": "linear", "factor": value}) for value in (0, "2")),
        *(("rope_parameters", {key: None}) for key in ("rope_type", "rope_theta")),
    ],
    ids=str,
)
def test_a_value_that_a_library_fails_on_is_named(folder: Path, field: str, value: Any) -> None:
    change(folder / "config.json", **{field: value})
    field = ".".join([field, *list(value)[-1:]]) if isinstance(value, dict) else field
    refused(
        folder,
        "transformers",
        rf"config.json does not describe a model of type llama: {field} .* \(transf",
    )


@pytest.mark.parametrize("kind", ["phi3", "mixtral", "deepseek_v3"])
def test_values_that_are_merely_unusual_are_not_blamed(kind: str, tmp_path: Path) -> None:
    folder = tiny_models.save(kind, tmp_path)
    change(folder / "config.json", hidden_act="", pad_token_id=0)
    refused(folder, "transformers", r"\w: hidden_act is '', which transformers does not know \(")


@pytest.mark.parametrize("runner", [*RUNNERS, "auto"])
@pytest.mark.parametrize("kind", ["bloom", "mpt", "falcon"])
def test_slopes_on_scores_are_refused_by_all_runners_alike(
    tmp_path: Path, runner: str, kind: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "alibi": True}))
    with pytest.raises(
        UnsupportedModel, match=f"is of type {kind}, which cannot be served: .* ALiBi"
    ):
        serve(tmp_path, runner)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "phimoe"])
@pytest.mark.parametrize("short", [True, False])
def test_an_expert_that_is_not_as_the_others_is_named(
    kind: str, short: bool, tmp_path: Path
) -> None:
    path = tiny_models.save(kind, tmp_path) / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if ".experts.2." in name)
    weight = weights.pop(name)
    save_file(weights | ({name: weight[:-1].contiguous()} if short else {}), path, {"format": "pt"})
    refused(tmp_path, "transformers", rf"{name} (has the shape .*|is missing), and those")


@pytest.mark.parametrize(
    ("name", "value"),
    [("return_dict", False), *(("dtype", each) for each in ("torch.float32", "int8", "half"))],
)
def test_keys_that_only_the_library_minds_are_no_hindrance(
    folder: Path, name: str, value: Any
) -> None:
    change(folder / "config.json", **{name: value})
    assert serve(folder, "transformers") == serve(folder, "native")


def test_experts_of_a_token_are_no_more_than_there_are(tmp_path: Path) -> None:
    folder = tiny_models.save("mixtral", tmp_path)
    change(folder / "config.json", num_experts_per_tok=7)
    refused(folder, "transformers", "num_experts_per_tok must be at most 4, not 7")


@pytest.mark.parametrize("value", [0, [], False, {}, 1.5], ids=str)
def test_the_type_of_rotary_embeddings_is_a_string(folder: Path, value: Any) -> None:
    change(folder / "config.json", rope_parameters={"rope_theta": 1e4, "rope_type": value})
    refused(folder, "native", "rope_type must be a string")


def test_an_index_without_metadata_is_served_by_what_does_not_read_it(
    whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    change(folder / _INDEX, metadata=None)
    assert serve(folder, "native") == serve(whole, "native")
    refused(folder, "transformers", f"{_INDEX} has no metadata")


# ---------------------------------------------------------------------- sizes and numbers


SIZES = [
    *("num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
]


@pytest.mark.parametrize(
    ("runner", "value"), [("native", 10**9), ("transformers", 10**18), ("native", 10**400)]
)
@pytest.mark.parametrize("field", SIZES)
def test_a_model_larger_than_its_weights_is_refused_before_it_is_made(
    folder: Path, runner: str, field: str, value: int
) -> None:
    if (field, value) == ("max_position_embeddings", 10**9):
        pytest.skip("rotary embeddings reach any position")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(damage.dumps({**config, field: value}))
    refused(folder, runner, field)


UNREAD = {
    **{"train_batch_size": 1 << 30, "num_vision_layers": 10**6, "prompt_dim": 1 << 40},
    **{"training": {"batch_size": 1 << 30}, "vision_config": {"num_hidden_layers": 10**6}},
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_sizes_that_nothing_reads_may_say_anything(folder: Path, single: Path, runner: str) -> None:
    change(folder / "config.json", **UNREAD)
    if runner == "native":
        change(folder / "config.json", vision_config=None)
    assert serve(folder, runner) == serve(single, runner)


def test_sizes_that_are_read_are_those_of_the_text_model() -> None:
    text = {"num_hidden_layers": 3, "hidden_size": 7, "batch_size": 9}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": text, **text}
    read = {*model_loader._fields_read(Checkpoint(Path(), config, {}))}
    assert {"text_config.num_hidden_layers", "text_config.hidden_size"} < read
    assert not any("vision_config." in each or each.endswith("batch_size") for each in read)
    defaults = transformers.LlamaConfig().to_dict()
    read = {*model_loader._fields_read(Checkpoint(Path(), defaults, {}))}
    assert read & defaults.keys() <= {"transformers_version"}


def test_a_length_that_is_not_served_is_refused_with_the_reason(folder: Path) -> None:
    scaling = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    change(folder / "config.json", rope_parameters=scaling)
    with pytest.raises(
        SettingsError, match=r"200 is more than the 64 .* served .*\(.* rotary .* 64"
    ):
        serve(folder, "transformers", max_model_len=200)
    assert len(serve(folder, "transformers", max_model_len=64)) == 3


_TOO_MANY = r" of type (llama|mixtral), of \d{8,} numbers.* hold \d+ at.*embed_tokens.* \(300, "


@pytest.mark.parametrize(
    ("runner", "config", "reason"),
    [
        ("transformers", {"model_type": "llama"}, _TOO_MANY),
        ("native", {"model_type": "llama"}, "is 32 by its configuration and 2 by its weights"),
        ("transformers", {"model_type": "llama", "num_hidden_layers": 2}, _TOO_MANY),
        ("native", {"model_type": "llama", "num_hidden_layers": 2}, "embed_tokens.* shape"),
        (
            "transformers",
            {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}},
            _TOO_MANY,
        ),
        ("transformers", {"model_type": "mixtral"}, _TOO_MANY),
    ],
    ids=["all", "all, native", "widths", "widths, native", "quantised", "experts"],
)
def test_defaults_of_an_architecture_are_sizes_too(
    folder: Path, runner: str, config: dict[str, Any], reason: str
) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, runner, reason)


@pytest.mark.parametrize("value", [10**400, float("nan"), -1e-6, True, "1e-5"])
@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta"])
def test_a_number_is_one_to_compute_with(folder: Path, field: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(damage.dumps({**config, field: value}))
    refused(folder, "native", f"{field} must be a number")


def test_random_weights_are_bounded_by_the_memory(folder: Path) -> None:
    change(folder / "config.json", vocab_size=2**31 - 1, hidden_size=2**30)
    runner = {"name": "native", "weights": "random"}
    assert "memory" in outcome(lambda: serve(folder, runner))  # type: ignore[arg-type]


# ---------------------------------------------------------------------- pickles


@pytest.fixture(scope="module")
def pickled(single: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(single, tmp_path_factory.mktemp("pickled") / "model"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda whole: 5, "holds one int"),
        (lambda whole: {**whole, "x": 5}, "x is no plain tensor"),
        (lambda whole: {**whole, 5: whole[_MATRIX]}, "5 is no plain tensor"),
        (lambda whole: {**whole, _MATRIX: whole[_MATRIX].to_sparse()}, "is no plain tensor"),
        (lambda whole: {**whole, _MATRIX: torch.zeros(1).expand(96, 64)}, "larger than its data"),
        (lambda whole: {**whole, _MATRIX: whole[_MATRIX].int()}, "stored as torch.int32"),
        (lambda whole: {**whole, "model.layers.2.x": torch.zeros(1)}, "is 2 by its configuration"),
    ],
)
def test_a_pickle_holds_weights_and_nothing_else(
    pickled: Path, tmp_path: Path, content: Callable[[Any], Any], reason: str
) -> None:
    folder = shutil.copytree(pickled, tmp_path / "model")
    path = folder / "pytorch_model.bin"
    torch.save(content(torch.load(path)), path)
    refused(folder, "native", reason, allow_pickle=True)


def test_pickles_old_and_new_are_read(pickled: Path, single: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pickled, tmp_path / "model")
    path = folder / "pytorch_model.bin"
    expected = serve(single, "native")
    assert serve(folder, "native", allow_pickle=True) == expected
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    assert serve(folder, "native", allow_pickle=True) == expected


# ---------------------------------------------------------------------- any damage

JSON_FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
]


@st.composite
def damages(draw: st.DrawFn, whole: Path) -> damage.Damage:
    shard = min(whole.glob("*.safetensors")).name
    name = draw(st.sampled_from([*JSON_FILES, shard]))
    if draw(st.integers(0, 3)) == 0:
        edit = draw(damage.byte_changes((whole / name).stat().st_size, 2000))
        return f"{name}: bytes", lambda folder: damage.change_bytes(folder / name, edit)
    with_content = damage.change_header if name == shard else damage.change_json
    content = (
        damage.header_of(whole / name) if name == shard else json.loads((whole / name).read_text())
    )
    what, changed = draw(damage.mutations(content))
    return f"{name}: {what}", lambda folder: with_content(folder / name, lambda _: changed)


def links(whole: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def use_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    if tokenizer is None:
        return
    ids = tokenizer.encode("The quick brown fox\n é👍")
    tokenizer.decode(ids)
    detokenizer = tokenizer.detokenizer(ids[:2])
    detokenizer.append([0, 5, 300, 10**6, *ids])
    detokenizer.flush()
    if tokenizer.template.sources:
        tokenizer.apply_chat_template([{"role": "user", "content": "hello"}])


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    names = [*tiny_models.NATIVE, "gpt_oss", "mixtral", "qwen3_moe"]
    return {name: tiny_models.save(name, folder / name) for name in names}


@damage.lengths(20, 4000)
def test_any_damage_is_served_or_refused(examples: int, whole: Path, tmp_path: Path) -> None:
    def check(data: st.DataObject) -> None:
        folder = links(whole, tmp_path / "model")
        what, damage_it = data.draw(damages(whole))
        note(what)
        damage_it(folder)
        outcome(lambda: serve(folder, data.draw(st.sampled_from(RUNNERS))))
        outcome(lambda: use_tokenizer(folder))

    damage.for_examples(examples, check)


@damage.lengths(15, 2000)
def test_any_configuration_is_served_or_refused(
    examples: int, families: dict[str, Path], tmp_path: Path
) -> None:
    def check(data: st.DataObject) -> None:
        family = families[data.draw(st.sampled_from(sorted(families)))]
        folder = links(family, tmp_path / "model")
        what, changed = data.draw(
            damage.mutations(json.loads((family / "config.json").read_text()))
        )
        note(what)
        damage.change_json(folder / "config.json", lambda _: changed)
        served: list[list[int]] = []
        outcome(lambda: served.append(serve(folder, "native")))
        outcome(lambda: served.append(serve(folder, "transformers")))
        assert served[1:] in ([], served[:1])

    damage.for_examples(examples, check)


@pytest.mark.parametrize("name", JSON_FILES)
def test_whatever_is_in_place_of_a_file(whole: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    for replace in damage.WHOLE.values():
        links(whole, folder)
        (folder / name).unlink()
        replace(folder / name)
        outcome(lambda: serve(folder, "native"))
        outcome(lambda: use_tokenizer(folder))


def test_the_command_shows_one_line(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = links(whole, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    damage.WHOLE["deep"](folder / "tokenizer.json")
    assert main(["generate", "hi", "--model", str(folder)], {})
    assert str(folder / "tokenizer.json") in capsys.readouterr().err.replace("\n", "")
