"""Masks that a graph computes, read as what they are: causal, with a window or without one.

The scores of each attention are set to zero in the graph as it is in its file, so that the argument
of its softmax is the mask alone. It is computed for a prompt, and for the last
tokens that the model takes. Sizes are known then, so that no layer is computed for it.

Shapes: H query heads, T new tokens, L all tokens.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnxruntime import OrtValue

from paged_backends.checkpoint.json_file import one_line
from paged_backends.runners.onnx.file.cut_model import CutModel
from paged_backends.runners.onnx.file.file_config import FileConfig
from paged_backends.runners.onnx.file.found_attention import GraphMask
from paged_backends.runners.onnx.file.graph_sizes import check_sizes
from paged_backends.runners.onnx.file.model_file import num_stored, read_model_file
from paged_backends.runners.onnx.file.model_graph import (
    ModelGraph,
    Shape,
    constant_node,
    result_of,
    unserved,
)
from paged_backends.runners.onnx.sessions import ORT_ERRORS
from paged_core.errors import UnsupportedModel
from paged_core.interfaces.layer import LayerSpec
from paged_core.log import get_logger

log = get_logger()

Array = np.ndarray[Any, Any]

_PROMPT = 32
_MOST_TOKENS = 65_536
_MOST_CACHED = 1024
"""If keys and values of cached tokens are computed with, unless a window is longer."""
_MOST_ALONE = 512
"""Of a prompt, for graphs that take no cached tokens, unless a window is longer."""
_HIDDEN = -9_999.0
"""Of a mask, from there on down; exporters write -10000 or less."""


def masked_layers(
    model: CutModel, config: FileConfig, layers: Sequence[LayerSpec]
) -> Sequence[LayerSpec]:
    """Return layers with the windows that the masks of the graph have.

    A mask that is given from outside of the graph is taken for a causal one.

    Raises:
        UnsupportedModel: a mask is not that of causal attention, or cannot be computed.
    """
    masks = _Masks(model, config, layers)
    length = min(config.max_model_len or _MOST_CACHED, _MOST_TOKENS)
    prompt = min(_PROMPT, length)
    seen = {prompt: masks.windows(0, prompt)}
    if seen[prompt] is None:
        log.info("masks_not_checked", path=str(model.path), reason="they are inputs of the graph")
        return layers
    if masks.need_cache:
        length = min(length, max(_MOST_CACHED, 2 * _largest_window(config)))
    try:  # one token at a time: some graphs take no more beside a cache
        for total in (length - 1, length):
            if total > prompt:
                seen[total] = masks.windows(total - 1, 1)
    except _NotComputed:  # some graphs take a prompt alone
        length = min(length, max(_MOST_ALONE, 2 * _largest_window(config)))
        seen[length] = masks.windows(0, length)
    windows = seen[max(seen)] or []
    for index, window in enumerate(windows):
        _check_window(model, index, window, seen)
    return [
        replace(layer, sliding_window=layer.sliding_window or window)
        for layer, window in zip(layers, windows, strict=True)
    ]


def _check_window(
    model: CutModel,
    index: int,
    window: int | None,
    seen: Mapping[int, Sequence[int | None] | None],
) -> None:
    """Check that the window of a layer is the same at each length that it was seen at."""
    for total, windows in seen.items():
        expected = window if window is not None and window < total else None
        if windows is None or windows[index] != expected:
            raise unserved(
                f"the mask of its {model.attentions[index].node} has a window that changes with "
                f"the length of a sequence, such as at {total} tokens; the engine's attention has "
                "a fixed one"
            )


def _largest_window(config: FileConfig) -> int:
    windows = [rules.sliding_window or 0 for rules in config.layers]
    return max([config.unplaced_window or 0, *windows])


class _NotComputed(UnsupportedModel):
    """ONNX Runtime cannot compute masks for so many tokens."""


class _Masks:
    """The masks of a model, for any numbers of cached and new tokens."""

    def __init__(self, model: CutModel, config: FileConfig, layers: Sequence[LayerSpec]) -> None:
        self._model, self._config = model, config
        whole = read_model_file(model.path)  # that of the model was cut
        self._graph, self._num_bytes = ModelGraph(whole), num_stored(model.path, whole)
        self._masks = [one.mask for one in model.attentions if one.mask is not None]
        self._caches = {
            name: (1, layer.num_kv_heads, layer.head_dim)
            for one, layer in zip(model.attentions, layers, strict=True)
            for name in one.past
        }
        self.need_cache = False
        """Whether keys and values of cached tokens are computed with."""

    def windows(self, cached: int, new: int) -> list[int | None] | None:
        """Return the window of each layer; ``None``: masks are inputs of the graph."""
        computed = self._computed(cached, new)
        if computed is None:
            return None
        windows: list[int | None] = []
        for one in self._model.attentions:
            if one.mask is None:
                windows.append(None)
                continue
            values = computed[one.mask.value]
            mask_HTL = np.broadcast_to(values, (*values.shape[:-2], new, cached + new))
            try:
                window = _window(mask_HTL.reshape(-1, new, cached + new), causal=one.mask.causal)
            except ValueError as error:
                raise unserved(
                    f"what its {one.node} is given as a mask {error}; the engine's attention is "
                    "causal, with a window or without one"
                ) from error
            windows.append(window)
        return windows

    def _computed(self, cached: int, new: int) -> Mapping[str, Array] | None:
        """Return masks [.., T, L] by their names; ``None``: they are inputs of the graph."""
        sizes = self._sizes(cached, new)
        try:
            check_sizes(self._graph.model, self._num_bytes, sizes, lists_only=True)
            part = self._part(sizes)
            check_sizes(part, self._num_bytes, sizes)
        except UnsupportedModel as error:
            raise _NotComputed(str(error)) from error
        inputs = {value.name for value in part.graph.input}
        if inputs - sizes.keys():
            return None
        self.need_cache = bool(inputs & self._caches.keys())
        copies: list[OrtValue] = []
        names = list(dict.fromkeys(mask.value for mask in self._masks))
        given = {name: self._input(name, sizes[name], cached) for name in inputs}
        try:
            session = self._model.weights.session_for_one_run(part, copies)
            values = session.run(names, given)
        except ORT_ERRORS as error:
            raise _NotComputed(
                "the ONNX graph cannot be served: the masks of its attentions cannot be computed "
                f"for {cached} cached tokens and {new} new ones: "
                f"{one_line(error, 300)}"
            ) from error
        return dict(zip(names, values, strict=True))

    def _sizes(self, cached: int, new: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs that are known."""
        sizes: dict[str, tuple[int, ...]] = {}
        for name, kind in self._graph.inputs.items():
            if name in (self._config.tokens, self._config.positions):
                sizes[name] = (1, new)[-len(kind.shape.dim) :]
            elif name in self._caches:
                batch, heads, width = self._caches[name]
                sizes[name] = (batch, heads, cached, width)
            elif "mask" in name and len(kind.shape.dim) == 2:
                sizes[name] = (1, cached + new)
        return sizes

    def _input(self, name: str, size: tuple[int, ...], cached: int) -> Array:
        dtype = helper.tensor_dtype_to_np_dtype(self._graph.inputs[name].elem_type)
        if name == self._config.positions:
            return np.arange(cached, cached + size[-1], dtype=dtype).reshape(size)
        return np.ones(size, dtype) if "mask" in name else np.zeros(size, dtype)

    # ------------------------------------------------------------------ the graph of the masks

    def _part(self, sizes: Mapping[str, Shape]) -> ModelProto:
        """Return the graph of the masks alone, with known sizes as constants."""
        graph = self._graph
        made = graph.known_shapes(sizes)
        for mask in self._masks:
            if mask.product is not None:
                made[mask.product] = constant_node(mask.product, self._zero(mask))
        names = list(dict.fromkeys(mask.value for mask in self._masks))
        needed: set[str] = set()
        open_names = list(names)
        while open_names:
            name = open_names.pop()
            node = made.get(name) or graph.made_by(name)
            if name not in needed and node is not None:
                open_names.extend(value for value in node.input if value)
            needed.add(name)
        chosen = (node for node in graph.nodes if needed.intersection(node.output))
        nodes = [made.get(result_of(node), node) for node in chosen]
        read = needed & graph.inputs.keys()
        inputs = [value for value in graph.model.graph.input if value.name in read]
        return graph.part(nodes, inputs, names)

    def _zero(self, mask: GraphMask) -> Array:
        """Return a product [1, 1, 1, 1] of queries and keys."""
        assert mask.product is not None
        kind = self._graph.types.get(mask.product, TensorProto.FLOAT)
        return np.zeros((1, 1, 1, 1), helper.tensor_dtype_to_np_dtype(kind))


# ---------------------------------------------------------------------- what a mask says


def _window(mask_HTL: Array, *, causal: bool) -> int | None:
    """Return the window of a mask of the last T of L tokens; ``None``: there is none up to L.

    Args:
        causal: later tokens are masked beside it.

    Raises:
        ValueError: it is none of causal attention; the message says what it does.
    """
    _, new, total = mask_HTL.shape
    mask_HTL = mask_HTL.astype(np.float32)
    places, own = np.arange(total), np.arange(total - new, total)[:, None]
    if causal:
        mask_HTL = np.where(places > own, -np.inf, mask_HTL)
    peak_HT1 = mask_HTL.max(axis=-1, keepdims=True)
    if not np.isfinite(peak_HT1).all():
        raise ValueError("hides all tokens from one, or holds no numbers")
    open_HTL = mask_HTL == peak_HT1  # a number that is added to all scores of a token is none
    odd = ~open_HTL & ~(mask_HTL - peak_HT1 <= _HIDDEN)
    if odd.any():
        added = float((mask_HTL - peak_HT1)[odd][0])
        raise ValueError(f"adds {added:.3g} to a score, such as a bias by distance")
    counts_HT = open_HTL.sum(axis=-1)
    window = int(counts_HT.max())
    expected_TL = (places <= own) & (places > own - window)
    if not (open_HTL == expected_TL).all():
        raise ValueError("hides other tokens than later ones and those before a window")
    return window if window < total else None
