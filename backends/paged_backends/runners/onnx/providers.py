"""Where ONNX Runtime computes: on the CPU, or on the CUDA device of the model.

``onnxruntime.get_available_providers()`` lists what a package was built with. Whether CUDA's
libraries are found shows when a session is made: without them it falls back to the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO

import onnxruntime
import torch

from paged_backends.runners.onnx.graph import Graph
from paged_backends.runners.onnx.packages import INSTALL_FOR_GPU

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

Providers = Sequence[tuple[str, Mapping[str, str]]]


def on_cuda(device: torch.device, stream: torch.cuda.Stream) -> Providers:
    """Return the providers of sessions that queue their work in ``stream``."""
    options = {"device_id": str(device.index or 0), "user_compute_stream": str(stream.cuda_stream)}
    return [(CUDA, options), *ON_CPU]


ON_CPU: Providers = [(CPU, {})]
"""The providers of sessions on the CPU."""


def cuda_problem() -> str | None:
    """Return why sessions do not compute on CUDA, and the command that helps, or ``None``."""
    found = f"onnxruntime {onnxruntime.__version__}"
    if CUDA not in onnxruntime.get_available_providers():
        return f"{found} was built without CUDA; {INSTALL_FOR_GPU}"
    with redirect_stdout(StringIO()):  # it prints what the session shows, too
        onnxruntime.preload_dlls()  # CUDA's libraries, where pip installs them
    graph = Graph()
    graph.output("copy", graph.input("rows", torch.float32, 1), torch.float32, 1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it would log what is returned here
    session = onnxruntime.InferenceSession(graph.model(), options, providers=[CUDA, CPU])
    if CUDA not in session.get_providers():
        return f"{found} does not find the CUDA libraries that it was built for; {INSTALL_FOR_GPU}"
    return None
