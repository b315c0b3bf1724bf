"""Widths of heads, from the cache that keys are appended to.

Exporters compute the scale of attention from the shape of a query, which shape inference loses
behind operators that are not of ONNX.
"""

from __future__ import annotations

from onnx import NodeProto

from paged_backends.runners.onnx.file.model_graph import ModelGraph

_MAX_NODES = 32
"""Between a product and the cache."""
_CACHE_AXES = 4
_SAME = ("Cast", "Identity", "Mul", "Div")
_KEY = (*_SAME, "Transpose", "Reshape", "Expand", "Unsqueeze")


def head_widths(graph: ModelGraph) -> dict[str, int]:
    """Return the last size of each query that is multiplied with keys of a cache."""
    widths: dict[str, int] = {}
    for node in graph.nodes:
        width = _key_width(graph, node.input[1]) if node.op_type == "MatMul" else None
        if width is not None:
            widths |= dict.fromkeys(_query(graph, node.input[0]), width)
    return widths


def _key_width(graph: ModelGraph, name: str) -> int | None:
    """Return the width of keys [1, H, D, L] of a cache [1, K, L, D]; ``None``: they are none."""
    transposed = False
    for _ in range(_MAX_NODES):
        node = graph.made_by(name)
        if node is not None and node.op_type == "Concat":
            kind = graph.inputs.get(node.input[0])
            if kind is None or len(kind.shape.dim) != _CACHE_AXES or not transposed:
                return None
            return kind.shape.dim[3].dim_value or None
        if node is None or node.op_type not in _KEY:
            return None
        transposed ^= node.op_type == "Transpose" and not _keeps_last(node)
        name = node.input[0]
    return None


def _query(graph: ModelGraph, name: str) -> list[str]:
    """Return values before a product that have the last size of its query."""
    names = [name]
    for _ in range(_MAX_NODES):
        node = graph.made_by(names[-1])
        if node is None or not (node.op_type in _SAME or _keeps_last(node)):
            break
        names.append(node.input[0])
    return names


def _keeps_last(node: NodeProto) -> bool:
    if node.op_type != "Transpose":
        return False
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    return bool(order) and order[-1] == len(order) - 1
