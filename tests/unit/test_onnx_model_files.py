"""ONNX files of a checkpoint: which holds the decoder, and where the large weights in it lie."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime import SessionOptions

from paged_backends.checkpoint.folder import Checkpoint, holds_only_onnx
from paged_backends.checkpoint.onnx_files import find_onnx_file, onnx_patterns
from paged_backends.runners.onnx.file.model_file import (
    StoredWeights,
    read_model_file,
    without_weights,
)
from paged_core.errors import CheckpointError, UnsupportedModel

# ---------------------------------------------------------------------- names


def genai(folder: Path, name: str) -> None:
    config = {"model": {"decoder": {"filename": name}}}
    (folder / "genai_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["model.onnx", "onnx/model.onnx"])
def test_where_exporters_put_it(name: str, tmp_path: Path) -> None:
    assert find_onnx_file(tmp_path) is None
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert find_onnx_file(tmp_path) == tmp_path / name


def test_where_a_configuration_says_it_is(tmp_path: Path) -> None:
    genai(tmp_path, "decoder.onnx")
    for name in ("decoder.onnx", "model.onnx"):
        (tmp_path / name).touch()
    assert find_onnx_file(tmp_path) == tmp_path / "decoder.onnx"
    assert onnx_patterns(tmp_path) == ["decoder.onnx", "decoder.onnx.data", "decoder.onnx_data*"]


def test_a_folder_that_links_elsewhere(tmp_path: Path) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "model.onnx").touch()
    (inside / "link").symlink_to(tmp_path, target_is_directory=True)
    genai(inside, "link/model.onnx")
    with pytest.raises(CheckpointError, match="not in its folder"):
        find_onnx_file(inside)


def test_other_weights_come_first(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    assert holds_only_onnx(tmp_path, allow_pickle=True)
    (tmp_path / "pytorch_model.bin").touch()
    assert holds_only_onnx(tmp_path, allow_pickle=False)
    assert not holds_only_onnx(tmp_path, allow_pickle=True)
    (tmp_path / "model.safetensors").touch()
    assert not holds_only_onnx(tmp_path, allow_pickle=False)


@pytest.mark.parametrize("config", [None, '{"model_type": "llama"}'])
def test_other_runners_leave_it_to_the_one_that_serves_it(
    config: str | None, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").touch()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UnsupportedModel, match="which runner onnxruntime serves"):
        Checkpoint.open(str(tmp_path)).check_weights(allow_pickle=False)


# ---------------------------------------------------------------------- weights inside


def model_of(sizes: list[int]) -> ModelProto:
    weights = [
        numpy_helper.from_array(np.arange(size, dtype=np.float32), f"weight.{size}.{index}")
        for index, size in enumerate(sizes)
    ]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [], [], weights)
    return helper.make_model(graph)


@settings(max_examples=25)
@given(st.lists(st.sampled_from([1, 200, 255, 256, 300, 70_000]), max_size=4))
def test_nothing_is_lost(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    model = model_of(sizes)
    path.write_bytes(model.SerializeToString())
    light = ModelProto.FromString(without_weights(memoryview(path.read_bytes()), path.name))
    large = [weight for weight in light.graph.initializer if weight.data_location]
    assert [weight.name for weight in large] == [
        weight.name for weight in model.graph.initializer if len(weight.raw_data) >= 1024
    ]
    assert not any(weight.raw_data for weight in large)
    numbers = StoredWeights(path.parent)
    for weight, whole in zip(light.graph.initializer, model.graph.initializer, strict=True):
        read = numbers._numbers(weight) if weight.data_location else numpy_helper.to_array(weight)
        assert np.array_equal(read, numpy_helper.to_array(whole))
    # what lies at odd places is put back for a session that wants it
    again = ModelProto.FromString(numbers.serialize(light, SessionOptions()))
    for weight, whole in zip(again.graph.initializer, model.graph.initializer, strict=True):
        assert weight.data_location or weight.raw_data == whole.raw_data
    light.graph.ClearField("initializer")
    model.graph.ClearField("initializer")
    assert light == model


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_refused(content: bytes) -> None:
    try:
        without_weights(memoryview(content), "model.onnx")
    except DecodeError as error:
        assert str(error)


def test_a_weight_of_a_type_that_is_never_mapped_is_named(tmp_path: Path) -> None:
    model = model_of([300])
    weight = model.graph.initializer[0]
    weight.data_type, weight.dims[0] = TensorProto.INT4, 2400
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedModel, match=r"stores 'weight\.300\.0' as INT4"):
        read_model_file(tmp_path / "model.onnx")
