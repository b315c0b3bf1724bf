"""A damaged ONNX checkpoint, or one that cannot be cut, is refused in one line that says why."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper
from structlog.testing import capture_logs

from integration import damage
from integration.step_driver import load_runner, prompt_logits
from integration.test_onnx_files import FOLDER
from paged_core import LLM
from paged_core.errors import CheckpointError, PagedCoreError, SettingsError, UnsupportedModel

GENAI, WRITTEN_OUT = "genai-qwen3", "optimum-gpt2"
"""A file whose weights lie beside it, and one that writes its attentions out."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER / GENAI, tmp_path / "model")


@pytest.fixture
def written_out(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER / WRITTEN_OUT, tmp_path / "model")


def load(folder: Path, **options: Any) -> Any:
    return load_runner(folder, "onnxruntime", **options)


def refused(folder: Path, kind: type[PagedCoreError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def change(folder: Path, edit: Callable[[ModelProto], object]) -> None:
    path = folder / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    edit(model)
    path.write_bytes(model.SerializeToString())


def move(folder: Path, **entries: str) -> None:
    """Let the first weight that lies in another file lie elsewhere."""

    def edit(model: ModelProto) -> None:
        weights = model.graph.initializer
        weight = next(weight for weight in weights if weight.data_location)
        for entry in weight.external_data:
            entry.value = entries.get(entry.key, entry.value)

    change(folder, edit)


# ---------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("", slice(-100), "cannot be read as an ONNX model"),
        ("", b"", "cannot be read as an ONNX model"),
        ("", b"no model", "cannot be read as an ONNX model"),
        ("", b"version https://git-lfs.github.com/spec", "git-lfs pointer"),
        (".data", slice(1000), r"has 1000 bytes, and model\.onnx looks for"),
        (".data", None, r"lacks its weights: .*model\.onnx\.data is missing"),
    ],
)
def test_files_that_are_not_whole(
    folder: Path, name: str, content: bytes | slice | None, message: str
) -> None:
    path = folder / f"model.onnx{name}"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[content])
    refused(folder, CheckpointError, message)


@pytest.mark.parametrize("name", ["../model.onnx.data", "/etc/passwd", "", "a\nb", "x" * 300])
def test_weights_outside_of_the_folder(folder: Path, name: str) -> None:
    (folder.parent / "model.onnx.data").write_bytes((folder / "model.onnx.data").read_bytes())
    move(folder, location=name)
    refused(folder, CheckpointError, "which is not in its folder")


def test_a_link_to_a_folder_is_not_followed(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    (folder / "model.onnx.data").rename(folder.parent / "other" / "data")
    (folder / "link").symlink_to(folder.parent / "other", target_is_directory=True)
    move(folder, location="link/data")
    refused(folder, CheckpointError, "which is not in its folder")


def test_links_to_files_are_followed(folder: Path) -> None:
    """The cache of a hub consists of them."""
    for name in ("model.onnx", "model.onnx.data"):
        (folder / name).rename(folder.parent / f"blob-{name}")
        (folder / name).symlink_to(folder.parent / f"blob-{name}")
    assert load(folder).layers


@pytest.mark.parametrize(("key", "value"), [("offset", "-4"), ("offset", "a"), ("length", "3")])
def test_weights_at_impossible_places(folder: Path, key: str, value: str) -> None:
    move(folder, **{key: value})
    refused(folder, CheckpointError, "looks for|lies at no number")


def test_weights_at_odd_places(written_out: Path) -> None:
    """Some are no multiple of what a number takes: those are copied."""
    path, data = written_out / "model.onnx", written_out / "weights"
    prompt = [3, 5, 7, 11]
    expected = prompt_logits(load(written_out), prompt)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=data.name)
    data.write_bytes(b"x" + data.read_bytes())

    def edit(model: ModelProto) -> None:
        for weight in model.graph.initializer:
            for entry in weight.external_data:
                entry.value = str(int(entry.value) + 1) if entry.key == "offset" else entry.value

    change(written_out, edit)
    assert (prompt_logits(load(written_out), prompt) - expected).abs().max() < 1e-5


def test_a_weight_of_an_unknown_type(folder: Path) -> None:
    change(folder, lambda model: setattr(model.graph.initializer[0], "data_type", 77))
    refused(folder, CheckpointError, "has no known type or shape")


def test_any_byte_may_be_wrong() -> None:
    """It is served or refused by an error of ours, never by one of a library."""

    def check(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = shutil.copytree(FOLDER / "genai-llama-int4", Path(temporary) / "model")
            path = folder / "model.onnx"
            content = bytearray(path.read_bytes())
            for _ in range(data.draw(st.integers(1, 3))):
                place = data.draw(st.integers(0, len(content) - 1))
                content[place] = data.draw(st.integers(0, 255))
            path.write_bytes(bytes(content))
            try:
                load(folder)
            except PagedCoreError as error:
                assert "\n" not in str(error)

    damage.for_examples(30, check)


# ---------------------------------------------------------------------- the configuration


def configure(folder: Path, **changes: Any) -> None:
    """Change what ``genai_config.json`` says of the decoder."""
    path = folder / "genai_config.json"
    decoder = json.loads(path.read_text())["model"]["decoder"]
    configure_model(folder, decoder=decoder | changes)


def configure_model(folder: Path, **changes: Any) -> None:
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"] |= changes
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filename": "../model.onnx"}, "not in its folder"),
        ({"filename": "/etc/passwd"}, "not in its folder"),
        ({"head_size": 7}, "has heads of width 16, and the configuration beside it 7"),
        ({"num_hidden_layers": 99}, "has 2 attention layers, and the configuration beside it 99"),
        ({"filename": 3}, "not in its folder"),
        ({"filename": "other.onnx"}, "there is no such file"),
        ({"pipeline": []}, "a pipeline of several graphs"),
        ({"inputs": []}, "inputs must be an object"),
        ({"sliding_window": 3}, "sliding_window must be an object"),
        ({"sliding_window": {"window_size": -1}}, "window_size must be a whole number"),
        (
            {"sliding_window": {"window_size": 4, "layers": [0]}, "num_hidden_layers": 9},
            "has 2 attention layers, and the configuration beside it 9",
        ),
    ],
)
def test_a_configuration_that_is_wrong(folder: Path, changes: dict[str, Any], message: str) -> None:
    configure(folder, **changes)
    refused(folder, CheckpointError, message)


@pytest.mark.parametrize("part", ["encoder", "vision"])
def test_graphs_beside_the_decoder(folder: Path, part: str) -> None:
    configure_model(folder, **{part: {"filename": "other.onnx"}})
    refused(folder, CheckpointError, f"names a graph for '{part}' beside its decoder")


def test_another_vocabulary_is_logged(folder: Path) -> None:
    configure_model(folder, vocab_size=7)
    with capture_logs() as logs:
        assert load(folder).vocab_size == 98
    (entry,) = [entry for entry in logs if entry["event"] == "vocab_size_differs"]
    assert (entry["graph"], entry["configuration"]) == (98, 7)


def test_names_that_the_graph_does_not_have(folder: Path) -> None:
    configure(folder, inputs={"input_ids": "words"})
    refused(folder, UnsupportedModel, "it has no 'words', and a decoder takes token ids")


def test_a_window_of_unknown_layers_limits_the_length(folder: Path) -> None:
    """Up to there it makes no difference; builders leave some windows out of the graph."""
    configure(folder, sliding_window={"window_size": 16, "layers": []})
    assert load(folder).max_model_len == 16


def test_no_configuration(written_out: Path) -> None:
    (written_out / "config.json").unlink()
    refused(written_out, CheckpointError, r"copy the config\.json of the model")


def test_a_configuration_beside_the_graph(written_out: Path) -> None:
    (written_out / "onnx").mkdir()
    for name in ("model.onnx", "config.json", "generation_config.json"):
        (written_out / name).rename(written_out / "onnx" / name)
    assert load(written_out).eos_token_ids


def test_a_file_that_is_chosen_by_its_name(written_out: Path) -> None:
    (written_out / "onnx").mkdir()
    (written_out / "model.onnx").rename(written_out / "onnx" / "model_quantized.onnx")
    with pytest.raises(CheckpointError, match=r"model_quantized\.onnx, .* option file"):
        load(written_out)
    assert load(written_out, file="onnx/model_quantized.onnx").layers
    (written_out / "model.safetensors").touch()
    assert load(written_out, file="onnx/model_quantized.onnx").layers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other.onnx", "has no 'other.onnx'; give one of its ONNX files: model.onnx"),
        ("../model.onnx", "is not in .*; give the name of a file in there"),
        ("/etc/passwd", "is not in "),
        ("link/model.onnx", "is not in "),
        ("", "is not in "),
    ],
)
def test_a_chosen_file_that_cannot_be_served(written_out: Path, name: str, reason: str) -> None:
    shutil.copy(written_out / "model.onnx", written_out.parent)
    (written_out / "link").symlink_to(written_out.parent, target_is_directory=True)
    with pytest.raises(SettingsError, match=rf"runner\.file: .*{reason}"):
        load(written_out, file=name)


def test_decoders_in_two_graphs(written_out: Path) -> None:
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        shutil.copy(written_out / "model.onnx", written_out / name)
    (written_out / "model.onnx").unlink()
    refused(written_out, CheckpointError, r"decoder_model\.onnx.* none is model\.onnx")


def test_auto_names_the_runner_that_is_missing(
    written_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "onnxruntime is not installed"
    monkeypatch.setattr(
        "paged_backends.runners.onnx.packages.unavailable_reason", lambda *_: missing
    )
    once = "native and transformers: .* ONNX file only, which runner"
    with pytest.raises(UnsupportedModel, match=f"{once}.*{missing}") as caught:
        LLM(str(written_out), num_blocks=8)
    assert str(caught.value).count("ONNX file only") == 1


def test_random_weights_need_a_configuration(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"^runner\.weights: random .* set it to checkpoint"):
        load(folder, weights="random")


# ---------------------------------------------------------------------- the graph


def attention(model: ModelProto) -> NodeProto:
    return next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (10, "adds a bias to its scores"),
        (11, "has attention sinks"),
        (12, "keeps its cache quantised"),
        (16, "has input 16, which is not known here"),
    ],
)
def test_inputs_of_an_attention(folder: Path, index: int, reason: str) -> None:
    def edit(model: ModelProto) -> None:
        node = attention(model)
        given = [*node.input, *[""] * (index + 1 - len(node.input))]
        given[index] = model.graph.initializer[0].name
        node.input[:] = given

    change(folder, edit)
    refused(folder, UnsupportedModel, f"'/model/layers.0/attn/GroupQueryAttention'.* {reason}")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num_heads", 0, "has num_heads 0, which must be at least 1"),
        ("num_heads", -4, "has num_heads -4, which must be at least 1"),
        ("num_heads", 3, "has num_heads 3, and no multiple of kv_num_heads 2"),
        ("num_heads", 1_000_000_000, r"splits query, which is \d+ wide, into 1000000000 heads"),
        ("num_heads", "many", "does not say its num_heads"),
        ("kv_num_heads", 0, "has kv_num_heads 0, which must be at least 1"),
        ("kv_num_heads", 3, "has num_heads 4, and no multiple of kv_num_heads 3"),
        ("rotary_interleaved", 7, "has rotary_interleaved 7, which must be 0 or 1"),
        ("do_rotary", 2, "has do_rotary 2, which must be 0 or 1"),
        ("scale", float("nan"), "has scale nan, which is no finite number"),
        ("scale", float("inf"), "has scale inf, which is no finite number"),
        ("scale", "wide", "has scale b'wide', which is no finite number"),
        ("softcap", -3.0, "has softcap -3, which must be at least 0"),
    ],
)
def test_attributes_of_an_attention(folder: Path, name: str, value: Any, reason: str) -> None:
    def edit(model: ModelProto) -> None:
        given = attention(model).attribute
        kept = [attribute for attribute in given if attribute.name != name]
        del given[:]
        given.extend([*kept, helper.make_attribute(name, value)])

    change(folder, edit)
    refused(folder, UnsupportedModel, f"'/model/layers.0/attn/GroupQueryAttention'.* {reason}")


def test_an_error_of_onnx_runtime_is_not_printed_as_well(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def edit(model: ModelProto) -> None:
        node = next(node for node in model.graph.node if node.op_type == "Sigmoid")
        node.op_type, node.domain = "RotaryEmbedding", "com.microsoft"
        node.input[:] = [node.input[0], "input_ids", *[model.graph.initializer[0].name] * 2]
        node.attribute.append(helper.make_attribute("rotary_embedding_dim", 4))

    change(folder, edit)
    refused(folder, UnsupportedModel, r"model\.onnx: num_heads > 0 was false\. [^:/]*; a newer")
    assert "onnxruntime" not in "".join(capfd.readouterr())


def named(model: ModelProto, part: str) -> NodeProto:
    return next(node for node in model.graph.node if part in node.name)


def add(model: ModelProto, kind: str, inputs: list[str], *names: str, **attributes: Any) -> None:
    """Add a node that returns ``names``, of which the last is its own."""
    *outputs, name = names
    model.graph.node.append(helper.make_node(kind, inputs, outputs, name, **attributes))


def graphs_in_a_graph(model: ModelProto) -> None:
    branch = helper.make_graph([], "branch", [], [])
    add(model, "If", ["input_ids"], "x", "/choice", then_branch=branch)


def quantised_together(model: ModelProto) -> None:
    """One scale for all tokens of a step: the result of each depends on the others."""
    product = named(model, "/lm_head/MatMul")
    add(model, "DynamicQuantizeLinear", [product.input[0]], "q", "s", "z", "/together")
    add(model, "DequantizeLinear", ["q", "s", "z"], "rows", "/back")
    product.input[0] = "rows"


def multiplied_as_integers(model: ModelProto) -> None:
    """``quantize_dynamic`` makes such products; a head of them is none that the cut would find."""
    product = named(model, "/lm_head/MatMul")
    add(model, "DynamicQuantizeLinear", [product.input[0]], "q", "s", "z", "/together")
    add(model, "Cast", ["sums"], "numbers", "/cast", to=TensorProto.FLOAT)
    add(model, "Mul", ["numbers", "s"], product.output[0], "/scale")
    product.op_type, product.input[0], product.output[0] = "MatMulInteger", "q", "sums"


def mixed_outside_of_attention(model: ModelProto) -> None:
    product = named(model, "/lm_head/MatMul")
    model.graph.initializer.append(helper.make_tensor("axis", TensorProto.INT64, [], [1]))
    add(model, "CumSum", [product.input[0], "axis"], "summed", "/sum")
    product.input[0] = "summed"


def lengths_of_the_cache(model: ModelProto) -> None:
    head = named(model, "lm_head")
    add(model, "Shape", ["past_key_values.0.key"], "lengths", "")
    add(model, "Cast", ["lengths"], "numbers", "", to=TensorProto.FLOAT)
    add(model, "ReduceSum", ["numbers"], "length", "", keepdims=0)
    add(model, "Add", [head.input[0], "length"], "shifted", "/shift")
    head.input[0] = "shifted"


def without_a_cache(model: ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Concat" and node.input[0].startswith("past_key_values"):
            node.op_type, node.input[:] = "Identity", [node.input[1]]
            del node.attribute[:]


def without_attention(model: ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.op_type, node.domain = "Identity", ""


def appended_scores(model: ModelProto) -> None:
    """Such as attention sinks: the error names the softmax, and what stands in the way."""
    nodes = [node for node in model.graph.node if node.op_type == "Softmax"]
    for index, node in enumerate(nodes):
        given = [node.input[0], model.graph.initializer[0].name]
        add(model, "Concat", given, f"sunk{index}", f"/sinks.{index}", axis=-1)
        node.input[0] = f"sunk{index}"


def cache_of_no_attention(model: ModelProto) -> None:
    extra = model.graph.input.add()
    extra.CopyFrom(model.graph.input[-2])
    extra.name = "past_key_values.7.key"


def operator(kind: str) -> Callable[[ModelProto], object]:
    return lambda model: setattr(attention(model), "op_type", kind)


OTHERS_OF_THE_STEP = "'/together'.* depends on the others; quantise weights only"
PAGED = "is no attention or state that can be paged"
GRAPHS: list[tuple[str, Callable[[ModelProto], object], str]] = [
    (GENAI, operator("Attention"), rf"\(Attention\) {PAGED}"),
    (GENAI, operator("LinearAttention"), PAGED),
    (GENAI, operator("DecoderMaskedMultiHeadAttention"), PAGED),
    (
        GENAI,
        lambda model: setattr(named(model, "act_fn"), "op_type", "Sigmund"),
        r"onnxruntime [\d.]+ cannot .* \S+model\.onnx: node \S+ \(Sigmund\): .* export the model",
    ),
    (
        GENAI,
        lambda model: setattr(model.opset_import[0], "version", 999),
        r"opset 999 of ONNX.*pip install -U",
    ),
    (GENAI, graphs_in_a_graph, "'/choice'.* chooses between graphs"),
    (GENAI, quantised_together, OTHERS_OF_THE_STEP),
    (GENAI, multiplied_as_integers, OTHERS_OF_THE_STEP),
    (GENAI, mixed_outside_of_attention, "outside of attention, the result of a token depends on"),
    (WRITTEN_OUT, lengths_of_the_cache, r"reads 'past_key_values\.0\.key' outside of attention"),
    (WRITTEN_OUT, without_a_cache, "keys and values that are appended to a cache"),
    (GENAI, without_attention, "no attention was found in it"),
    (
        WRITTEN_OUT,
        appended_scores,
        r"no attention was found in it, .*Softmax' \(Softmax\) may be one; its scores go through "
        r"node '/sinks.0' \(Concat\)",
    ),
    (GENAI, cache_of_no_attention, r"cache 'past_key_values\.7\.key' is read by 0 attentions"),
]


@pytest.mark.parametrize(("name", "edit", "message"), GRAPHS)
def test_graphs_that_cannot_be_served(
    name: str, edit: Callable[[ModelProto], object], message: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(FOLDER / name, tmp_path / "model")
    change(folder, edit)
    refused(folder, UnsupportedModel, message)


def test_only_the_last_token_has_logits(folder: Path) -> None:
    """Builders can leave the other rows out; the head here gets rows that sample a token only."""
    before = load(folder).vocab_size

    def edit(model: ModelProto) -> None:
        product = named(model, "/lm_head/MatMul")
        model.graph.initializer.append(helper.make_tensor("last", TensorProto.INT64, [1], [-1]))
        add(model, "Gather", [product.input[0], "last"], "one", "/last", axis=1)
        product.input[0] = "one"

    change(folder, edit)
    assert load(folder).vocab_size == before
