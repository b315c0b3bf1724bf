"""Whether sessions keep weights in an order of their own, so that the originals can be let go.

Builds for some processors do not. Sessions that are run after a weight was changed show it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from paged_backends.runners.onnx.graph import CONTRIB, Graph
from paged_backends.runners.onnx.ort_values import as_ort_value
from paged_backends.runners.onnx.providers import ON_CPU

_SIZE = 64
"""Inputs and outputs of the layer that is tried."""


@cache
def packs_weights() -> bool:
    """Whether a session on a CPU copies the weights of linear layers."""
    graph, weight = Graph(), torch.zeros(_SIZE, _SIZE)
    rows = graph.input("rows", torch.float32, _SIZE)
    result = graph.op("Gemm", rows, graph.weight(weight), transB=1)
    graph.output("result", result, torch.float32, _SIZE)
    return not _is_read_later(graph, weight, 1)


@cache
def packs_codes() -> bool:
    """Whether a session on a CPU copies quantised weights of 4 bits."""
    graph, groups = Graph(), _SIZE // 32
    codes = torch.full((_SIZE, groups, 16), 0x88, dtype=torch.uint8)  # of zeros
    names = [graph.weight(codes), graph.weight(torch.ones(_SIZE, groups))]
    rows = graph.input("rows", torch.float32, _SIZE)
    options = {"K": _SIZE, "N": _SIZE, "bits": 4, "block_size": 32, "accuracy_level": 1}
    result = graph.op("MatMulNBits", rows, *names, domain=CONTRIB, **options)
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
