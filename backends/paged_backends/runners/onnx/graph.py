"""A graph under construction: operations by name, and weights that stay in torch's memory."""

from __future__ import annotations

from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

ELEMENT_TYPES: dict[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.bool: TensorProto.BOOL,
    torch.uint8: TensorProto.UINT8,
    torch.int8: TensorProto.INT8,
}
"""What ONNX calls the dtypes that cross the borders of graphs."""

CONTRIB = "com.microsoft"
"""The domain of the operators that ONNX Runtime adds to those of ONNX."""

_OPSET, _IR_VERSION = 21, 10
"""Of ONNX 1.16, which every supported version of ONNX Runtime reads."""


class Graph:
    """A graph whose values have one row per token: ``[T, width]``."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._sizes: list[TensorProto] = []
        self._num_values = 0
        self.weights: dict[str, Tensor] = {}
        """To be handed over to the session, by their names in the graph."""
        self.packable: set[str] = set()
        """Names of weights that a session copies in another order, where its build does so."""

    def input(self, name: str, dtype: torch.dtype, width: int) -> str:
        """Declare an input [T, width], and return its name."""
        self._inputs.append(_described(name, dtype, width))
        return name

    def output(self, name: str, value: str, dtype: torch.dtype, width: int) -> None:
        """Return ``value`` [T, width] as the output ``name``."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(_described(name, dtype, width))

    def weight(self, tensor: Tensor, *, packable: bool = False) -> str:
        """Return the name of a constant that the session gets from torch's memory."""
        name = f"weight{len(self.weights)}"
        self.weights[name] = tensor.contiguous()
        if packable:
            self.packable.add(name)
        return name

    def sizes(self, *numbers: int) -> str:
        """Return the name of a constant [len(numbers)] int64 that lies in the graph itself, since
        the shapes of other values are inferred from it."""
        name = f"sizes{len(self._sizes)}"
        self._sizes.append(helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers))
        return name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operation, and return its only result."""
        return self.ops(kind, 1, *inputs, domain=domain, **attributes)[0]

    def ops(
        self, kind: str, num_results: int, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add an operation, and return the names of its results."""
        names = [f"value{self._num_values + index}" for index in range(num_results)]
        self._num_values += num_results
        self._nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def model(self) -> bytes:
        """Return the model, in which weights are no more than names and shapes."""
        weights = [_external(name, tensor) for name, tensor in self.weights.items()]
        graph = helper.make_graph(
            self._nodes, "segment", self._inputs, self._outputs, [*self._sizes, *weights]
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        return bytes(model.SerializeToString())


def _described(name: str, dtype: torch.dtype, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], ["T", width])


def _external(name: str, tensor: Tensor) -> TensorProto:
    weight = TensorProto(
        name=name,
        data_type=ELEMENT_TYPES[tensor.dtype],
        dims=tensor.shape,
        data_location=TensorProto.EXTERNAL,
    )
    weight.external_data.add(key="location", value="memory")  # no file: the session gets a tensor
    return weight
