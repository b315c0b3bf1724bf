"""Attentions that a graph names: operators that ONNX Runtime adds to those of ONNX.

Shapes: T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from onnx import NodeProto, helper

from paged_backends.runners.onnx.file.found_attention import FoundAttention, GraphMask, cached_rows
from paged_backends.runners.onnx.file.model_graph import (
    ModelGraph,
    attribute,
    described,
    refusal,
)
from paged_backends.runners.onnx.sessions import CONTRIB


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where an operator has what, beside query, key and value."""

    inputs: tuple[str, ...]
    """Names of all inputs, in order."""
    refused: Mapping[str, str]
    """Inputs that nothing here computes, and what they stand for."""
    attributes: frozenset[str]
    """That are known, or say nothing of the result."""
    flat: bool
    """Tokens of all sequences are one axis, without one of batches."""


_QUANTISED = "keeps its cache quantised"
_SINKS = "has attention sinks"
_SHARED_ATTRIBUTES = {
    *("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size"),
    *("do_rotary", "rotary_interleaved", "qk_norm_epsilon"),
}

_MAX_NODES = 8
_KEEP_WIDTH = ("Add", "Cast", "Identity", "RotaryEmbedding")
"""Operators whose results are as wide as what they read."""

_NOTHING = (0, b"", b"NONE")
"""Values of attributes that switch off what they stand for."""

_GROUP_QUERY = _Layout(
    inputs=(
        *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
        *("cos", "sin", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale"),
        *("query_norm", "key_norm"),
    ),
    refused={
        "attention_bias": "adds a bias to its scores",
        "head_sink": _SINKS,
        "k_scale": _QUANTISED,
        "v_scale": _QUANTISED,
    },
    # sliding_window_cache: how much of the cache is kept, which the engine decides
    attributes=frozenset({*_SHARED_ATTRIBUTES, "sliding_window_cache", "causal"}),
    flat=False,
)
_PAGED = _Layout(
    inputs=(
        *("query", "key", "value", "past_key", "past_value"),
        *("cumulative_sequence_length", "past_seqlens", "block_table", "cos", "sin"),
        *("slot_mapping", "head_sink", "query_norm", "key_norm", "k_scale", "v_scale"),
        "attention_metadata",
    ),
    refused={"head_sink": _SINKS, "k_scale": _QUANTISED, "v_scale": _QUANTISED},
    attributes=frozenset({*_SHARED_ATTRIBUTES, "is_causal", "kv_cache_layout"}),
    flat=True,
)
_MULTI_HEAD = _Layout(
    inputs=(
        *("query", "key", "value", "bias", "key_padding_mask", "attention_bias"),
        *("past_key", "past_value", "past_sequence_length", "cache_indirection"),
    ),
    refused={"bias": "adds biases to query, key and value", "cache_indirection": "serves beams"},
    attributes=frozenset({"num_heads", "scale", "unidirectional", "mask_filter_value"}),
    flat=False,
)


class _Node:
    """An attention operator: its inputs and attributes by name."""

    def __init__(self, node: NodeProto, layout: _Layout) -> None:
        self.proto = node
        self.flat = layout.flat
        self._inputs: dict[str, str] = dict(zip(layout.inputs, node.input, strict=False))
        given = {attribute.name: attribute for attribute in node.attribute}
        self._attributes = {
            name: helper.get_attribute_value(attribute) for name, attribute in given.items()
        }
        unknown = {
            name
            for name, value in self._attributes.items()
            if name not in layout.attributes and value not in _NOTHING
        }
        if unknown or len(node.input) > len(layout.inputs):
            what = min(unknown) if unknown else f"input {len(layout.inputs)}"
            raise refusal(node, f"has {what}, which is not known here")
        for name, reason in layout.refused.items():
            if self.has(name):
                raise refusal(node, reason)

    def has(self, name: str) -> bool:
        return bool(self._inputs.get(name))

    def input(self, name: str) -> str:
        value = self._inputs.get(name)
        if not value:
            raise refusal(self.proto, f"lacks its input {name}")
        return str(value)

    def integer(self, name: str, default: int | None = None, *, least: int | None = None) -> int:
        value = self._attributes.get(name, default)
        if not isinstance(value, int):
            raise refusal(self.proto, f"does not say its {name}")
        if least is not None and value < least:
            raise refusal(self.proto, f"has {name} {value}, which must be at least {least}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.integer(name, int(default))
        if value not in (0, 1):
            raise refusal(self.proto, f"has {name} {value}, which must be 0 or 1")
        return bool(value)

    def number(self, name: str, default: float, *, least: float | None = None) -> float:
        value = self._attributes.get(name, default)
        if not isinstance(value, int | float) or not isfinite(value):
            raise refusal(self.proto, f"has {name} {value}, which is no finite number")
        if least is not None and value < least:
            raise refusal(self.proto, f"has {name} {value:g}, which must be at least {least:g}")
        return float(value)

    def check_width(self, graph: ModelGraph, name: str, num_heads: int) -> None:
        """Check that the rows of an input are so many heads, if it is known how wide they are."""
        width = _row_width(graph, self.input(name))
        if width is not None and width % num_heads:
            raise refusal(
                self.proto, f"splits {name}, which is {width} wide, into {num_heads} heads"
            )


def take_attention_nodes(graph: ModelGraph, positions: str) -> list[FoundAttention]:
    """Take all attention operators out of a graph.

    Args:
        positions: the value [1, T] int64 that says where tokens are in their sequences.

    Raises:
        UnsupportedModel: one of them computes something that the engine's attention does not.
    """
    found: list[FoundAttention] = []
    for node in list(graph.nodes):
        if node.op_type in _REFUSED:
            raise refusal(node, "is no attention or state that can be paged")
        if node.op_type in _OPERATORS:
            take, layout = _OPERATORS[node.op_type]
            found.append(take(graph, node, len(found), positions, layout))
    return found


# ---------------------------------------------------------------------- grouped queries, paged


def _take_grouped(
    graph: ModelGraph, proto: NodeProto, index: int, positions: str, layout: _Layout
) -> FoundAttention:
    node = _Node(proto, layout)
    if not node.flag("is_causal" if node.flat else "causal", default=True):
        raise refusal(proto, "is not causal")
    if any(proto.output[3:]):
        raise refusal(proto, "returns its scores")
    heads, kv_heads = (node.integer(name, least=1) for name in ("num_heads", "kv_num_heads"))
    if heads % kv_heads:
        raise refusal(proto, f"has num_heads {heads}, and no multiple of kv_num_heads {kv_heads}")
    counts = (heads, kv_heads, kv_heads)
    given = {"query": heads, "key": kv_heads, "value": kv_heads}
    for name, count in given.items() if node.has("key") else [("query", sum(counts))]:
        node.check_width(graph, name, count)
    if node.has("key"):
        names = [
            _by_head(graph, node.input(name), count, flat=node.flat)
            for name, count in given.items()
        ]
    else:  # query, key and value of a token are one row
        packed = _by_head(graph, node.input("query"), sum(counts), flat=node.flat)
        names = graph.add_many("Split", 3, packed, graph.integers(*counts), axis=2)
    for place, norm in enumerate(("query_norm", "key_norm")):
        if node.has(norm):
            epsilon = node.number("qk_norm_epsilon", 1e-6, least=0)
            kind = "SimplifiedLayerNormalization"
            names[place] = graph.add(kind, names[place], node.input(norm), epsilon=epsilon, axis=-1)
        if node.flag("do_rotary"):
            names[place] = _rotated(graph, node, names[place], counts[place], positions)
    attended = f"attended.{index}"
    graph.replace(proto.output[0], _rows(graph, attended, flat=node.flat))
    window = node.integer("local_window_size", -1)
    return FoundAttention(
        node=described(proto),
        query=names[0],
        key=names[1],
        value=names[2],
        attended=attended,
        past=(node.input("past_key"), node.input("past_value")),
        scale=node.number("scale", 0.0) or None,
        sliding_window=window if window > 0 else None,
        soft_cap=node.number("softcap", 0.0, least=0) or None,
    )


def _rotated(graph: ModelGraph, node: _Node, rows: str, num_heads: int, positions: str) -> str:
    """Return [1, T, heads, D] after the rotary embedding."""
    cos, sin = node.input("cos"), node.input("sin")
    table = graph.weights.get(cos)
    if table is None or len(table.dims) != 2:
        raise refusal(node.proto, "has rotary embeddings that are no table of the file")
    rotated = graph.add(
        "RotaryEmbedding",
        graph.reshape(rows, 0, 0, -1),
        positions,
        cos,
        sin,
        domain=CONTRIB,
        interleaved=int(node.flag("rotary_interleaved")),
        num_heads=num_heads,
        rotary_embedding_dim=2 * table.dims[1],
    )
    return graph.reshape(rotated, 0, 0, num_heads, -1)


# ---------------------------------------------------------------------- several heads


def _take_multi_head(
    graph: ModelGraph, proto: NodeProto, index: int, _: str, layout: _Layout
) -> FoundAttention:
    node = _Node(proto, layout)
    masked, causal = node.has("attention_bias"), node.flag("unidirectional")
    if not masked and not causal:
        raise refusal(proto, "attends in both directions")
    heads = node.integer("num_heads", least=1)
    node.check_width(graph, "query", heads)
    if node.has("past_key"):
        rows = [_by_head(graph, node.input(name), heads, flat=False) for name in ("key", "value")]
        past = node.input("past_key"), node.input("past_value")
    else:  # the graph appends to the cache itself, and then repeats heads
        found = [cached_rows(graph, node.input(name)) for name in ("key", "value")]
        cached = [one for one in found if one is not None and one.factor == 1]
        if len(cached) < 2:
            raise refusal(proto, "does not attend to keys and values of a cache")
        rows = [graph.add("Transpose", one.rows, perm=[0, 2, 1, 3]) for one in cached]
        past = cached[0].past, cached[1].past
    query = _by_head(graph, node.input("query"), heads, flat=False)
    attended = f"attended.{index}"
    graph.replace(proto.output[0], _rows(graph, attended, flat=False))
    return FoundAttention(
        node=described(proto),
        query=query,
        key=rows[0],
        value=rows[1],
        attended=attended,
        past=past,
        scale=node.number("scale", 0.0) or None,
        mask=GraphMask(node.input("attention_bias"), causal=causal) if masked else None,
    )


# ---------------------------------------------------------------------- shapes


def _by_head(graph: ModelGraph, rows: str, num_heads: int, *, flat: bool) -> str:
    """Return rows [1, T, heads * D], or [T, heads * D], as [1, T, heads, D]."""
    if flat:
        rows = graph.add("Unsqueeze", rows, graph.integers(0))
    return graph.reshape(rows, 0, 0, num_heads, -1)


def _rows(graph: ModelGraph, attended: str, *, flat: bool) -> str:
    """Return the result [T, H, D] of attention as the graph reads it."""
    rows = graph.reshape(attended, 0, -1)
    return rows if flat else graph.add("Unsqueeze", rows, graph.integers(0))


def _row_width(graph: ModelGraph, name: str) -> int | None:
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
        width = attribute(node, "N")
        return width if isinstance(width, int) else None
    if node.op_type == "MatMul":
        weight = graph.weights.get(node.input[1])
        return None if weight is None or not weight.dims else int(weight.dims[-1])
    if node.op_type not in ("Reshape", "Split") or len(node.input) < 2:
        return None
    sizes = graph.constant(node.input[1])
    place = -1 if node.op_type == "Reshape" else list(node.output).index(name)
    size = 0 if sizes is None or not -1 <= place < sizes.size else int(sizes.reshape(-1)[place])
    return size if size > 0 else None


# ---------------------------------------------------------------------- operators


_OPERATORS: Mapping[str, tuple[Callable[..., FoundAttention], _Layout]] = {
    "GroupQueryAttention": (_take_grouped, _GROUP_QUERY),
    "PagedAttention": (_take_grouped, _PAGED),
    "MultiHeadAttention": (_take_multi_head, _MULTI_HEAD),
}
_REFUSED = frozenset(
    {
        *("Attention", "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention"),
        *("PackedAttention", "PackedMultiHeadAttention", "SparseAttention", "QAttention"),
        *("LinearAttention", "CausalConvWithState", "DecoderAttention"),
    }
)
