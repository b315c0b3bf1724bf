"""The number of weights that every token is multiplied by."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from onnx import NodeProto

from paged_backends.runners.onnx.file.cut_model import CutModel
from paged_backends.runners.onnx.file.model_graph import ModelGraph
from paged_backends.runners.onnx.file.stages import Stage
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.model_size import ModelSize


def model_size(model: CutModel, layers: Sequence[LayerSpec]) -> ModelSize:
    """Count the weights of all products of a graph."""
    return ModelSize(
        layer_weights=sum(_of_stage(model.graph, stage) for stage in model.parts.stages),
        head_weights=_of_stage(model.graph, model.parts.head),
        layers=tuple(layers),
    )


def _of_stage(graph: ModelGraph, stage: Stage) -> int:
    return sum(_of_node(graph, node) for node in stage.nodes)


def _of_node(graph: ModelGraph, node: NodeProto) -> int:
    if node.op_type == "MatMulNBits":
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        return int(sizes["K"] * sizes["N"])
    if node.op_type not in ("MatMul", "Gemm"):
        return 0
    return max((_stored(graph, name) for name in node.input[:2]), default=0)


def _stored(graph: ModelGraph, name: str) -> int:
    """Return the numbers of a weight that a product reads, transposed or as it is."""
    made_by = graph.made_by(name)
    if made_by is not None and made_by.op_type == "Transpose":
        name = made_by.input[0]
    weight = graph.weights.get(name)
    return 0 if weight is None else prod(weight.dims)
