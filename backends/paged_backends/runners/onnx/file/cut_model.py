"""A model in one ONNX file, cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from onnx import TensorProto

from paged_backends.runners.onnx.file.attention_nodes import take_attention_nodes
from paged_backends.runners.onnx.file.counted_positions import replace_counted_positions
from paged_backends.runners.onnx.file.file_config import FileConfig
from paged_backends.runners.onnx.file.found_attention import FoundAttention
from paged_backends.runners.onnx.file.model_file import read_model_file
from paged_backends.runners.onnx.file.model_graph import ModelGraph, refusal
from paged_backends.runners.onnx.file.softmax_attention import take_softmax_attentions
from paged_backends.runners.onnx.file.stages import CutGraph, cut
from paged_backends.runners.onnx.file.stored_weights import StoredWeights
from paged_backends.runners.onnx.file.unknown_softmax import unknown_softmax
from paged_backends.runners.onnx.sessions import ELEMENT_TYPES
from paged_core.errors import CheckpointError, PagedCoreError, UnsupportedModel

_BATCH_DEPENDENT = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
"""Quantise all tokens of a step with one scale."""
_CACHE_AXES = 4
_DTYPES = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class CutModel:
    """The stages of a model, and what lies between them."""

    path: Path
    graph: ModelGraph
    parts: CutGraph
    dtype: torch.dtype
    """Of queries, keys and values."""
    flat: bool
    """Tokens are one axis [T], without one of batches."""
    weights: StoredWeights


def cut_model(path: Path, config: FileConfig, dtype: torch.dtype | None) -> CutModel:
    """Read a file, and cut its graph at its attentions.

    Args:
        dtype: of queries, keys and values; ``None``: that of the graph's own cache.

    Raises:
        CheckpointError: the file is damaged.
        UnsupportedModel: the graph cannot be cut; the message names the node.
    """
    model = read_model_file(path)
    try:
        return _cut(path, ModelGraph(model), config, dtype)
    except PagedCoreError:
        raise
    except Exception as error:  # a graph may hold anything, and nothing has checked it yet
        raise CheckpointError(
            f"{path} holds a graph that contradicts itself ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}); download the checkpoint again"
        ) from error


def _cut(path: Path, graph: ModelGraph, config: FileConfig, dtype: torch.dtype | None) -> CutModel:
    _check_borders(graph, config)
    _check_independent(graph)
    flat = len(graph.inputs[config.tokens].shape.dim) == 1
    is_counted = config.positions not in graph.inputs
    found = _take_attentions(graph, _batched(graph, config.positions, flat=flat))
    if is_counted and any(one.mask for one in found):
        replace_counted_positions(graph, config.tokens, config.positions)
    own = _dtype_of_cache(graph, found)
    if dtype not in (None, own):
        found = [_cast(graph, one, own, dtype) for one in found]
    parts = cut(graph, found, inputs=(config.tokens, config.positions), logits=config.logits)
    return CutModel(path, graph, parts, dtype or own, flat, StoredWeights(path.parent))


def _check_borders(graph: ModelGraph, config: FileConfig) -> None:
    for name, known in ((config.tokens, graph.inputs), (config.logits, graph.outputs)):
        if name not in known:
            raise UnsupportedModel(
                f"the ONNX graph cannot be served: it has no {name!r}, and a decoder takes token "
                f"ids and returns logits; it has {', '.join(known)[:300]}"
            )


def _check_independent(graph: ModelGraph) -> None:
    """Check that no token is computed with others, before products with them are looked for."""
    for node in graph.nodes:
        if node.op_type in _BATCH_DEPENDENT:
            raise refusal(
                node,
                "quantises all tokens of a step with one scale, so that the result of one depends "
                "on the others; quantise weights only",
            )


def _batched(graph: ModelGraph, positions: str, *, flat: bool) -> str:
    """Return positions as [1, T]."""
    return graph.reshape(positions, 1, -1) if flat else positions


def _take_attentions(graph: ModelGraph, positions: str) -> Sequence[FoundAttention]:
    """Take all attentions out; each cache of the graph must be that of one of them."""
    found = take_attention_nodes(graph, positions) or take_softmax_attentions(graph)
    if not found:
        softmax = unknown_softmax(graph)
        raise UnsupportedModel(
            "the ONNX graph cannot be served: no attention was found in it, neither an operator "
            f"of that kind nor a softmax between two products{f' ({softmax})' if softmax else ''}"
        )
    used = [name for one in found for name in one.past]
    caches = [
        name
        for name, kind in graph.inputs.items()
        if len(kind.shape.dim) == _CACHE_AXES and "mask" not in name
    ]
    if len(set(used)) < len(used) or set(used) != set(caches):
        odd = next((name for name in caches if used.count(name) != 1), used[0])
        raise UnsupportedModel(
            f"the ONNX graph cannot be served: its cache {odd!r} is read by {used.count(odd)} "
            "attentions that were found, and each has one of its own"
        )
    return found


def _dtype_of_cache(graph: ModelGraph, found: Sequence[FoundAttention]) -> torch.dtype:
    kind = graph.inputs[found[0].past[0]].elem_type
    if kind not in _DTYPES:
        raise UnsupportedModel(
            f"the ONNX graph cannot be served: its cache {found[0].past[0]!r} is quantised"
        )
    return _DTYPES[kind]


def _cast(
    graph: ModelGraph, one: FoundAttention, own: torch.dtype, dtype: torch.dtype
) -> FoundAttention:
    """Let queries, keys and values leave the graph in another dtype, and the result come so."""
    rows = [
        graph.add("Cast", name, to=ELEMENT_TYPES[dtype]) for name in (one.query, one.key, one.value)
    ]
    attended = f"{one.attended}.{str(dtype).removeprefix('torch.')}"
    graph.replace(one.attended, graph.add("Cast", attended, to=ELEMENT_TYPES[own]))
    return replace(one, query=rows[0], key=rows[1], value=rows[2], attended=attended)
