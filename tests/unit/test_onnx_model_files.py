"""ONNX files of a checkpoint: which holds the decoder, and what is refused of its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper

from paged_backends.checkpoint.folder import Checkpoint, holds_only_onnx
from paged_backends.checkpoint.onnx_files import find_onnx_file, onnx_patterns
from paged_backends.runners.onnx.file.model_file import read_model_file
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


def test_a_weight_of_a_type_that_is_never_mapped_is_named(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.INT4, dims=[8], data_location=1)
    weight.external_data.add(key="location", value="model.onnx")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [], [], [weight])
    (tmp_path / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(UnsupportedModel, match=r"stores 'w' as INT4"):
        read_model_file(tmp_path / "model.onnx")
