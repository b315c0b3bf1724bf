"""Attentions that a graph computes itself: ``softmax(scale * query @ key + mask) @ value``.

Exporters that know no operator for attention write it out. It is found from each softmax: back to
the product of query and key, on to the product with the values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onnx import NodeProto

from paged_backends.runners.onnx.file.found_attention import (
    FoundAttention,
    GraphMask,
    cached_rows,
    multiplication,
    unscaled,
)
from paged_backends.runners.onnx.file.model_graph import (
    CACHE_AXES,
    ModelGraph,
    attribute,
    described,
    refusal,
    result_of,
)

_MAX_NODES = 32
"""Between a softmax and the product behind it, or a product and the cache; readers of a value."""
_BEHIND = ("Where", "Cast", "Identity", "Dropout")
"""What probabilities go through before they are multiplied with values."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """``scale * query @ key``, or ``soft_cap * tanh(scale * query @ key / soft_cap)``."""

    product: NodeProto
    scale: float = 1.0
    soft_cap: float | None = None

    def times(self, number: float) -> _Scores:
        cap = None if self.soft_cap is None else self.soft_cap * number
        return replace(self, scale=self.scale * number, soft_cap=cap)


def take_softmax_attentions(graph: ModelGraph) -> list[FoundAttention]:
    """Take all such attentions out of a graph.

    Raises:
        UnsupportedModel: one of them computes something else than attention over a cache.
    """
    found: list[FoundAttention] = []
    graph.find_numbers(_head_widths(graph))
    scored = _scored(graph)
    for softmax in [node for node in graph.nodes if node.op_type == "Softmax"]:
        scores = scored.get(softmax.input[0])
        if scores is not None:  # otherwise it is one of a router of experts
            found.append(_take(graph, len(found), softmax, scores))
    return found


def _take(graph: ModelGraph, index: int, softmax: NodeProto, scores: _Scores) -> FoundAttention:
    query, query_factor = unscaled(graph, scores.product.input[0])
    key = cached_rows(graph, scores.product.input[1])
    product = _product_behind(graph, softmax)
    value = cached_rows(graph, product.input[1])
    if key is None or value is None or value.factor != 1:
        raise refusal(
            softmax,
            "does not attend to keys and values that are appended to a cache, times constants; "
            "export the model with its cache (task text-generation-with-past) and without "
            "optimizations",
        )
    dtype = graph.inputs[key.past].elem_type
    names = [
        graph.add("Cast", _by_token(graph, rows), to=dtype)
        for rows in (query, key.rows, value.rows)
    ]
    attended = f"attended.{index}"
    # what read the result reads heads first, [1, H, T, D]
    result = _by_token(graph, _batched(graph, attended))
    computed_in = graph.types.get(product.input[1], dtype)
    graph.replace(product.output[0], graph.add("Cast", result, to=computed_in))
    scored = scores.times(query_factor * key.factor)
    return FoundAttention(
        node=described(softmax),
        query=names[0],
        key=names[1],
        value=names[2],
        attended=attended,
        past=(key.past, value.past),
        scale=scored.scale,
        # the product's factors lie inside of the cap
        soft_cap=scores.soft_cap,
        mask=GraphMask(softmax.input[0], scores.product.output[0]),
    )


def _scored(graph: ModelGraph) -> dict[str, _Scores]:
    """Return what is a product of query and key, or made of one by scaling, capping and masking.

    Each node is looked at once, behind those that it reads from.
    """
    scored: dict[str, _Scores] = {}
    for node in graph.nodes:
        scores = _scores(graph, node, scored)
        if scores is not None:
            scored[result_of(node)] = scores
    return scored


def _scores(graph: ModelGraph, node: NodeProto, scored: Mapping[str, _Scores]) -> _Scores | None:
    if node.op_type == "MatMul":
        return None if any(map(graph.is_weight, node.input)) else _Scores(node)
    multiplied = multiplication(graph, node)
    if multiplied is not None:
        before = scored.get(multiplied[0])
        return None if before is None else before.times(multiplied[1])
    if node.op_type == "Tanh":
        before = scored.get(node.input[0])
        return None if before is None else replace(before, soft_cap=1.0)
    if node.op_type in ("Add", "Where", "Cast", "Identity"):
        return next((scored[name] for name in node.input if name in scored), None)
    return None


def _product_behind(graph: ModelGraph, softmax: NodeProto) -> NodeProto:
    """Return the product of probabilities and values."""
    name = softmax.output[0]
    for _ in range(_MAX_NODES):
        readers = graph.read_by(name)[:_MAX_NODES]
        product = next((node for node in readers if node.op_type == "MatMul"), None)
        if product is not None:
            return product
        through = next((node for node in readers if node.op_type in _BEHIND), None)
        if through is None:
            break
        name = through.output[0]
    raise refusal(softmax, "is multiplied with no values")


def _by_token(graph: ModelGraph, value: str) -> str:
    """Return [1, A, B, D] as [1, B, A, D]."""
    return graph.add("Transpose", value, perm=[0, 2, 1, 3])


def _batched(graph: ModelGraph, rows: str) -> str:
    return graph.add("Unsqueeze", rows, graph.integers(0))


# ---------------------------------------------------------------------- widths of heads

_SAME = ("Cast", "Identity", "Mul", "Div")
_KEY = (*_SAME, "Transpose", "Reshape", "Expand", "Unsqueeze")


def _head_widths(graph: ModelGraph) -> dict[str, int]:
    """Return the last size of each query that is multiplied with keys of a cache.

    Exporters compute the scale of attention from the shape of a query, which shape inference loses
    behind operators that are not of ONNX. The cache that keys are appended to has the same width.
    """
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
            if kind is None or len(kind.shape.dim) != CACHE_AXES or not transposed:
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
    order: Any = attribute(node, "perm") if node.op_type == "Transpose" else None
    return bool(order) and order[-1] == len(order) - 1


# ---------------------------------------------------------------------- errors

_MAX_SEEN = 500
"""Values behind a softmax that is not recognised."""
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
    while ways and len(seen) < _MAX_SEEN:
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
