"""What an error says of a graph in which no attention was recognised."""

from __future__ import annotations

from collections import deque

from onnx import NodeProto

from paged_backends.runners.onnx.file.model_graph import ModelGraph, described

_MAX_NODES = 500
_EXPECTED = ("Add", "Sub", "Mul", "Div", "Where", "Cast", "Identity", "Tanh")
"""What lies between the products of query and key, and their softmax."""


def unknown_softmax(graph: ModelGraph) -> str | None:
    """Describe the first softmax over products of values, and what its scores go through.

    Returns:
        ``None``: there is no such softmax.
    """
    for softmax in graph.nodes:
        if softmax.op_type == "Softmax":
            between = _to_product(graph, softmax)
            if between is not None:
                odd = [described(node) for node in between if node.op_type not in _EXPECTED]
                through = f"; its scores go through {' and '.join(odd[-3:])}" if odd else ""
                return f"{described(softmax)} may be one{through}"
    return None


def _to_product(graph: ModelGraph, softmax: NodeProto) -> list[NodeProto] | None:
    """Return the nodes on the shortest way back to a product without a weight."""
    ways: deque[tuple[str, list[NodeProto]]] = deque([(softmax.input[0], [])])
    seen: set[str] = set()
    while ways and len(seen) < _MAX_NODES:
        name, way = ways.popleft()
        node = graph.made_by(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op_type == "MatMul":
            if not any(map(graph.is_weight, node.input)):
                return way
            continue
        ways.extend((value, [*way, node]) for value in node.input)
    return None
