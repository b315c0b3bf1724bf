"""What lies between two attentions of a decoder, as a graph.

Segment 0 goes from the embedding to the first attention, segment ``i`` from attention ``i - 1`` to
attention ``i``, and the last one to the hidden states; the head is a graph of its own. Values that
cross from one graph to the next are [T, width]; their names are in :class:`Crossing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paged_backends.runners.native.config import Activation, DecoderConfig, Rope
from paged_backends.runners.native.decoder import Head, Layer
from paged_backends.runners.native.stored_linear import stored
from paged_backends.runners.onnx.graph import CONTRIB, ELEMENT_TYPES, Graph
from paged_backends.runners.onnx.linear_nodes import LinearNodes
from paged_backends.runners.onnx.recorded_ops import (
    RecordedActivation,
    RecordedHeads,
    RecordedNorm,
    recorded,
)


class Crossing:
    """Names of the values that cross from one graph to the next."""

    QUERY, KEY, VALUE, ATTENDED = "query", "key", "value", "attended"
    OUTPUT, LOGITS = "output", "logits"

    @staticmethod
    def hidden(index: int) -> str:
        """The input of layer ``index``: two buffers take turns."""
        return f"hidden{index % 2}"

    @staticmethod
    def tables(rope: int) -> tuple[str, str]:
        """Cosines and sines [T, head_dim / 2] of a kind of rotary embedding."""
        return f"cos{rope}", f"sin{rope}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Makes the graphs of a decoder whose operations are those of :class:`RecordedOps`."""

    config: DecoderConfig
    ropes: Sequence[Rope]
    """The kinds of rotary embedding, in the order of their tables."""
    compute: torch.dtype
    """Of hidden states."""
    attend: torch.dtype
    """Of queries, keys, values and the result of attention."""
    linear_nodes: LinearNodes

    def segment(self, index: int, before: Layer | None, after: Layer | None) -> Graph:
        """Return segment ``index``.

        Args:
            before: the layer of the attention before it; ``None`` for the first segment.
            after: the layer of the attention after it; ``None`` for the last segment.
        """
        graph, width = Graph(), self.config.hidden_size
        hidden = graph.input(Crossing.hidden(max(index - 1, 0)), self.compute, width)
        if before is not None:
            heads = self.config.num_heads * self.config.head_dim
            attended = graph.input(Crossing.ATTENDED, self.attend, heads)
            hidden = self._finish(graph, before, hidden, self._cast(graph, attended, self.compute))
            name = Crossing.OUTPUT if after is None else Crossing.hidden(index)
            graph.output(name, hidden, self.compute, width)
        if after is not None:
            self._begin(graph, after, self.config.layers[index].rope, hidden)
        return graph

    def head(self, head: Head) -> Graph:
        """Return the graph from hidden states [R, hidden] to logits [R, V] float32."""
        graph = Graph()
        rows = graph.input(Crossing.OUTPUT, self.compute, self.config.hidden_size)
        if head.norm is not None:
            rows = self._norm(graph, recorded(head.norm, RecordedNorm), rows)
        if head.project is not None:
            rows = self._linear(graph, head.project, rows)
        logits = self._cast(graph, self._linear(graph, head.output, rows), torch.float32)
        graph.output(Crossing.LOGITS, logits, torch.float32, self.config.vocab_size)
        return graph

    # ------------------------------------------------------------------ around attention

    def _begin(self, graph: Graph, layer: Layer, rope: Rope | None, hidden: str) -> None:
        """Output query, key and value, as :meth:`Layer.begin` returns them."""
        config = self.config
        if config.norm_first:
            hidden = self._norm(graph, recorded(layer.attention_norm, RecordedNorm), hidden)
        fused = self._linear(graph, layer.attention.query_key_value, hidden)
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = graph.ops("Split", 3, fused, graph.sizes(query, key, key), axis=-1)
        heads = recorded(layer.attention.heads, RecordedHeads)
        tables = self._tables(graph, rope)
        parts[0] = self._heads(graph, heads.query_norm, tables, parts[0], query)
        parts[1] = self._heads(graph, heads.key_norm, tables, parts[1], key)
        names = (Crossing.QUERY, Crossing.KEY, Crossing.VALUE)
        for name, part, width in zip(names, parts, (query, key, key), strict=True):
            graph.output(name, self._cast(graph, part, self.attend), self.attend, width)

    def _tables(self, graph: Graph, rope: Rope | None) -> Sequence[str]:
        if rope is None:
            return ()
        names, width = Crossing.tables(self.ropes.index(rope)), self.config.head_dim // 2
        return [graph.input(name, self.compute, width) for name in names]

    def _heads(
        self,
        graph: Graph,
        norm: RecordedNorm | None,
        tables: Sequence[str],
        rows: str,
        width: int,
    ) -> str:
        """Return heads [T, width] with their norm and rotary embedding."""
        if norm is not None:
            by_head = graph.op("Reshape", rows, graph.sizes(-1, self.config.head_dim))
            rows = graph.op("Reshape", self._norm(graph, norm, by_head), graph.sizes(-1, width))
        if tables:
            # one sequence whose positions count from 0: the tables have a row for each token
            flat = graph.op("Reshape", rows, graph.sizes(1, -1, width))
            rotated = graph.op("RotaryEmbedding", flat, graph.sizes(0), *tables, domain=CONTRIB)
            rows = graph.op("Reshape", rotated, graph.sizes(-1, width))
        return rows

    def _finish(self, graph: Graph, layer: Layer, hidden: str, attended: str) -> str:
        """Return the input of the next layer, as :meth:`Layer.finish` does."""
        attended = self._linear(graph, layer.attention.output, attended)
        if not layer.norm_first:
            hidden = graph.op("Add", hidden, attended)
            hidden = self._norm(graph, recorded(layer.attention_norm, RecordedNorm), hidden)
            hidden = graph.op("Add", hidden, self._feed_forward(graph, layer, hidden))
            return self._norm(graph, recorded(layer.mlp_norm, RecordedNorm), hidden)
        if layer.attention_output_norm is not None:
            norm = recorded(layer.attention_output_norm, RecordedNorm)
            attended = self._norm(graph, norm, attended)
        hidden = graph.op("Add", hidden, attended)
        normed = self._norm(graph, recorded(layer.mlp_norm, RecordedNorm), hidden)
        rows = self._feed_forward(graph, layer, normed)
        if layer.mlp_output_norm is not None:
            rows = self._norm(graph, recorded(layer.mlp_output_norm, RecordedNorm), rows)
        return graph.op("Add", hidden, rows)

    def _feed_forward(self, graph: Graph, layer: Layer, rows: str) -> str:
        up = self._linear(graph, layer.mlp.up, rows)
        activation = recorded(layer.mlp.activation, RecordedActivation)
        if activation.gated:
            half = self.config.intermediate_size
            gate, up = graph.ops("Split", 2, up, graph.sizes(half, half), axis=-1)
            up = graph.op("Mul", self._activate(graph, activation.name, gate), up)
        else:
            up = self._activate(graph, activation.name, up)
        return self._linear(graph, layer.mlp.down, up)

    # ------------------------------------------------------------------ operations

    def _linear(self, graph: Graph, linear: object, rows: str) -> str:
        return self.linear_nodes(graph, stored(linear), rows)

    def _norm(self, graph: Graph, norm: RecordedNorm, rows: str) -> str:
        kind = "SimplifiedLayerNormalization" if norm.kind == "rms" else "LayerNormalization"
        weights = [norm.weight_E, *([] if norm.bias_E is None else [norm.bias_E])]
        names = [graph.weight(weight.to(self.compute)) for weight in weights]
        return graph.op(kind, rows, *names, epsilon=norm.eps, axis=-1)

    def _activate(self, graph: Graph, name: Activation, rows: str) -> str:
        if self.compute == torch.bfloat16:  # of which some versions lack activations
            wide = self._activation(graph, name, self._cast(graph, rows, torch.float32))
            return self._cast(graph, wide, self.compute)
        return self._activation(graph, name, rows)

    def _activation(self, graph: Graph, name: Activation, rows: str) -> str:
        if name == "relu":
            return graph.op("Relu", rows)
        if name == "silu":  # x * sigmoid(alpha * x)
            return graph.op("QuickGelu", rows, domain=CONTRIB, alpha=1.0)
        return graph.op("Gelu", rows, approximate="tanh" if name == "gelu_tanh" else "none")

    def _cast(self, graph: Graph, value: str, dtype: torch.dtype) -> str:
        return graph.op("Cast", value, to=ELEMENT_TYPES[dtype])
