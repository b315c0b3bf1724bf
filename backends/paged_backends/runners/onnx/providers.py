"""Where ONNX Runtime computes: on the CPU, or on the CUDA device of the model."""

from __future__ import annotations

from typing import Any

import torch

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

Provider = str | tuple[str, dict[str, Any]]


def providers_for(device: torch.device, stream: torch.cuda.Stream | None) -> list[Provider]:
    """Return the providers of a session, the preferred one first.

    Args:
        stream: in which a session on a CUDA device queues its work; attention queues its own there.
    """
    if stream is None:
        return [CPU]
    options = {"device_id": str(device.index or 0), "user_compute_stream": str(stream.cuda_stream)}
    return [(CUDA, options), CPU]
