"""A damaged checkpoint is refused in one line, whatever the damage; what is served is whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import note
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from integration import damage, tiny_models
from integration.quantized_checkpoints import CompressedTensors, Gptq, write
from integration.test_checkpoints import change
from integration.test_quantized_checkpoints import make
from paged_backends.text.tokenizer import load_tokenizer
from paged_core import LLM, SamplingParams
from paged_core.errors import CheckpointError, PagedCoreError
from unit.test_tokenizer import KINDS
from unit.test_tokenizer import save as save_tokenizer

pytestmark = pytest.mark.heavy


RUNNERS = ["native", "transformers"]


def serve(folder: Path, runner: str, **options: Any) -> list[int]:
    """Load a model and generate a little with all that it has."""
    with LLM(str(folder), runner=runner, num_blocks=8, block_size=16, **options) as llm:
        prompt: Any = [3, 4, 5]
        if llm.tokenizer is not None:
            prompt = {"prompt_token_ids": prompt}
        (output,) = llm.generate([prompt], SamplingParams(max_tokens=3, temperature=0))
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
        eos_token={"content": "</s>", "special": True},
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


@pytest.mark.parametrize("runner", RUNNERS)
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
    folder: Path, runner: str, damaged: Callable[[Any], None], reason: str
) -> None:
    damage.change_header(folder / "model.safetensors", lambda header: (damaged(header), header)[1])
    refused(folder, runner, reason)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_name_with_two_entries_is_refused(folder: Path, runner: str) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"model.norm.weight"', b'"lm_head.weight"   ', 1))
    refused(folder, runner, "given twice")


def more(folder: Path, name: str, value: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), name: value}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.layers.2.self_attn.q_proj.weight", "says 2 layers, and the weights are of 3"),
        ("model.layers.0.self_attn.q_proj.bias", r"does not use: model\.layers\.0\.self_attn"),
        ("adapter.weight", r"does not use: adapter\.weight"),
    ],
)
def test_weights_that_the_model_does_not_use_are_named(
    folder: Path, runner: str, name: str, reason: str
) -> None:
    more(folder, name, torch.zeros(64))
    refused(folder, runner, reason)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.embeddings.position_ids", "mtp.x"],
)
def test_tables_that_older_versions_stored_are_ignored(
    folder: Path, runner: str, name: str
) -> None:
    kind = torch.int64 if name.endswith("ids") else torch.float32
    expected = serve(folder, runner)
    more(folder, name, torch.zeros(8, dtype=kind))
    assert serve(folder, runner) == expected


def test_layers_that_predict_further_tokens_are_ignored(folder: Path) -> None:
    more(folder, "model.layers.2.self_attn.q_proj.weight", torch.zeros(64))
    change(folder / "config.json", num_nextn_predict_layers=1)
    assert serve(folder, "transformers")


# ---------------------------------------------------------------------- the index


@pytest.mark.parametrize(
    "name",
    [
        "../{other}",
        "{folder}/../{other}",
        "{absolute}",
        "linked/{other}",
        "x/../{other}",
        "",
        ".",
    ],
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


@pytest.mark.parametrize("names", [5, [1], {"a": 5}, {"a": None}, {"a": ["x"]}, {}, None, "x"])
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


# ---------------------------------------------------------------------- sizes and numbers


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "field",
    ["num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "head_dim",
     "num_attention_heads", "num_key_value_heads", "max_position_embeddings"],
)  # fmt: skip
@pytest.mark.parametrize("value", [10**9, 10**18, 10**400])
def test_a_model_larger_than_its_weights_is_refused_before_it_is_made(
    folder: Path, runner: str, field: str, value: int
) -> None:
    if (field, value) == ("max_position_embeddings", 10**9):
        pytest.skip("rotary embeddings reach any position")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(damage.dumps({**config, field: value}))
    refused(folder, runner, field)


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), -1e-6, 0, True, "1e-5", []])
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


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda whole: 5, "holds one int"),
        (lambda whole: {**whole, "x": 5}, "x is no plain tensor"),
        (lambda whole: {**whole, 5: whole[_MATRIX]}, "5 is no plain tensor"),
        (lambda whole: {**whole, _MATRIX: whole[_MATRIX].to_sparse()}, "is no plain tensor"),
        (lambda whole: {**whole, _MATRIX: torch.zeros(1).expand(96, 64)}, "larger than its data"),
        (lambda whole: {**whole, _MATRIX: whole[_MATRIX].int()}, "stored as torch.int32"),
        (lambda whole: {**whole, "model.layers.2.x": torch.zeros(1)}, "says 2 layers"),
    ],
)
def test_a_pickle_holds_weights_and_nothing_else(
    pickled: Path, tmp_path: Path, runner: str, content: Callable[[Any], Any], reason: str
) -> None:
    folder = shutil.copytree(pickled, tmp_path / "model")
    path = folder / "pytorch_model.bin"
    torch.save(content(torch.load(path)), path)
    refused(folder, runner, reason, allow_pickle=True)


@pytest.mark.parametrize("runner", RUNNERS)
def test_pickles_old_and_new_are_read(pickled: Path, tmp_path: Path, runner: str) -> None:
    folder = shutil.copytree(pickled, tmp_path / "model")
    path = folder / "pytorch_model.bin"
    expected = serve(folder, runner, allow_pickle=True)
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    assert serve(folder, runner, allow_pickle=True) == expected


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
    kind = draw(st.sampled_from(["value", "value", "value", "bytes", "whole"]))
    if kind == "whole":
        how = draw(st.sampled_from(sorted(damage.WHOLE)))

        def replace(folder: Path) -> None:
            (folder / name).unlink()
            damage.WHOLE[how](folder / name)

        return f"{name}: {how}", replace
    if kind == "bytes":
        size = (whole / name).stat().st_size
        edit = draw(damage.byte_changes(size, 2000))
        return f"{name}: bytes", lambda folder: damage.change_bytes(folder / name, edit)
    edited: list[Any] = []

    def remember(content: Any) -> Any:
        edited.append(content)
        return content

    with_content = damage.change_header if name == shard else damage.change_json
    scratch = whole.parent / f"scratch_{name}"
    shutil.copy(whole / name, scratch)
    with_content(scratch, remember)
    what, changed = draw(damage.mutations(edited[0]))
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
    return {name: tiny_models.save(name, folder / name) for name in tiny_models.NATIVE}


def damaged(data: st.DataObject, sound: Path, tmp_path: Path, name: str) -> Path:
    """A folder in which a value of a file of JSON is another."""
    folder = links(sound, tmp_path / "model")
    what, changed = data.draw(damage.mutations(json.loads((sound / name).read_text())))
    note(what)
    damage.change_json(folder / name, lambda _: changed)
    return folder


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    options: dict[str, Any] = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
    }
    return {name: save_tokenizer(folder / name, make(), **options) for name, make in KINDS.items()}


@pytest.fixture(scope="module", params=[Gptq(), CompressedTensors()], ids=str)
def codes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(make(), tmp_path_factory.mktemp("codes"), request.param)


Do = Callable[[st.DataObject, Path], object]
"""Draws damage, does it to a copy of a model in a folder, and uses that."""


@pytest.fixture
def uses(
    whole: Path,
    families: dict[str, Path],
    pickled: Path,
    tokenizers: dict[str, Path],
    codes: Path,
) -> dict[str, Do]:
    """By what is damaged; each is served or refused."""

    def model(runner: str) -> Do:
        def do(data: st.DataObject, tmp_path: Path) -> None:
            folder = links(whole, tmp_path / "model")
            what, damage_it = data.draw(damages(whole))
            note(what)
            damage_it(folder)
            outcome(lambda: serve(folder, runner))
            outcome(lambda: use_tokenizer(folder))

        return do

    def configuration(data: st.DataObject, tmp_path: Path) -> None:
        family = families[data.draw(st.sampled_from(sorted(families)))]
        folder = damaged(data, family, tmp_path, "config.json")
        outcome(lambda: serve(folder, "native"))

    def pickle(data: st.DataObject, tmp_path: Path) -> None:
        folder = links(pickled, tmp_path / "model")
        path = folder / "pytorch_model.bin"
        damage.change_bytes(path, data.draw(damage.byte_changes(path.stat().st_size, 6000)))
        outcome(lambda: serve(folder, "native", allow_pickle=True))

    def tokenizer(data: st.DataObject, tmp_path: Path) -> None:
        sound = tokenizers[data.draw(st.sampled_from(sorted(tokenizers)))]
        name = data.draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
        folder = damaged(data, sound, tmp_path, name)
        outcome(lambda: use_tokenizer(folder))

    def quantised(data: st.DataObject, tmp_path: Path) -> None:
        content = bytearray((codes / "model.safetensors").read_bytes())
        head = 8 + int.from_bytes(content[:8], "little")
        data.draw(damage.byte_changes(len(content), head))(content)
        folder = links(codes, tmp_path / "model")
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").write_bytes(content)
        outcome(lambda: serve(folder, "native"))

    own = {"a configuration": configuration, "a pickle": pickle, "a tokenizer": tokenizer}
    own |= {"quantised weights": quantised}
    return {runner: model(runner) for runner in RUNNERS} | own


@damage.lengths(25, 2000)
@pytest.mark.parametrize(
    "kind", [*RUNNERS, "a configuration", "a pickle", "a tokenizer", "quantised weights"]
)
def test_any_damage_is_served_or_refused(
    kind: str, examples: int, uses: dict[str, Do], tmp_path: Path
) -> None:
    damage.for_examples(examples, lambda data: uses[kind](data, tmp_path))


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize("how", sorted(damage.WHOLE))
def test_whatever_is_in_place_of_a_file(whole: Path, tmp_path: Path, name: str, how: str) -> None:
    folder = links(whole, tmp_path / "model")
    (folder / name).unlink()
    damage.WHOLE[how](folder / name)
    outcome(lambda: serve(folder, "native"))
    outcome(lambda: use_tokenizer(folder))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_the_command_shows_one_line(whole: Path, tmp_path: Path, name: str) -> None:
    folder = links(whole, tmp_path / "model")
    (folder / name).unlink()
    damage.WHOLE["deep"](folder / name)
    command = [sys.executable, "-m", "paged_core", "generate", "hi", "--model", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode
    assert "Traceback" not in ran.stderr
    assert str(folder / name) in ran.stderr.replace("\n", "")
