"""The machine that a benchmark ran on."""

from __future__ import annotations

from typing import Any

from paged_plugins.machine import summary


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return what must be reported with every result: processor, cores, Python, platform.

    Args:
        device: what computed, as torch names it; of a GPU, its name and the versions of torch and
            CUDA are reported too.
    """
    found = summary()
    if device.startswith("cuda"):
        import torch

        found["gpu"] = torch.cuda.get_device_name(device)
        found["torch"] = torch.__version__
        found["cuda"] = torch.version.cuda
    return found


def machine_line(found: dict[str, Any]) -> str:
    """Return the machine in a line, for the head of a table."""
    return f"{found.get('gpu') or found['cpu']}, {found['cores']} cores, {found['python']}"
