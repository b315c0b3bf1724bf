"""Whether sessions have a copy of the weights of linear layers."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import torch

from paged_backends.runners.onnx.graph import Graph
from paged_backends.runners.onnx.ort_values import as_ort_value
from paged_backends.runners.onnx.providers import ON_CPU


@cache
def packs_weights() -> bool:
    """Whether a session on the CPU copies the weight of a linear layer in another order.

    Then the memory that it was made from can be given back. Builds for some processors do not; it
    shows when the weight of a small one changes after the session was made.
    """
    graph, weight = Graph(), torch.zeros(64, 64)
    rows = graph.input("rows", torch.float32, 64)
    product = graph.op("Gemm", rows, graph.weight(weight), transB=1)
    graph.output("product", product, torch.float32, 64)
    options = onnxruntime.SessionOptions()
    options.add_external_initializers(list(graph.weights), [as_ort_value(weight)])
    session = onnxruntime.InferenceSession(graph.model(), options, providers=ON_CPU)
    weight.fill_(1)
    return not session.run(None, {"rows": np.ones((2, 64), np.float32)})[0].any()
