"""What of an ONNX file counts as numbers of weights."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from paged_backends.runners.onnx.file import file_structure
from paged_backends.runners.onnx.file.file_structure import structure_problem

ZEROS = numpy_helper.from_array(np.zeros(10_000, np.float32), "weight")


def test_numbers_of_weights_and_constants_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_structure, "_MAX_STRUCTURE", 1_000)
    model = ModelProto()
    model.graph.initializer.append(ZEROS)
    model.graph.initializer.add(name="listed", float_data=[0.5] * 10_000)
    model.graph.node.append(helper.make_node("Constant", [], ["x"], value=ZEROS))
    assert structure_problem(model.SerializeToString()) is None
    model.graph.node[0].doc_string = "x" * 1_000
    assert "no numbers of weights" in (structure_problem(model.SerializeToString()) or "")


def test_the_entries_of_a_graph_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_structure, "_MAX_ENTRIES", 3)
    model = ModelProto()
    model.graph.initializer.append(ZEROS)
    model.graph.node.add().attribute.add()
    assert structure_problem(model.SerializeToString()) is None
    model.graph.node[0].attribute.add()
    assert "more than 3 nodes" in (structure_problem(model.SerializeToString()) or "")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x3a", b"\x3a\xff", b"\x3a\x05\x0a", b"\xff" * 20, b"\x3a\x02\x0a\x7f", b"\x3b"],
)
def test_what_is_no_protobuf_ends_the_count(content: bytes) -> None:
    assert structure_problem(content) is None
