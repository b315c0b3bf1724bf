"""Linear layers with quantised weights, as ONNX Runtime computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.native.stored_linear import StoredLinear
from paged_backends.runners.onnx.graph import Graph
from paged_backends.runners.onnx.quantized_nodes import QuantizedLinearNodes
from paged_backends.runners.onnx.session import Session
from paged_backends.runners.onnx.session_maker import SessionMaker

CPU = torch.device("cpu")


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def session(linear: StoredLinear, matrix: QuantizedMatrix, **options: Any) -> Session:
    linears = QuantizedLinears({linear: matrix})
    nodes = QuantizedLinearNodes(linears, torch.float32, **options)
    graph, (outputs, inputs) = Graph(), matrix.shape
    rows = graph.input("rows", torch.float32, inputs)
    graph.output("result", nodes(graph, linear, rows), torch.float32, outputs)
    return SessionMaker(CPU, 1).open_graph(graph)


@pytest.mark.parametrize("shape", [(96, 64), (51, 72), (40, 300)], ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("in_halves", [True, False], ids=["halves", "whole"])
def test_products_are_those_of_the_weights_that_codes_stand_for(
    shape: tuple[int, int], group_size: Any, bits: Any, in_halves: bool
) -> None:
    weight, bias = noise(*shape), noise(shape[0])
    (matrix,) = quantize([[weight]], WeightFormat(bits, group_size))
    linear = StoredLinear([weight], bias if group_size > 32 else None)
    made = session(linear, matrix, in_halves=in_halves, packs_codes=in_halves)
    for count in (1, 2, 17):
        rows = noise(count, shape[1])
        (result,) = made.ort.run(None, {"rows": rows.numpy()})
        expected = rows.double() @ matrix.dequantized().double().T
        if linear.bias_O is not None:
            expected += linear.bias_O
        torch.testing.assert_close(torch.from_numpy(result).double(), expected, rtol=0, atol=1e-4)


def test_codes_that_are_not_packed_are_kept() -> None:
    weight = noise(40, 64)
    (matrix,) = quantize([[weight]], WeightFormat(4, 32))
    linear = StoredLinear([weight], None)
    for packs in (True, False):
        kept = session(linear, matrix, in_halves=True, packs_codes=packs)._kept
        assert any(weight.dtype == torch.uint8 for weight in kept) is not packs
