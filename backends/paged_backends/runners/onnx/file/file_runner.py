"""Component ``onnxruntime`` for finished ONNX files: a graph that is cut at its attentions.

Shapes: T tokens, R rows that sample a token, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from onnx import NodeProto
from torch import Tensor

from paged_backends.checkpoint.onnx_files import chosen_onnx_file, find_onnx_file
from paged_backends.device import choose_device
from paged_backends.runners.loaded_runner import DTYPE_NAMES, LoadedRunner
from paged_backends.runners.onnx.file.cut_model import CutModel, Stage, cut_model
from paged_backends.runners.onnx.file.file_config import FileConfig, layer_rules, read_file_config
from paged_backends.runners.onnx.file.file_sessions import open_sessions
from paged_backends.runners.onnx.file.graph_masks import masked_layers
from paged_backends.runners.onnx.file.model_graph import ModelGraph, attribute
from paged_backends.runners.onnx.file.trial import check_file, check_rows
from paged_backends.runners.onnx.segmented_model import SegmentedModel
from paged_backends.runners.onnx.sessions import SessionMaker
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import CheckpointError
from paged_core.interfaces.layer import LayerSpec, ModelSize

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


class OnnxFileRunner(LoadedRunner):
    """Runs a model that another library exported, as it is in its file."""

    def __init__(self, options: OnnxRuntimeSettings, context: RunnerContext, folder: Path) -> None:
        super().__init__(context)
        self._file, self._folder = options.file, folder
        self._config: FileConfig
        self._size: ModelSize
        self._model: SegmentedModel

    def load(self) -> None:
        """Read the graph, cut it and make sessions; see the interface for what it raises."""
        settings, path = self._settings, self._find(self._folder)
        self._config = config = read_file_config(self._folder, path)
        dtype = None if settings.dtype == "auto" else getattr(torch, settings.dtype)
        model = cut_model(path, config, dtype)
        device = choose_device(settings.device, self._context.rank)
        self._connect(model, SessionMaker(device, torch.get_num_threads()), device)
        self._size = _model_size(model, self._layers)
        check_rows(self, self._layers)
        if any(one.mask for one in model.attentions):
            self._layers[:] = masked_layers(model, config, self._layers)
            check_file(self, model, config)
        self._apply_rules(model)
        self._log_loaded(path.name)

    def _find(self, folder: Path) -> Path:
        if self._file is not None:
            return chosen_onnx_file(folder, self._file)
        path = find_onnx_file(folder)
        if path is None:
            raise CheckpointError(f"{folder} holds no model.onnx; give a folder that does")
        return path

    def _connect(self, model: CutModel, maker: SessionMaker, device: torch.device) -> None:
        """Describe the layers as the graph does, and connect the sessions with their attention."""
        exact = self._settings.deterministic
        stages, head = open_sessions(model, self._config, maker, exact=exact)
        shapes = {name: value.shape for one in stages for name, value in one.outputs.items()}
        for one in model.attentions:
            (_, _, heads, width), (_, _, kv_heads, _) = shapes[one.query], shapes[one.key]
            assert isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(width, int)
            self._layers.append(
                LayerSpec(
                    num_heads=heads,
                    num_kv_heads=kv_heads,
                    head_dim=width,
                    scale=width**-0.5 if one.scale is None else one.scale,
                    dtype=DTYPE_NAMES[model.dtype],
                    device=str(device),
                    block_size=self._settings.block_size,
                    kv_cache_dtype=self._settings.kv_cache_dtype,
                    sliding_window=one.sliding_window,
                    soft_cap=one.soft_cap,
                )
            )
        width = head.outputs[self._config.logits].shape[-1]
        assert isinstance(width, int)
        self._vocab_size, self._max_model_len = width, self._config.max_model_len
        self._eos_token_ids = self._config.eos_token_ids
        self._model = SegmentedModel(
            maker=maker,
            sessions=stages,
            cuts=model.attentions,
            layers=self._layers,
            head=head,
            inputs=self._inputs,
            hidden=model.hidden,
            device=device,
            deterministic=exact,
        )

    def _apply_rules(self, model: CutModel) -> None:
        """Add the windows and caps of the configuration that the graph does not say."""
        self._config.stated.check(self._layers, self.vocab_size, model.path)
        self._layers[:] = layer_rules(self._layers, self._config, model.path)
        if not any(layer.sliding_window for layer in self._layers):
            # up to there a window of some layers makes no difference
            reason = "it is not known which layers have the sliding window"
            self._limit_length(self._config.unplaced_window, reason)

    def model_size(self) -> ModelSize:
        """Count the weights of all products."""
        return self._size

    # ------------------------------------------------------------------ running

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return the hidden states [T, hidden] that the head reads."""
        return self._model.forward(tokens, positions, attend)

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return logits [R, vocab_size] float32."""
        return self._model.logits(hidden)

    def _inputs(self, tokens: Tensor, positions: Tensor) -> Mapping[str, Tensor]:
        """Return the tokens and the positions, in the shapes that the graph reads."""
        return {
            name: rows.to(value.dtype).reshape(value.shape_at(len(rows))).contiguous()
            for name, rows in ((self._config.tokens, tokens), (self._config.positions, positions))
            for session in self._model.sessions
            if (value := session.inputs.get(name)) is not None
        }


def _model_size(model: CutModel, layers: Sequence[LayerSpec]) -> ModelSize:
    """Count the weights of all products of a graph."""
    return ModelSize(
        layer_weights=sum(_of_stage(model.graph, stage) for stage in model.stages),
        head_weights=_of_stage(model.graph, model.head),
        layers=tuple(layers),
    )


def _of_stage(graph: ModelGraph, stage: Stage) -> int:
    return sum(_of_node(graph, node) for node in stage.nodes)


def _of_node(graph: ModelGraph, node: NodeProto) -> int:
    if node.op_type == "MatMulNBits":
        return int(attribute(node, "K") * attribute(node, "N"))
    if node.op_type not in ("MatMul", "Gemm"):
        return 0
    return max((_num_stored(graph, name) for name in node.input[:2]), default=0)


def _num_stored(graph: ModelGraph, name: str) -> int:
    """Return the numbers of a weight that a product reads, transposed or as it is."""
    made_by = graph.made_by(name)
    if made_by is not None and made_by.op_type == "Transpose":
        name = made_by.input[0]
    weight = graph.weights.get(name)
    return 0 if weight is None else prod(weight.dims)
