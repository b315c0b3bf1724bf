"""Keys and values that a graph appends to those of earlier tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from onnx import NodeProto, helper

from paged_backends.runners.onnx.file.model_graph import ModelGraph

_MAX_NODES = 32
"""Between the cache and its reader."""
_SAME_NUMBERS = ("Transpose", "Reshape", "Expand", "Unsqueeze", "Squeeze", "Identity", "Cast")


@dataclass(frozen=True, slots=True)
class CachedRows:
    """Rows of this step, as they are before they are appended."""

    rows: str
    """[1, K, T, D]."""
    past: str
    """The input of the graph that they are appended to."""
    factor: float
    """What their reader multiplies them by."""


def cached_rows(graph: ModelGraph, name: str) -> CachedRows | None:
    """Follow a value back to where rows are appended to a cache, through repeated heads.

    Returns:
        ``None`` if it comes from elsewhere.
    """
    name, factor = unscaled(graph, name)
    for _ in range(_MAX_NODES):
        node = graph.made_by(name)
        if node is None:
            return None
        if node.op_type == "Concat":
            return _appended(graph, node, factor)
        if node.op_type not in _SAME_NUMBERS:
            return None
        name, further = unscaled(graph, node.input[0])
        factor *= further
    return None


def unscaled(graph: ModelGraph, name: str) -> tuple[str, float]:
    """Return what a value was before it was multiplied by numbers, and the numbers' product."""
    factor = 1.0
    for _ in range(_MAX_NODES):
        node = graph.made_by(name)
        if node is None:
            break
        multiplied = multiplication(graph, node)
        if multiplied is not None:
            name, number = multiplied
            factor *= number
        elif node.op_type in ("Cast", "Identity"):
            name = node.input[0]
        else:
            break
    return name, factor


def multiplication(graph: ModelGraph, node: NodeProto) -> tuple[str, float] | None:
    """Return the value that a node multiplies by a number, and the number; ``None``: none."""
    if node.op_type not in ("Mul", "Div"):
        return None
    number = graph.number(node.input[1])
    if number is not None:
        return node.input[0], number if node.op_type == "Mul" else 1 / number if number else inf
    number = graph.number(node.input[0])
    return None if number is None or node.op_type == "Div" else (node.input[1], number)


def _appended(graph: ModelGraph, node: NodeProto, factor: float) -> CachedRows | None:
    axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), None)
    if len(node.input) != 2 or axis not in (2, -2) or node.input[0] not in graph.inputs:
        return None
    return CachedRows(node.input[1], node.input[0], factor)
