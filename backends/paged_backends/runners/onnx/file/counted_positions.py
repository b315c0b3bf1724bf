"""Positions that a graph counts by itself, from the length of its cache or the sum of a mask.

The engine's cache is not in the graph, so positions must come from outside. The part of the graph
that handles lengths, which no weight enters, is computed for two lengths: a value that counts on
from the cached tokens is replaced by the positions of the step, and one that is the same for both
is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

from paged_backends.runners.onnx.file.model_graph import CACHE_AXES, ModelGraph, Shape
from paged_backends.runners.onnx.sessions import ON_CPU, ORT_ERRORS

_LENGTHS = ((5, 3), (11, 2))
"""Cached tokens and new ones, of two trials."""
_MAX_CONSTANT = 64

Array = np.ndarray[Any, Any]


def replace_counted_positions(graph: ModelGraph, tokens: str, positions: str) -> None:
    """Let what reads counted positions read ``positions`` [1, T] int64 instead.

    Args:
        tokens: the input [1, T] of token ids.
    """
    one, other = (_lengths_computed(graph, tokens, *lengths) for lengths in _LENGTHS)
    for name in one.keys() & other.keys():
        offset = _offset(one[name], other[name])
        if offset is not None:
            counted = positions
            if one[name].ndim == 1:
                counted = graph.reshape(counted, -1)
            if offset:
                counted = graph.add("Add", counted, graph.integers(offset))
            graph.replace(name, counted)
        elif one[name].size <= _MAX_CONSTANT and np.array_equal(one[name], other[name]):
            value = numpy_helper.from_array(one[name])
            graph.replace(name, graph.add("Constant", value=value))


def _offset(one: Array, other: Array) -> int | None:
    """Return how much later than positions both values count; ``None``: they do not count so."""
    offsets = set()
    for value, (cached, new) in zip((one, other), _LENGTHS, strict=True):
        if value.shape not in ((new,), (1, new)):
            return None
        offsets |= set((value.reshape(-1) - np.arange(cached, cached + new)).tolist())
    return offsets.pop() if len(offsets) == 1 else None


def _lengths_computed(graph: ModelGraph, tokens: str, cached: int, new: int) -> Mapping[str, Array]:
    """Return all int64 values that follow from the numbers of cached and new tokens alone."""
    given: dict[str, Shape] = {tokens: (1, new)}
    for name, kind in graph.inputs.items():
        if len(kind.shape.dim) == CACHE_AXES:
            given[name] = (1, None, cached, None)
    masks = [
        name
        for name, kind in graph.inputs.items()
        if "mask" in name and kind.elem_type == TensorProto.INT64
    ]
    given |= dict.fromkeys(masks, (1, cached + new))
    shapes, known = graph.known_shapes(given), set(masks)
    nodes: list[NodeProto] = []
    for node in graph.model.graph.node:
        shape = shapes.get(node.output[0]) if node.output else None
        if shape is None and node.op_type != "Constant" and not _reads_only(graph, node, known):
            continue
        nodes.append(shape or node)
        known |= set(node.output)
    outputs = [name for node in nodes for name in node.output if node.op_type != "Constant"]
    if not outputs:
        return {}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, None]) for name in masks]
    part = graph.part(nodes, inputs, outputs).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    ones = dict.fromkeys(masks, np.ones((1, cached + new), np.int64))
    try:
        session = onnxruntime.InferenceSession(part, options, providers=ON_CPU)
        values = session.run(outputs, ones)
    except ORT_ERRORS:  # then the positions stay where they are, and the cut names what reads them
        return {}
    return {
        name: value for name, value in zip(outputs, values, strict=True) if value.dtype == np.int64
    }


def _reads_only(graph: ModelGraph, node: NodeProto, known: set[str]) -> bool:
    return all(
        not name or name in known or graph.constant(name) is not None for name in node.input
    ) and bool(node.input)
