"""How wide the rows of a value are, where the node that it comes from says so."""

from __future__ import annotations

from onnx import NodeProto

from paged_backends.runners.onnx.file.model_graph import ModelGraph

_MAX_NODES = 8
_KEEP_WIDTH = ("Add", "Cast", "Identity", "RotaryEmbedding")


def row_width(graph: ModelGraph, name: str) -> int | None:
    """Return the last size of a value; ``None``: it is not known.

    The types of a graph do not say it: nothing infers shapes past operators that ONNX lacks.
    """
    for _ in range(_MAX_NODES):
        node = graph.made_by(name)
        if node is None or node.op_type not in _KEEP_WIDTH:
            return None if node is None else _made_width(graph, node, name)
        name = next((value for value in node.input if graph.made_by(value) is not None), "")
    return None


def _made_width(graph: ModelGraph, node: NodeProto, name: str) -> int | None:
    if node.op_type == "MatMulNBits":
        return next((int(one.i) for one in node.attribute if one.name == "N"), None)
    if node.op_type == "MatMul":
        weight = graph.weights.get(node.input[1])
        return None if weight is None or not weight.dims else int(weight.dims[-1])
    if node.op_type not in ("Reshape", "Split") or len(node.input) < 2:
        return None
    sizes = graph.constant(node.input[1])
    place = -1 if node.op_type == "Reshape" else list(node.output).index(name)
    size = 0 if sizes is None or not -1 <= place < sizes.size else int(sizes.reshape(-1)[place])
    return size if size > 0 else None
