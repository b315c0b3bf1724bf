"""Component ``onnxruntime``: serves ONNX files, or makes graphs of a checkpoint of weights.

Shapes: T tokens, R rows that sample a token, V vocabulary.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paged_backends.checkpoint.folder import holds_only_onnx, resolve_checkpoint
from paged_backends.checkpoint.onnx_files import find_onnx_file
from paged_backends.runners.loaded_runner import check_whole
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.config import Rope
from paged_backends.runners.native.decoder import DenseTable, Embedding, Head, Layer
from paged_backends.runners.native.linear_maker import (
    StoredLinear,
    converted_embedding,
    converted_head,
    converted_layer,
)
from paged_backends.runners.native.ops import Linear, Rotary, TorchOps, frequencies, soft_cap
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.native.source import DescribedRunner, ModelSource
from paged_backends.runners.onnx.file.file_runner import OnnxFileRunner
from paged_backends.runners.onnx.graph import Graph, GraphLinears, GraphOps, SymbolRotary
from paged_backends.runners.onnx.segmented_model import AttentionCut, SegmentedModel
from paged_backends.runners.onnx.sessions import SessionMaker
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import SettingsError
from paged_core.interfaces.runner import Runner

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_CUT = AttentionCut(query="query", key="key", value="value", attended="attended")
_OUTPUT, _LOGITS = "output", "logits"
"""Names of values that cross from one graph to the next."""


def choose_runner(options: OnnxRuntimeSettings, context: RunnerContext) -> Runner:
    """Return a runner for the weights of a checkpoint, or for an ONNX file.

    That is one that ``options`` name, or the only form in which the checkpoint has its weights.

    Raises:
        CheckpointError: there is no such model.
        SettingsError: the weights of an ONNX file shall be quantised, or generated without the
            configuration of a checkpoint.
        UnsupportedModel: there are several ranks.
    """
    check_whole("onnxruntime", context)
    settings = context.settings
    folder = resolve_checkpoint(
        settings.model,
        allow_pickle=settings.allow_pickle,
        trust_remote_code=settings.trust_remote_code,
    )
    if options.weights == "random":
        if not (folder / "config.json").exists() and find_onnx_file(folder) is not None:
            raise SettingsError(
                "runner.weights: random generates weights from the config.json of a checkpoint, "
                f"and {folder} holds a finished ONNX graph without one; set it to checkpoint"
            )
        return OnnxRuntimeRunner(options, context)
    if options.file is not None or holds_only_onnx(folder, allow_pickle=settings.allow_pickle):
        if options.quantization != "off":
            raise SettingsError(
                f"runner.quantization: an ONNX file of {folder} is served, with its weights as "
                "they are; set it to off, or give a checkpoint of safetensors"
            )
        return OnnxFileRunner(options, context, folder)
    return OnnxRuntimeRunner(options, context)


class OnnxRuntimeRunner(DescribedRunner):
    """Runs what runner ``native`` runs, with ONNX Runtime; nothing is exported, and no file made.

    On a CPU it computes in float32, because ONNX Runtime has next to no arithmetic in 16 bits
    there: a dtype of 16 bits is that of queries, keys, values and the cache.
    """

    def __init__(self, options: OnnxRuntimeSettings, context: RunnerContext) -> None:
        super().__init__(context)
        self._options = options
        self._compute: torch.dtype
        self._embedding: Embedding
        self._frequencies: dict[Rope, Tensor]
        self._model: SegmentedModel

    def load(self) -> None:
        """Read the configuration, then the weights; see the interface for what it raises."""
        source = ModelSource.open(self._settings, self._options.weights, rank=self._context.rank)
        config = source.config
        self._compute = torch.float32 if source.device.type == "cpu" else source.dtype
        width, weight_format = self._compute.itemsize, self._options.weight_format
        self._describe(source, weight_format.bytes_per_weight(width) if weight_format else width)
        self._frequencies = {
            layer.rope: frequencies(layer.rope, config.head_dim).to(source.device)
            for layer in config.layers
            if layer.rope is not None
        }
        self._build(source, SessionMaker(source.device, torch.get_num_threads()))
        self._log_loaded(source.checkpoint.model_type)

    def _build(self, source: ModelSource, maker: SessionMaker) -> None:
        """Make the sessions, one after the other: weights of two layers are in memory at a time."""
        device, on_cpu = source.device, source.device.type == "cpu"
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
        head_session = self._head(converted_head(head, linears)).session(maker)
        linears.release()
        sessions = []
        before: Layer | None = None
        for index, layer in enumerate(chain(layers, [None])):
            after = None if layer is None else converted_layer(layer, linears)
            sessions.append(self._segment(index, before, after).session(maker))
            linears.release()
            before = after
        assembly.check_all_taken()
        self._embedding = self._placed(embedding, device)
        self._model = SegmentedModel(
            maker=maker,
            sessions=sessions,
            cuts=[_CUT] * len(self._layers),
            layers=self._layers,
            head=head_session,
            inputs=self._inputs,
            hidden=_OUTPUT,
            device=device,
            deterministic=self._settings.deterministic,
        )

    def _placed(self, embedding: Embedding, device: torch.device) -> Embedding:
        """Return the embedding as PyTorch computes it; on a CPU its table stays as stored."""

        def linear(stored: StoredLinear) -> Linear:
            return TorchOps().linear(stored.weight.to(device, self._compute))

        table, positions = embedding.table, embedding.positions_PE
        assert isinstance(table, DenseTable)  # GGUF files are not read
        return replace(
            converted_embedding(embedding, linear),
            table=table if device.type == "cpu" else table.to(device, self._compute),
            positions_PE=None if positions is None else positions.to(device),
        )

    # ------------------------------------------------------------------ graphs

    def _segment(self, index: int, before: Layer | None, after: Layer | None) -> Graph:
        """Return segment ``index``: 0 goes from the embedding to the first attention, ``i`` from
        attention ``i - 1`` to attention ``i``, and the last one to the hidden states.

        Args:
            before: the layer of the attention before it; ``None`` for the first segment.
            after: the layer of the attention after it; ``None`` for the last segment.
        """
        graph, config, attend = Graph(), self._config, getattr(torch, self._layers[0].dtype)
        hidden: Any = graph.input(_hidden(max(index - 1, 0)), self._compute, config.hidden_size)
        if before is not None:
            attended = graph.input(_CUT.attended, attend, config.num_heads, config.head_dim)
            result: Any = attended.to(self._compute)
            hidden = before.finish(result, hidden)
            name = _OUTPUT if after is None else _hidden(index)
            graph.output(name, hidden, self._compute, config.hidden_size)
        if after is not None:
            parts: Any = after.begin(hidden, self._rotary(graph, after.attention.config.rope))
            for name, part in zip((_CUT.query, _CUT.key, _CUT.value), parts, strict=True):
                heads = config.num_heads if name == _CUT.query else config.num_kv_heads
                graph.output(name, part, attend, heads, config.head_dim)
        return graph

    def _rotary(self, graph: Graph, rope: Rope | None) -> Any:
        """Return the rotary embedding of a kind, by tables that every step writes."""
        if rope is None:
            return None
        width = self._config.head_dim
        names = _tables(list(self._frequencies).index(rope))
        cos, sin = (graph.input(name, self._compute, width // 2) for name in names)
        return SymbolRotary(cos, sin, width)

    def _head(self, head: Head) -> Graph:
        """Return the graph from hidden states [R, hidden] to logits [R, V] float32."""
        graph = Graph()
        rows: Any = graph.input(_OUTPUT, self._compute, self._config.hidden_size)
        logits: Any = head(rows)
        graph.output(_LOGITS, logits, torch.float32, self._config.vocab_size)
        return graph

    # ------------------------------------------------------------------ running

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        return self._model.forward(tokens, positions, attend)

    def _inputs(self, tokens: Tensor, positions: Tensor) -> Mapping[str, Tensor]:
        """Return the embedding, and cosines and sines of the rotary embeddings."""
        inputs = {_hidden(0): self._embedding(tokens, positions)}
        for index, frequencies_F in enumerate(self._frequencies.values()):
            rotary = Rotary.at(positions, frequencies_F)
            cos, sin = _tables(index)
            inputs |= {cos: rotary.cos_TF.to(self._compute), sin: rotary.sin_TF.to(self._compute)}
        return inputs

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return logits [R, vocab_size] float32."""
        logits_RV = self._model.logits(hidden)
        cap = self._config.logits_soft_cap
        return logits_RV if cap is None else soft_cap(logits_RV, cap)

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the best token [R] int64 of each row, and its logit [R] before the soft cap."""
        scores_RV = self._model.logits(hidden)  # a soft cap keeps their order
        best_R = scores_RV.argmax(dim=-1)
        return best_R, scores_RV.gather(1, best_R[:, None])[:, 0]


def _hidden(index: int) -> str:
    """The input of layer ``index``."""
    return f"hidden{index}"


def _tables(rope: int) -> tuple[str, str]:
    """Cosines and sines [T, head_dim / 2] of a kind of rotary embedding."""
    return f"cos{rope}", f"sin{rope}"
