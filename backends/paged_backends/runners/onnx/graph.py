"""Graphs of ONNX that native's own layers build, called with values of a graph for tensors.

The layers are made of :class:`GraphOps`; each operation that is called adds its nodes.

Shapes: I inputs, O outputs, E size of a norm, D head_dim.
"""

# ruff: noqa: N803 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from paged_backends.runners.native.config import Activation
from paged_backends.runners.native.ops import HeadOp, Norm, RowOp, TorchOps, added
from paged_backends.runners.onnx.sessions import (
    CONTRIB,
    ELEMENT_TYPES,
    ON_CPU,
    Session,
    SessionMaker,
    as_ort_value,
)

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
        self._packable: set[str] = set()

    def input(self, name: str, dtype: torch.dtype, width: int) -> Symbol:
        """Declare an input [T, width]."""
        self._inputs.append(_described(name, dtype, width))
        return Symbol(self, name)

    def output(self, name: str, value: Symbol, dtype: torch.dtype, width: int) -> None:
        """Return ``value`` [T, width] as the output ``name``."""
        self._nodes.append(helper.make_node("Identity", [value.name], [name]))
        self._outputs.append(_described(name, dtype, width))

    def weight(self, tensor: Tensor, *, packable: bool = False) -> Symbol:
        """Return a constant that the session gets from torch's memory.

        Args:
            packable: the session copies it in another order, where its build does so.
        """
        name = f"weight{len(self.weights)}"
        self.weights[name] = tensor.contiguous()
        if packable:
            self._packable.add(name)
        return Symbol(self, name)

    def sizes(self, *numbers: int) -> Symbol:
        """Return a constant [len(numbers)] int64 that lies in the graph itself, since the shapes of
        other values are inferred from it."""
        name = f"sizes{len(self._sizes)}"
        self._sizes.append(helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers))
        return Symbol(self, name)

    def op(self, kind: str, *inputs: Symbol, domain: str = "", **attributes: Any) -> Symbol:
        """Add an operation, and return its only result."""
        return self.ops(kind, 1, *inputs, domain=domain, **attributes)[0]

    def ops(
        self, kind: str, num_results: int, *inputs: Symbol, domain: str = "", **attributes: Any
    ) -> list[Symbol]:
        """Add an operation, and return its results."""
        names = [f"value{self._num_values + index}" for index in range(num_results)]
        self._num_values += num_results
        read = [value.name for value in inputs]
        self._nodes.append(helper.make_node(kind, read, names, domain=domain, **attributes))
        return [Symbol(self, name) for name in names]

    def model(self) -> bytes:
        """Return the model, in which weights are no more than names and shapes."""
        weights = [_external(name, tensor) for name, tensor in self.weights.items()]
        graph = helper.make_graph(
            self._nodes, "segment", self._inputs, self._outputs, [*self._sizes, *weights]
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        return bytes(model.SerializeToString())

    def session(self, maker: SessionMaker) -> Session:
        """Return a session of the graph; it keeps those weights alive that it reads in place.

        Raises:
            UnsupportedModel: ONNX Runtime lacks something that the graph needs.
        """
        options = maker.options()
        values = [as_ort_value(weight) for weight in self.weights.values()]
        options.add_external_initializers(list(self.weights), values)
        session = maker.open(self.model(), options)
        copied = set(self.weights) if maker.copies_weights else set()
        if not maker.copies_weights and packs_weights():
            copied = self._packable
        return Session(session, [self.weights[name] for name in self.weights if name not in copied])


@dataclass(slots=True)
class Symbol:
    """A value of a graph, with those methods of a tensor that layers call."""

    graph: Graph
    name: str

    def op(self, kind: str, *others: Symbol, domain: str = "", **attributes: Any) -> Symbol:
        """Add an operation that reads this value first, and return its only result."""
        return self.graph.op(kind, self, *others, domain=domain, **attributes)

    def to(self, dtype: torch.dtype) -> Symbol:
        """Return the value in another dtype."""
        return self.op("Cast", to=ELEMENT_TYPES[dtype])

    def reshape(self, *sizes: int) -> Symbol:
        """Return the value in another shape; 0: as it is there, -1: what is left."""
        return self.op("Reshape", self.graph.sizes(*sizes))

    def flatten(self, axis: int) -> Symbol:
        """Return the value itself: heads are side by side in a row."""
        return self

    def chunk(self, count: int, dim: int) -> list[Symbol]:
        """Return equal parts of each row."""
        return self.graph.ops("Split", count, self, axis=dim, num_outputs=count)

    def copy_(self, other: Symbol) -> None:
        """Become another value, for all that read this one later."""
        self.name = other.name

    def add_(self, other: Symbol) -> Symbol:
        """Return the sum."""
        return self.op("Add", other)

    def __mul__(self, other: Symbol) -> Symbol:
        return self.op("Mul", other)


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


# ---------------------------------------------------------------------- operations


class GraphOps(TorchOps):
    """Makes operations that take symbols, and add nodes to the graph of these.

    Args:
        compute: dtype of hidden states.
    """

    copies_weights = True  # by the session, so the embedding stays mapped as it is stored

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__(computes_quantized=False)
        self._compute = compute

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Norm:
        """Return RMSNorm."""
        return self._norm("SimplifiedLayerNormalization", weight_E.float() + offset, None, eps)

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> Norm:
        """Return LayerNorm; without weights, of ones."""
        weight = torch.ones(size) if weight_E is None else weight_E.float()
        return self._norm("LayerNormalization", weight, bias_E, eps)

    def _norm(self, kind: str, weight_E: Tensor, bias_E: Tensor | None, eps: float) -> Norm:
        weights = [each.to(self._compute) for each in (weight_E, bias_E) if each is not None]

        def apply(rows_TE: Any, residual_TE: Any = None) -> Any:
            given = [rows_TE.graph.weight(weight) for weight in weights]
            return added(rows_TE.op(kind, *given, epsilon=eps, axis=-1), residual_TE)

        return apply

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> HeadOp:
        """Return the norms, then the rotary embedding, whose tables are a pair of symbols."""
        norms: list[Any] = [
            None if weight is None else self.rms_norm(weight, eps, offset)
            for weight in (query_norm_D, key_norm_D)
        ]
        width = 0 if query_norm_D is None else len(query_norm_D)

        def apply(query_THD: Any, key_TKD: Any, rotary: Any) -> None:
            for heads, norm in zip((query_THD, key_TKD), norms, strict=True):
                if norm is not None:
                    heads.copy_(norm(heads.reshape(0, -1, width)).reshape(0, -1))
                if rotary is not None:
                    # one sequence whose positions count from 0: the tables have a row per token
                    first = heads.graph.sizes(0)
                    flat = heads.op("Unsqueeze", first)
                    rotated = flat.op("RotaryEmbedding", first, *rotary, domain=CONTRIB)
                    heads.copy_(rotated.op("Squeeze", first))

        return apply

    def activation(self, name: Activation) -> RowOp:
        """Return an activation without a gate."""

        def apply(rows: Any) -> Any:
            if self._compute == torch.bfloat16:  # of which some versions lack activations
                return _activated(rows.to(torch.float32), name).to(self._compute)
            return _activated(rows, name)

        return apply


def _activated(rows: Symbol, name: Activation) -> Symbol:
    if name == "relu":
        return rows.op("Relu")
    if name == "silu":  # x * sigmoid(alpha * x)
        return rows.op("QuickGelu", domain=CONTRIB, alpha=1.0)
    return rows.op("Gelu", approximate="tanh" if name == "gelu_tanh" else "none")


# ---------------------------------------------------------------------- packed weights

# Sessions keep weights in an order of their own, so that the originals can be let go; builds for
# some processors do not. Sessions that are run after a weight was changed show it.

_SIZE = 64
"""Inputs and outputs of the layer that is tried."""


@cache
def packs_weights() -> bool:
    """Whether a session on a CPU copies the weights of linear layers."""
    graph, weight = Graph(), torch.zeros(_SIZE, _SIZE)
    rows = graph.input("rows", torch.float32, _SIZE)
    result = rows.op("Gemm", graph.weight(weight), transB=1)
    graph.output("result", result, torch.float32, _SIZE)
    return not _is_read_later(graph, weight, 1)


@cache
def packs_codes() -> bool:
    """Whether a session on a CPU copies quantised weights of 4 bits."""
    graph, groups = Graph(), _SIZE // 32
    codes = torch.full((_SIZE, groups, 16), 0x88, dtype=torch.uint8)  # of zeros
    rows = graph.input("rows", torch.float32, _SIZE)
    given = [graph.weight(codes), graph.weight(torch.ones(_SIZE, groups))]
    options = {"K": _SIZE, "N": _SIZE, "bits": 4, "block_size": 32, "accuracy_level": 1}
    result = rows.op("MatMulNBits", *given, domain=CONTRIB, **options)
    graph.output("result", result, torch.float32, _SIZE)
    return not _is_read_later(graph, codes, 0)


def _is_read_later(graph: Graph, weight: Tensor, other: int) -> bool:
    """Whether results for one row or for several are no longer zeros with another weight."""
    options = onnxruntime.SessionOptions()
    values = [as_ort_value(tensor) for tensor in graph.weights.values()]
    options.add_external_initializers(list(graph.weights), values)
    session = onnxruntime.InferenceSession(graph.model(), options, providers=ON_CPU)
    weight.fill_(other)
    return any(
        session.run(None, {"rows": np.ones((count, _SIZE), np.float32)})[0].any()
        for count in (1, 2, _SIZE)
    )
