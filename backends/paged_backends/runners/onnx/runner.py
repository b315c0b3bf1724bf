"""Component ``onnxruntime``: serves ONNX files, or makes graphs of a checkpoint of weights.

Shapes: T tokens, R rows that sample a token, V vocabulary.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paged_backends.checkpoint.folder import holds_only_onnx, resolve_checkpoint
from paged_backends.checkpoint.onnx_files import find_onnx_file
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.assembly import Assembly, weight_names
from paged_backends.runners.native.config import DecoderConfig, Rope
from paged_backends.runners.native.decoder import DenseTable, Embedding, Head, Layer
from paged_backends.runners.native.linear_maker import (
    StoredLinear,
    converted_head,
    converted_layer,
    stored,
)
from paged_backends.runners.native.ops import Rotary, TorchOps, frequencies, rounded, soft_cap
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.native.source import DescribedRunner, ModelSource
from paged_backends.runners.onnx.file.file_runner import OnnxFileRunner
from paged_backends.runners.onnx.graph import Graph, GraphOps, packs_codes
from paged_backends.runners.onnx.linears import FloatLinears, GraphLinears, QuantizedGraphLinears
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
    """
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
        return OnnxFileRunner(options, context)
    return OnnxRuntimeRunner(options, context)


class OnnxRuntimeRunner(DescribedRunner):
    """Runs what runner ``native`` runs, with ONNX Runtime; nothing is exported, and no file made.

    On a CPU it computes in float32, because ONNX Runtime has next to no arithmetic in 16 bits
    there: a dtype of 16 bits is that of queries, keys, values and the cache.
    """

    def __init__(self, options: OnnxRuntimeSettings, context: RunnerContext) -> None:
        super().__init__(context)
        self._options = options
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
        ropes = dict.fromkeys(layer.rope for layer in config.layers if layer.rope)
        self._frequencies = {
            rope: frequencies(rope, config.head_dim).to(source.device) for rope in ropes
        }
        self._build(source, SessionMaker(source.device, torch.get_num_threads()))
        self._log_loaded(source)

    def _build(self, source: ModelSource, maker: SessionMaker) -> None:
        """Make the sessions, one after the other: weights of two layers are in memory at a time."""
        assembly = Assembly(
            source.config,
            weight_names(source.checkpoint),
            source.weights,
            ops=GraphOps(self._compute),
            dtype=source.weights.dtype,
            device=torch.device("cpu"),
            linear=StoredLinear,
        )
        assembly.check_layers()
        embedding = assembly.embedding()
        head = assembly.head(embedding)
        layers: Iterable[Layer] = assembly.layers()
        linears: GraphLinears = FloatLinears(self._compute)
        weight_format = self._options.weight_format
        if weight_format is not None:
            layers = list(layers)  # views of the checkpoint: nothing is read yet
            linears = self._quantized(source, head, layers, weight_format)
        segments = _Segments(source.config, list(self._frequencies), self._compute, source.dtype)
        head_session = segments.head(converted_head(head, linears)).session(maker)
        linears.release()
        sessions = []
        before: Layer | None = None
        converted = (converted_layer(layer, linears) for layer in layers)
        for index, after in enumerate(chain(converted, [None])):
            sessions.append(segments.segment(index, before, after).session(maker))
            linears.release()
            before = after
        assembly.check_all_taken()
        self._embedding = self._placed(embedding, source.device)
        self._model = SegmentedModel(
            maker,
            sessions,
            [_CUT] * len(self._layers),
            self._layers,
            head_session,
            self._set_inputs,
            hidden=_OUTPUT,
            device=source.device,
            deterministic=self._settings.deterministic,
        )

    def _quantized(
        self,
        source: ModelSource,
        head: Head,
        layers: Sequence[Layer],
        weight_format: WeightFormat,
    ) -> GraphLinears:
        on_cpu = source.device.type == "cpu"
        return QuantizedGraphLinears(
            QuantizedLinears.of(source, head, layers, weight_format),
            self._compute,
            in_halves=on_cpu,
            packs_codes=on_cpu and packs_codes(),
        )

    def _placed(self, embedding: Embedding, device: torch.device) -> Embedding:
        """Return the embedding as PyTorch computes it; on a CPU its table stays as stored."""
        table, positions = embedding.table, embedding.positions_PE
        assert isinstance(table, DenseTable)  # GGUF files are not read
        project = None
        if embedding.project is not None:
            weight_OI = stored(embedding.project).weight
            project = TorchOps().linear(weight_OI.to(device, self._compute))
        return replace(
            embedding,
            table=table if device.type == "cpu" else table.to(device, self._compute),
            dtype=self._compute,
            scale=rounded(self._config.embedding_scale, self._compute),
            positions_PE=None if positions is None else positions.to(device, self._compute),
            project=project,
        )

    # ------------------------------------------------------------------ running

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        return self._model.forward(tokens, positions, attend)

    def _set_inputs(self, buffers: Mapping[str, Tensor], tokens: Tensor, positions: Tensor) -> None:
        """Write the embedding, and cosines and sines of the rotary embeddings."""
        buffers[_hidden(0)].copy_(self._embedding(tokens, positions))
        for index, frequencies_F in enumerate(self._frequencies.values()):
            rotary = Rotary.at(positions, frequencies_F)
            cos, sin = _tables(index)
            buffers[cos].copy_(rotary.cos_TF)
            buffers[sin].copy_(rotary.sin_TF)

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


# ---------------------------------------------------------------------- graphs


def _hidden(index: int) -> str:
    """The input of layer ``index``: two buffers take turns."""
    return f"hidden{index % 2}"


def _tables(rope: int) -> tuple[str, str]:
    """Cosines and sines [T, head_dim / 2] of a kind of rotary embedding."""
    return f"cos{rope}", f"sin{rope}"


@dataclass(frozen=True, slots=True)
class _Segments:
    """Makes the graphs of a decoder whose layers take symbols.

    Segment 0 goes from the embedding to the first attention, segment ``i`` from attention ``i - 1``
    to attention ``i``, and the last one to the hidden states; the head is a graph of its own.
    """

    config: DecoderConfig
    ropes: Sequence[Rope]
    """The kinds of rotary embedding, in the order of their tables."""
    compute: torch.dtype
    """Of hidden states."""
    attend: torch.dtype
    """Of queries, keys, values and the result of attention."""

    def segment(self, index: int, before: Layer | None, after: Layer | None) -> Graph:
        """Return segment ``index``.

        Args:
            before: the layer of the attention before it; ``None`` for the first segment.
            after: the layer of the attention after it; ``None`` for the last segment.
        """
        graph, width = Graph(), self.config.hidden_size
        hidden: Any = graph.input(_hidden(max(index - 1, 0)), self.compute, width)
        if before is not None:
            heads = self.config.num_heads * self.config.head_dim
            attended: Any = graph.input(_CUT.attended, self.attend, heads).to(self.compute)
            hidden = before.finish(attended, hidden)
            name = _OUTPUT if after is None else _hidden(index)
            graph.output(name, hidden, self.compute, width)
        if after is not None:
            self._begin(graph, after, hidden)
        return graph

    def _begin(self, graph: Graph, layer: Layer, hidden: Any) -> None:
        """Output query, key and value, as :meth:`Layer.begin` returns them."""
        attention, size = layer.attention, self.config.head_dim
        rows: Any = layer.attention_norm(hidden) if layer.norm_first else hidden
        fused: Any = attention.query_key_value(rows)
        key = attention.num_kv_heads * size
        widths = (attention.num_heads * size, key, key)
        parts: list[Any] = graph.ops("Split", 3, fused, graph.sizes(*widths), axis=-1)
        rotary: Any = None
        if attention.config.rope is not None:
            names = _tables(self.ropes.index(attention.config.rope))
            rotary = [graph.input(name, self.compute, size // 2) for name in names]
        attention.heads(parts[0], parts[1], rotary)
        for name, part, width in zip(
            (_CUT.query, _CUT.key, _CUT.value), parts, widths, strict=True
        ):
            graph.output(name, part.to(self.attend), self.attend, width)

    def head(self, head: Head) -> Graph:
        """Return the graph from hidden states [R, hidden] to logits [R, V] float32."""
        graph = Graph()
        rows: Any = graph.input(_OUTPUT, self.compute, self.config.hidden_size)
        logits: Any = head(rows)
        graph.output(_LOGITS, logits.to(torch.float32), torch.float32, self.config.vocab_size)
        return graph
