"""How large the values of a graph become, found without computing any but small ones.

ONNX Runtime computes what follows from the file alone when a session is made, however large it is;
so sizes are looked at before. Every node is looked at once, behind those that it reads from; shapes
and small integers of that node alone are inferred, as what a whole graph infers is not bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.defs import get_schema
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from paged_backends.runners.onnx.file.model_graph import (
    MAX_SIDES,
    SMALL,
    Shape,
    refusal,
    small_array,
)

_LEAST_BYTES = 1 << 30
"""That values may take in any case: masks and tables of positions, for long contexts."""
_FACTOR = 32
"""By which they may be larger than the file and its weights; of 4 bits, float32 makes 8 times."""
_LISTED = 200
"""Bytes of a number in a list: inference over a whole graph keeps each as an axis of a shape."""

_COMPUTED = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape"),
        *("Div", "Equal", "Exp", "Expand", "Flatten", "Floor", "Gather", "Greater"),
        *("GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul"),
        *("Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin"),
        *("ReduceProd", "ReduceSum", "Reshape", "Round", "Shape", "Sign", "Size", "Slice"),
        *("Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where"),
    }
)
"""Operators by which sizes are computed; their results are known where they are small."""
_SIZED = {
    **{"ConstantOfShape": (0,), "Expand": (1,), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2)},
    **{"Resize": (2, 3), "Tile": (1,), "Upsample": (1,), "CenterCropPad": (1,)},
    **{"AffineGrid": (1,), "Col2Im": (1,), "DFT": (1,), "MaxUnpool": (2,), "STFT": (1, 3)},
    **{"BlackmanWindow": (0,), "HammingWindow": (0,), "HannWindow": (0,)},
    **{"MelWeightMatrix": (0, 1)},
}
"""Inputs that say how large the result is."""
_UNBOUNDED = frozenset({"ConcatFromSequence", "StringConcat"})
"""Can double values whose size no type says."""


def check_sizes(
    model: ModelProto,
    num_bytes: int,
    given: Mapping[str, Shape] | None = None,
    *,
    lists_only: bool = False,
) -> None:
    """Check that values of a graph take no more memory than a file of its size may make them.

    Args:
        num_bytes: of the file and the weights beside it.
        given: sizes that inputs have; those that are not known count as 1.
        lists_only: count no values of more than one axis; the others are not computed.

    Raises:
        UnsupportedModel: they take more, or it cannot be told.
    """
    most = num_bytes * _FACTOR + _LEAST_BYTES
    _Sizes(model, most, given or {}, lists_only=lists_only).check()


class _Sizes:
    def __init__(
        self, model: ModelProto, most: int, given: Mapping[str, Shape], *, lists_only: bool
    ) -> None:
        self._lists_only = lists_only
        self._model, self._most, self._left = model, most, most
        self._versions = {_domain(one.domain): one.version for one in model.opset_import}
        self._types: dict[str, TypeProto] = {}
        self._small: dict[str, np.ndarray[Any, Any]] = {}
        """Numbers that are known."""
        self._open: set[str] = set()
        """Values that follow from other numbers than those of the file and sizes."""
        for weight in model.graph.initializer:
            self._store(weight.name, weight)
        for value in model.graph.input:
            if value.name not in self._types:
                self._types[value.name] = _with_sizes(value.type, given.get(value.name, ()))
                self._open.add(value.name)

    def check(self) -> None:
        for node in self._model.graph.node:
            if node.op_type in _UNBOUNDED:
                raise refusal(node, "makes values whose size cannot be told")
            if node.op_type == "Constant":
                self._store(node.output[0], helper.get_attribute_value(node.attribute[0]))
                continue
            self._check_sources(node)
            types = self._inferred(node)
            self._types |= types
            for kind in types.values():
                self._take(node, _sizes(kind), _itemsize(kind))
            self._compute(node)

    def _store(self, name: str, value: Any) -> None:
        """Note a constant of the file."""
        array = small_array(value)
        if array is not None and array.dtype.kind in "biuf":
            self._small[name] = array
        if isinstance(value, TensorProto):
            self._types[name] = helper.make_tensor_type_proto(value.data_type, list(value.dims))
        elif array is not None and name in self._small:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            self._types[name] = helper.make_tensor_type_proto(kind, array.shape)

    def _check_sources(self, node: NodeProto) -> None:
        """Check that what the file alone says of a result's size is known, and how much it is."""
        for place in _SIZED.get(node.op_type, ()):
            name = node.input[place] if place < len(node.input) else ""
            numbers = self._small.get(name)
            if numbers is not None and numbers.dtype.kind in "iu":
                least = prod(max(1, abs(int(number))) for number in numbers.flat)
                self._take(node, [1, least], 1)
            elif name and numbers is None and name not in self._open:
                raise refusal(node, "has a size that cannot be told before it is computed")

    def _take(self, node: NodeProto, sizes: Sequence[int], itemsize: int) -> None:
        if len(sizes) > MAX_SIDES:
            raise refusal(
                node, f"makes a value with {len(sizes)} axes, and {MAX_SIDES} are possible"
            )
        if len(sizes) <= 1:
            itemsize = _LISTED
        elif self._lists_only:
            return
        self._left -= prod(sizes) * itemsize
        if self._left < 0:
            raise refusal(
                node,
                f"makes more of the file than is possible: with it, values take {self._most} bytes "
                "for one token",
            )

    def _inferred(self, node: NodeProto) -> dict[str, TypeProto]:
        """Return the types of the results of a node, as far as they follow from its inputs."""
        domain = _domain(node.domain)
        try:
            return infer_node_outputs(
                get_schema(node.op_type, self._versions.get(domain, 1), domain),
                node,
                {name: self._types.get(name, _UNKNOWN) for name in node.input if name},
                {
                    name: numpy_helper.from_array(self._small[name])
                    for name in node.input
                    if name in self._small
                },
                opset_imports=self._model.opset_import,
                ir_version=self._model.ir_version,
            )
        except Exception:  # noqa: BLE001 - an operator that ONNX does not know, or used wrongly
            return {}

    def _compute(self, node: NodeProto) -> None:
        """Compute what a node returns, if that is a few known numbers; note what else it is."""
        given = [self._read(node, name) for name in node.input if name]
        kind = self._types.get(node.output[0]) if node.output else None
        if (
            node.op_type in _COMPUTED
            and all(array is not None for array in given)
            and kind is not None
            and _is_whole(kind)
            and prod(_sizes(kind)) <= SMALL
        ):
            self._small.update(self._evaluated(node))
        elif self._open.intersection(node.input):
            self._open.update(node.output)

    def _read(self, node: NodeProto, name: str) -> np.ndarray[Any, Any] | None:
        """Return the numbers that a node reads; of a shape, any numbers will do."""
        kind = self._types.get(name)
        if node.op_type in ("Shape", "Size") and kind is not None and _is_whole(kind):
            return np.broadcast_to(np.zeros((), np.int8), _sizes(kind))
        return self._small.get(name)

    def _evaluated(self, node: NodeProto) -> dict[str, np.ndarray[Any, Any]]:
        names = [name for name in node.input if name]
        call = helper.make_function(
            "sizes", "node", names, list(node.output), [node], self._model.opset_import
        )
        try:
            with np.errstate(all="ignore"):
                arrays = ReferenceEvaluator(call).run(
                    None, {name: self._read(node, name) for name in names}, attributes={}
                )
        except Exception:  # noqa: BLE001 - an operator that is used wrongly
            return {}
        return {
            name: array
            for name, array in zip(node.output, map(np.asarray, arrays), strict=True)
            if name and array.size <= SMALL and array.dtype.kind in "biuf"
        }


_UNKNOWN = TypeProto(tensor_type=TypeProto.Tensor(elem_type=TensorProto.FLOAT))
"""Of what operators return that ONNX does not have."""


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _with_sizes(kind: TypeProto, given: Shape) -> TypeProto:
    """Return the type of an input with the sizes that it is given; 1 where they are not known."""
    known = TypeProto()
    known.CopyFrom(kind)
    for index, axis in enumerate(known.tensor_type.shape.dim):
        size = given[index] if index < len(given) else None
        axis.dim_value = size if size is not None else max(1, axis.dim_value)
    return known


def _is_whole(kind: TypeProto) -> bool:
    """Whether all sizes are known."""
    tensor = kind.tensor_type
    return tensor.HasField("shape") and all(axis.HasField("dim_value") for axis in tensor.shape.dim)


def _sizes(kind: TypeProto) -> list[int]:
    """Return sizes; 1 where they are not known."""
    return [
        axis.dim_value if axis.HasField("dim_value") else 1 for axis in kind.tensor_type.shape.dim
    ]


def _itemsize(kind: TypeProto) -> int:
    try:
        return helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type).itemsize
    except (KeyError, TypeError):
        return 4
