"""Component ``onnxruntime`` for checkpoints of weights: the decoder as graphs between attentions.

Shapes: T tokens, R rows that draw a token, V vocabulary.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.config import Rope
from paged_backends.runners.native.decoder import Embedding, Head, Layer
from paged_backends.runners.native.described_runner import DescribedRunner
from paged_backends.runners.native.embedding_tables import DenseTable
from paged_backends.runners.native.names import weight_names
from paged_backends.runners.native.ops import TorchOps, rounded, soft_cap
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.native.rope import Rotary, frequencies
from paged_backends.runners.native.source import ModelSource
from paged_backends.runners.native.stored_linear import stored
from paged_backends.runners.onnx.linear_nodes import FloatLinearNodes, LinearNodes
from paged_backends.runners.onnx.packed_weights import packs_codes
from paged_backends.runners.onnx.quantized_nodes import QuantizedLinearNodes
from paged_backends.runners.onnx.recorded_ops import RecordedOps
from paged_backends.runners.onnx.segment_chain import AttentionCut, SegmentChain
from paged_backends.runners.onnx.segmented_model import SegmentedModel
from paged_backends.runners.onnx.segments import Crossing, Segments
from paged_backends.runners.onnx.session import Session
from paged_backends.runners.onnx.session_maker import SessionMaker
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core.interfaces.runner import RunnerParts

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


class OnnxRuntimeRunner(DescribedRunner):
    """Runs what runner ``native`` runs, with ONNX Runtime; nothing is exported, and no file made.

    On a CPU it computes in float32, because ONNX Runtime has next to no arithmetic in 16 bits
    there: a dtype of 16 bits is that of queries, keys, values and the cache.
    """

    def __init__(self, options: OnnxRuntimeSettings, parts: RunnerParts) -> None:
        super().__init__(parts)
        self._options = options
        self._embedding: Embedding
        self._frequencies: dict[Rope, Tensor]
        self._maker: SessionMaker
        self._model: SegmentedModel

    def load(self) -> None:
        """Read the configuration, then the weights; see the interface for what it raises."""
        source = ModelSource.open(self._settings, self._options.weights, rank=self._parts.rank)
        config = source.config
        on_cpu = source.device.type == "cpu"
        self._compute = torch.float32 if on_cpu else source.dtype
        width, weight_format = self._compute.itemsize, self._options.weight_format
        self._describe(source, weight_format.bytes_per_weight(width) if weight_format else width)
        self._maker = SessionMaker(source.device, torch.get_num_threads())
        ropes = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope))
        self._frequencies = {
            rope: frequencies(rope, config.head_dim).to(source.device) for rope in ropes
        }
        self._build(source, ropes)
        self._log_loaded(source)

    def _build(self, source: ModelSource, ropes: Sequence[Rope]) -> None:
        """Make the sessions, one after the other: weights of two layers are in memory at a time."""
        maker = self._maker
        assembly = Assembly(
            source.config,
            weight_names(source.checkpoint),
            source.weights,
            ops=RecordedOps(),
            dtype=source.weights.dtype,
            device=torch.device("cpu"),
        )
        assembly.check_layers()
        embedding = assembly.embedding()
        head = assembly.head(embedding)
        layers: Iterable[Layer] = assembly.layers()
        nodes: LinearNodes = FloatLinearNodes(self._compute)
        weight_format = self._options.weight_format
        if weight_format is not None:
            layers = list(layers)  # views of the checkpoint: nothing is read yet
            nodes = self._quantized_nodes(source, head, layers, weight_format)
        segments = Segments(
            config=source.config,
            ropes=ropes,
            compute=self._compute,
            attend=source.dtype,
            linear_nodes=nodes,
        )
        head_session = maker.open_graph(segments.head(head))
        nodes.release()
        sessions = []
        before: Layer | None = None
        for index, after in enumerate(chain(layers, [None])):
            sessions.append(maker.open_graph(segments.segment(index, before, after)))
            nodes.release()
            before = after
        assembly.check_all_taken()
        self._embedding = self._placed(embedding, source.device)
        self._connect(sessions, head_session, source.device)

    def _connect(self, sessions: Sequence[Session], head: Session, device: torch.device) -> None:
        """Connect the sessions with the attention between them."""
        cut = AttentionCut(
            query=Crossing.QUERY,
            key=Crossing.KEY,
            value=Crossing.VALUE,
            attended=Crossing.ATTENDED,
        )
        cuts = [cut] * len(self._layers)
        self._model = SegmentedModel(
            self._maker,
            SegmentChain(sessions, cuts, self._layers, output=Crossing.OUTPUT, device=device),
            head,
            self._set_inputs,
            deterministic=self._settings.deterministic,
        )

    def _quantized_nodes(
        self,
        source: ModelSource,
        head: Head,
        layers: Sequence[Layer],
        weight_format: WeightFormat,
    ) -> QuantizedLinearNodes:
        on_cpu = source.device.type == "cpu"
        return QuantizedLinearNodes(
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
        buffers[Crossing.hidden(0)].copy_(self._embedding(tokens, positions))
        for index, frequencies_F in enumerate(self._frequencies.values()):
            rotary = Rotary.at(positions, frequencies_F)
            cos, sin = Crossing.tables(index)
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
