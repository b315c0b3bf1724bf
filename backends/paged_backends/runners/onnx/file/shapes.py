"""Shapes of the values of a graph, as far as they follow from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

_SMALL = 64
"""Numbers of a constant that sizes may be computed from."""

Shape = Sequence[int | None]


def inferred_shapes(
    model: ModelProto, given: Mapping[str, Shape] | None = None
) -> dict[str, Shape]:
    """Return the shape of each value whose rank is known; ``None``: a size that is not.

    Args:
        given: sizes that inputs are to have; ``None``: as the model says.
    """
    return {
        value.name: [
            axis.dim_value if axis.HasField("dim_value") else None
            for axis in value.type.tensor_type.shape.dim
        ]
        for value in _inferred(model, given or {})
        if value.type.tensor_type.HasField("shape")
    }


def inferred_types(model: ModelProto) -> dict[str, int]:
    """Return the element type of each value for which it is known."""
    return {
        value.name: value.type.tensor_type.elem_type
        for value in _inferred(model, {})
        if value.type.tensor_type.elem_type
    }


def _inferred(model: ModelProto, given: Mapping[str, Shape]) -> Sequence[ValueInfoProto]:
    light = _without_weights(model)
    for value in light.graph.input:
        axes = value.type.tensor_type.shape.dim
        for axis, size in zip(axes, given.get(value.name, ()), strict=False):
            if size is not None:
                axis.dim_value = size
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    return [*inferred.input, *inferred.value_info, *inferred.output]


def _without_weights(model: ModelProto) -> ModelProto:
    """Return a copy that holds names and shapes of weights, and no shapes but those of inputs."""
    graph = model.graph
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = "shapes"
    light.graph.node.extend(graph.node)
    light.graph.input.extend(graph.input)
    light.graph.output.extend(graph.output)
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")
    light.graph.initializer.extend(
        weight
        if prod(weight.dims) <= _SMALL and not weight.data_location
        else TensorProto(name=weight.name, data_type=weight.data_type, dims=weight.dims)
        for weight in graph.initializer
    )
    return light
