"""The graph of a finished model: nodes by what they compute, shapes, and what is added to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from paged_backends.runners.onnx.sessions import CONTRIB
from paged_core.errors import UnsupportedModel

SMALL = 64
"""Numbers of a constant that is read; weights are larger and are left where they are."""
_MAX_LIST = 1 << 20
"""Numbers of a weight of one axis; inference takes a longer one for sizes, number by number."""
MAX_SIDES = 16
"""Of a tensor or a value; operators can double that number with each node."""
CACHE_AXES = 4
"""Of keys and values: batch, heads, tokens, width."""
Shape = Sequence[int | None]
"""``None``: a size that is not known."""

_ADDED = "paged_core"
"""Begins the names of what is added."""


class ModelGraph:
    """The nodes of a model, in an order in which they can be computed; none holds a graph."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.weights = {weight.name: weight for weight in model.graph.initializer}
        self.inputs = {
            value.name: value.type.tensor_type
            for value in model.graph.input
            if value.name not in self.weights
        }
        self.outputs = [value.name for value in model.graph.output]
        self._made_by = {name: node for node in self.nodes for name in node.output if name}
        self._read_by: dict[str, list[NodeProto]] = defaultdict(list)
        for node in self.nodes:
            self._note_reader(node)
        self._num_added = 0
        self._widths: Mapping[str, int] = {}
        self._numbers: dict[str, float] = {}
        self._constants: dict[str, np.ndarray[Any, Any] | None] = {}

    # ------------------------------------------------------------------ finding

    def made_by(self, name: str) -> NodeProto | None:
        """Return the node that computes a value; ``None``: it is an input or a weight."""
        return self._made_by.get(name)

    def read_by(self, name: str) -> Sequence[NodeProto]:
        """Return the nodes that read a value."""
        return self._read_by.get(name, ())

    def is_weight(self, name: str) -> bool:
        """Whether a value is stored in the file as it is."""
        node = self._made_by.get(name)
        return name in self.weights or (node is not None and node.op_type == "Constant")

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return a small constant of the file; ``None``: it is none."""
        if name not in self._constants:
            self._constants[name] = self._constant(name)
        return self._constants[name]

    def _constant(self, name: str) -> np.ndarray[Any, Any] | None:
        node = self._made_by.get(name)
        if node is not None and node.op_type == "Constant":
            return small_array(helper.get_attribute_value(node.attribute[0]))
        weight = self.weights.get(name)
        return None if weight is None else small_array(weight)

    def number(self, name: str) -> float | None:
        """Return the number that a value is, stored or found by :meth:`find_numbers`."""
        array = self.constant(name)
        if array is not None:
            return float(array.reshape(-1)[0]) if array.size == 1 else None
        return self._numbers.get(name)

    def find_numbers(self, widths: Mapping[str, int] | None = None) -> None:
        """Compute the numbers that nodes make of constants: each node once, in their order.

        Args:
            widths: last sizes of values [1, H, T, D] that are known otherwise than from shapes.
        """
        self._widths = widths or {}
        self._numbers.clear()
        for node in self.model.graph.node:
            result = self._computed(node)
            if result is not None and isfinite(result):
                self._numbers[node.output[0]] = result

    def _computed(self, node: NodeProto) -> float | None:
        if node.op_type in ("Slice", "Gather"):
            return self._last_size(node)
        if node.op_type not in _COMPUTED:
            return None
        numbers = [self.number(name) for name in node.input]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        with np.errstate(all="ignore"):
            return float(_COMPUTED[node.op_type](*known))

    def _last_size(self, node: NodeProto) -> float | None:
        """Return the last size of a shape, if that is what a node chooses and it is known."""
        shape, place = self._made_by.get(node.input[0]), self.constant(node.input[1])
        order = None
        if shape is not None and shape.op_type == "Gather":  # of a tensor that is transposed
            order, shape = self.constant(shape.input[1]), self._made_by.get(shape.input[0])
            if order is None:
                return None
        if shape is None or shape.op_type != "Shape" or place is None or place.size != 1:
            return None
        sizes = self._shapes.get(shape.input[0])
        last = (len(sizes) if sizes else CACHE_AXES) - 1
        keeps = order is None or (order.size == last + 1 and order.reshape(-1)[-1] == last)
        if not keeps or int(place.reshape(-1)[0]) not in (-1, last):
            return None
        return sizes[-1] if sizes and sizes[-1] else self._widths.get(shape.input[0])

    @cached_property
    def types(self) -> dict[str, int]:
        """Element types of the values of the file, where they are known."""
        return inferred_types(self.model)

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        return inferred_shapes(self.model)

    def known_shapes(self, given: Mapping[str, Shape]) -> dict[str, NodeProto]:
        """Return constants for the nodes ``Shape`` whose results follow from sizes of inputs.

        Args:
            given: sizes that inputs have.

        Returns:
            Each by the name of its result.
        """
        shapes, known = inferred_shapes(self.model, given), {}
        for node in self.model.graph.node:
            if node.op_type != "Shape" or node.attribute or not node.output:
                continue
            shape = shapes.get(node.input[0])
            if shape is not None and None not in shape:
                known[node.output[0]] = constant_node(node.output[0], np.array(shape, np.int64))
        return known

    def part(
        self, nodes: Iterable[NodeProto], inputs: Sequence[ValueInfoProto], outputs: Iterable[str]
    ) -> ModelProto:
        """Return a model of some nodes and their weights; its outputs have no types."""
        nodes = list(nodes)
        read = dict.fromkeys(name for node in nodes for name in node.input)
        graph = helper.make_graph(
            nodes,
            "part",
            inputs,
            [ValueInfoProto(name=name) for name in outputs],
            [self.weights[name] for name in read if name in self.weights],
        )
        opsets = {entry.domain: entry for entry in self.model.opset_import}
        opsets.setdefault(CONTRIB, helper.make_opsetid(CONTRIB, 1))
        version = self.model.ir_version
        return helper.make_model(graph, opset_imports=opsets.values(), ir_version=version)

    # ------------------------------------------------------------------ adding

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        return self.add_many(kind, 1, *inputs, domain=domain, **attributes)[0]

    def add_many(
        self, kind: str, num_results: int, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node, and return the names of its results."""
        names = [f"{_ADDED}.{self._num_added}.{index}" for index in range(num_results)]
        self._num_added += 1
        node = helper.make_node(kind, list(inputs), names, domain=domain, **attributes)
        self.nodes.append(node)
        self._made_by.update(dict.fromkeys(names, node))
        self._note_reader(node)
        return names

    def integers(self, *numbers: int) -> str:
        """Return the name of a constant [len(numbers)] int64."""
        array = np.array(numbers, np.int64)
        return self.add("Constant", value=numpy_helper.from_array(array))

    def reshape(self, value: str, *shape: int) -> str:
        """Return ``value`` in another shape; 0: as it is there, -1: what is left."""
        return self.add("Reshape", value, self.integers(*shape))

    def replace(self, name: str, replacement: str) -> None:
        """Let all nodes that read a value read another one."""
        for node in self._read_by.pop(name, []):
            node.input[:] = [replacement if value == name else value for value in node.input]
            self._read_by[replacement].append(node)

    def _note_reader(self, node: NodeProto) -> None:
        for name in dict.fromkeys(node.input):
            if name:
                self._read_by[name].append(node)


_COMPUTED: dict[str, Any] = {
    "Identity": lambda number: number,
    "Cast": lambda number: number,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Mul": np.multiply,
    "Div": np.divide,
}


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute of a node, of any type, or ``default``."""
    given = (one for one in node.attribute if one.name == name)
    return next(map(helper.get_attribute_value, given), default)


def small_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a small constant, given as a tensor of the file or as a value of an attribute."""
    if not isinstance(value, TensorProto):
        array = np.asarray(value)
        return array if array.size <= SMALL else None
    if prod(value.dims) > SMALL or value.data_location:
        return None
    return np.asarray(numpy_helper.to_array(value))


def constant_node(name: str, value: np.ndarray[Any, Any]) -> NodeProto:
    """Return a node whose result ``name`` is a constant."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def result_of(node: NodeProto) -> str:
    """Return the name of the first result that a node has."""
    return next(str(name) for name in node.output if name)


def described(node: NodeProto) -> str:
    """Return how an error names a node."""
    name = node.name or next(iter(node.output), "")
    return f"node {name!r} ({node.op_type})"


def refusal(node: NodeProto, reason: str) -> UnsupportedModel:
    """Return the error that a node cannot be served."""
    return unserved(f"its {described(node)} {reason}")


def unserved(reason: str) -> UnsupportedModel:
    """Return the error that a graph cannot be served."""
    return UnsupportedModel(f"the ONNX graph cannot be served: {reason}")


# ---------------------------------------------------------------------- shapes


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
    light = without_weights(model)
    for value in light.graph.input:
        axes = value.type.tensor_type.shape.dim
        for axis, size in zip(axes, given.get(value.name, ()), strict=False):
            if size is not None:
                axis.dim_value = size
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    return [*inferred.input, *inferred.value_info, *inferred.output]


def without_weights(model: ModelProto) -> ModelProto:
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
        if prod(weight.dims) <= SMALL and not weight.data_location
        else TensorProto(name=weight.name, data_type=weight.data_type, dims=weight.dims)
        for weight in graph.initializer
        if len(weight.dims) != 1 or weight.dims[0] <= _MAX_LIST
    )
    return light
