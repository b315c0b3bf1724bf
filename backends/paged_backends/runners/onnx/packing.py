"""Whether sessions keep a copy of quantised weights of their own."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from paged_backends.runners.onnx.graph import CONTRIB, Graph
from paged_backends.runners.onnx.session import SessionMaker


@cache
def packs_codes() -> bool:
    """Whether a session copies codes of 4 bits, in another order, and reads its copy only.

    Then their memory can be given back. Builds for some processors do not; sessions that are run
    after the codes were changed show it, with one row and with several, which differ in how they
    are computed.
    """
    graph, size = Graph(), 64
    codes = torch.full((size, size // 32, 16), 0x88, dtype=torch.uint8)  # of zeros
    names = [graph.weight(codes), graph.weight(torch.ones(size, size // 32))]
    rows = graph.input("rows", torch.float32, size)
    options = {"K": size, "N": size, "bits": 4, "block_size": 32, "accuracy_level": 1}
    result = graph.op("MatMulNBits", rows, *names, domain=CONTRIB, **options)
    graph.output("result", result, torch.float32, size)
    session = SessionMaker(torch.device("cpu"), 1).open_graph(graph).ort
    codes.fill_(0)
    return not any(
        session.run(None, {"rows": np.ones((count, size), np.float32)})[0].any()
        for count in (1, 2, 64)
    )
