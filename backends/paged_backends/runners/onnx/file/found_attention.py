"""An attention that was found in a graph, and the rows that it appends to its cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from onnx import NodeProto

from paged_backends.runners.onnx.file.model_graph import ModelGraph, attribute
from paged_backends.runners.onnx.segmented_model import AttentionCut


@dataclass(frozen=True, slots=True)
class GraphMask:
    """What a graph adds to scores [1, H, T, L] of T new tokens and all L tokens."""

    value: str
    """The mask, or the scores that it was added to."""
    product: str | None = None
    """The product of query and key, if ``value`` contains it."""
    causal: bool = False
    """Later tokens are masked beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttention(AttentionCut):
    """One attention, taken out of a graph: names of values, and how it computes.

    Query is [1, T, H, D], key and value are [1, T, K, D]; the result, [T, H, D], is an input of the
    graph from now on. Sizes are known when the values are.

    Shapes: T tokens, H query heads, K key/value heads, D head_dim.
    """

    node: str
    """How an error names it."""
    past: tuple[str, str]
    """The inputs of the graph that hold keys and values of earlier tokens."""
    scale: float | None
    """``None``: ``head_dim ** -0.5``."""
    sliding_window: int | None = None
    soft_cap: float | None = None
    mask: GraphMask | None = None
    """A value of the graph as it is in its file; ``None``: the operator masks by itself."""


# ---------------------------------------------------------------------- rows of a cache

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
    appends = len(node.input) == 2 and attribute(node, "axis") in (2, -2)
    if not appends or node.input[0] not in graph.inputs:
        return None
    return CachedRows(node.input[1], node.input[0], factor)
