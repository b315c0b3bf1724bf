"""Component ``onnxruntime``: graphs made of a checkpoint's weights, between attentions.

Shapes: T tokens, R rows that sample a token, V vocabulary.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paged_backends.runners.loaded_runner import check_whole
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.config import Rope
from paged_backends.runners.native.decoder import (
    DenseTable,
    Embedding,
    Head,
    Layer,
    Linear,
    Rotary,
    soft_cap,
)
from paged_backends.runners.native.linear_maker import (
    StoredLinear,
    converted_embedding,
    converted_head,
    converted_layer,
)
from paged_backends.runners.native.ops import Ops, frequencies
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.native.source import DescribedRunner, ModelSource
from paged_backends.runners.onnx.graph import Graph, GraphLinears, GraphOps, SymbolRotary
from paged_backends.runners.onnx.sessions import Session, SessionMaker, Value
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core.engine.contexts import RunnerContext

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_QUERY_KEY_VALUE, _ATTENDED = ("query", "key", "value"), "attended"
_HIDDEN, _NEXT, _LOGITS = "hidden", "next", "logits"
"""Names of values that cross the borders of graphs."""
_TILE = 128
"""Rows that a product with quantised weights computes at once. One alone, or left over, goes
through another kernel, which adds in another order."""


class OnnxRuntimeRunner(DescribedRunner):
    """Runs what runner ``native`` runs, with ONNX Runtime; nothing is exported, and no file made.

    On a CPU it computes in float32, because ONNX Runtime has next to no arithmetic in 16 bits
    there: a dtype of 16 bits is that of queries, keys, values and the cache.
    """

    def __init__(self, options: OnnxRuntimeSettings, context: RunnerContext) -> None:
        check_whole("onnxruntime", context)
        super().__init__(context)
        self._options = options
        self._compute: torch.dtype
        self._embedding: Embedding
        self._frequencies: dict[Rope, Tensor]
        self._maker: SessionMaker
        self._segments: Sequence[Session]
        self._head: Session

    def load(self) -> None:
        """Read the configuration, then the weights; see the interface for what it raises."""
        source = ModelSource.open(self._settings, self._options.weights, rank=self._context.rank)
        config, weight_format = source.config, self._options.weight_format
        if weight_format is not None:
            source.check_not_quantized(self._options.quantization)
        self._compute = torch.float32 if source.device.type == "cpu" else source.dtype
        width = self._compute.itemsize
        self._describe(source, weight_format.bytes_per_weight(width) if weight_format else width)
        self._frequencies = {
            layer.rope: frequencies(layer.rope, config.head_dim).to(source.device)
            for layer in config.layers
            if layer.rope is not None
        }
        self._maker = SessionMaker(source.device, torch.get_num_threads())
        self._build(source)
        self._log_loaded(source.checkpoint)

    def _build(self, source: ModelSource) -> None:
        """Make the sessions, one after the other: weights of two layers are in memory at a time.

        Weights that the checkpoint has quantised are dequantised.
        """
        maker, on_cpu = self._maker, source.device.type == "cpu"
        stored_here = replace(source, dtype=self._compute, device=torch.device("cpu"))
        assembly = Assembly(stored_here, GraphOps(self._compute), StoredLinear)
        assembly.check_layers()
        embedding = assembly.embedding()
        head = assembly.head(embedding)
        layers, quantized = assembly.layers(), None
        weight_format = self._options.weight_format
        if weight_format is not None:
            layers, quantized = QuantizedLinears.of(source, assembly, head, weight_format)
        linears = GraphLinears(compute=self._compute, quantized=quantized, in_halves=on_cpu)
        self._head = self._head_graph(converted_head(head, linears)).session(maker)
        linears.release()
        sessions = []
        before: Layer | None = None
        for layer in chain(layers, [None]):
            after = None if layer is None else converted_layer(layer, linears)
            sessions.append(self._segment(before, after).session(maker))
            linears.release()
            before = after
        assembly.check_all_taken()
        self._segments = sessions
        self._embedding = self._placed(embedding, source.device)

    def _placed(self, embedding: Embedding, device: torch.device) -> Embedding:
        """Return the embedding as PyTorch computes it; on a CPU its table stays as stored."""

        def linear(stored: StoredLinear) -> Linear:
            return Ops().linear(stored.weight.to(device, self._compute))

        table, positions = embedding.table, embedding.positions_PE
        assert isinstance(table, DenseTable)  # blocks of a GGUF file were dequantised
        return replace(
            converted_embedding(embedding, linear),
            table=table if device.type == "cpu" else table.to(device, self._compute),
            positions_PE=None if positions is None else positions.to(device),
        )

    # ------------------------------------------------------------------ graphs

    def _segment(self, before: Layer | None, after: Layer | None) -> Graph:
        """Return the graph from one attention to the next.

        The first begins with the embedding, the last ends with the hidden states.

        Args:
            before: the layer of the attention before it; ``None`` for the first segment.
            after: the layer of the attention after it; ``None`` for the last segment.
        """
        graph, config, attend = Graph(), self._config, getattr(torch, self._layers[0].dtype)
        hidden: Any = graph.input(_HIDDEN, self._compute, config.hidden_size)
        if before is not None:
            attended = graph.input(_ATTENDED, attend, config.num_heads, config.head_dim)
            result: Any = attended.to(self._compute)
            hidden = before.finish(result, hidden)
            graph.output(_NEXT, hidden, self._compute, config.hidden_size)
        if after is not None:
            parts: Any = after.begin(hidden, self._rotary(graph, after.attention.config.rope))
            counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            for name, part, heads in zip(_QUERY_KEY_VALUE, parts, counts, strict=True):
                graph.output(name, part, attend, heads, config.head_dim)
        return graph

    def _rotary(self, graph: Graph, rope: Rope | None) -> Any:
        """Return the rotary embedding of a kind, by tables that every step writes."""
        if rope is None:
            return None
        width = self._config.head_dim
        names = _table_names(list(self._frequencies).index(rope))
        cos, sin = (graph.input(name, self._compute, width // 2) for name in names)
        return SymbolRotary(cos, sin, width)

    def _head_graph(self, head: Head) -> Graph:
        """Return the graph from hidden states [R, hidden] to logits [R, V] float32."""
        graph = Graph()
        rows: Any = graph.input(_HIDDEN, self._compute, self._config.hidden_size)
        logits: Any = head(rows)
        graph.output(_LOGITS, logits, torch.float32, self._config.vocab_size)
        return graph

    # ------------------------------------------------------------------ running

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        num_tokens = len(tokens)
        if self._needs_spare_row(num_tokens):
            tokens, positions = _with_spare_row(tokens), _with_spare_row(positions)
            attend = _attend_without(attend, num_tokens)
        with self._maker.running():
            hidden = self._embedding(tokens, positions)
            tables = self._tables(positions)
            returned: dict[str, Tensor] = {}
            for index, session in enumerate(self._segments):
                given = {_HIDDEN: hidden, **tables}
                if index:
                    query, key, value = (returned[name] for name in _QUERY_KEY_VALUE)
                    given[_ATTENDED] = attend(index - 1, query, key, value).contiguous()
                returned = {
                    name: self._new(value, len(tokens)) for name, value in session.outputs.items()
                }
                session.run({name: given[name] for name in session.inputs} | returned)
                hidden = returned.get(_NEXT, hidden)
        return hidden[:num_tokens]

    def _tables(self, positions: Tensor) -> dict[str, Tensor]:
        """Return cosines and sines of the rotary embeddings, by their names in the graphs."""
        tables: dict[str, Tensor] = {}
        for index, frequencies_F in enumerate(self._frequencies.values()):
            rotary = Rotary.at(positions, frequencies_F)
            cos, sin = _table_names(index)
            tables |= {cos: rotary.cos_TF.to(self._compute), sin: rotary.sin_TF.to(self._compute)}
        return tables

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return logits [R, vocab_size] float32."""
        return self._capped(self._scores(hidden))

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the best token [R] int64 of each row, and its logit [R]."""
        scores_RV = self._scores(hidden)  # a soft cap keeps their order
        best_R = scores_RV.argmax(dim=-1)
        return best_R, self._capped(scores_RV.gather(1, best_R[:, None])[:, 0])

    def _capped(self, scores: Tensor) -> Tensor:
        """Return logits; scores are overwritten."""
        cap = self._config.logits_soft_cap
        return scores if cap is None else soft_cap(scores, cap)

    def _scores(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] float32 before the soft cap."""
        rows = _with_spare_row(hidden) if self._needs_spare_row(len(hidden)) else hidden
        scores_RV = self._new(self._head.outputs[_LOGITS], len(rows))
        with self._maker.running():
            self._head.run({_HIDDEN: rows.contiguous(), _LOGITS: scores_RV})
        return scores_RV[: len(hidden)]

    def _new(self, value: Value, num_rows: int) -> Tensor:
        shape, device = value.shape_at(num_rows), self._layers[0].device
        return torch.empty(shape, dtype=value.dtype, device=device)

    def _needs_spare_row(self, num_rows: int) -> bool:
        """Return whether the last of so many rows would be in no tile."""
        return self._settings.deterministic and num_rows % _TILE == 1


def _with_spare_row(rows: Tensor) -> Tensor:
    """Return the rows, and the last one again."""
    return torch.cat([rows, rows[-1:]])


def _attend_without(attend: Attend, num_tokens: int) -> Attend:
    """Return an ``attend`` for one token more, which ``attend`` does not see."""

    def attend_to(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _with_spare_row(
            attend(layer, query[:num_tokens], key[:num_tokens], value[:num_tokens])
        )

    return attend_to


def _table_names(rope: int) -> tuple[str, str]:
    """Return names of the cosines and sines [T, head_dim / 2] of a kind of rotary embedding."""
    return f"cos{rope}", f"sin{rope}"
