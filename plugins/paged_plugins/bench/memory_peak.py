"""Peak memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_memory() -> int:
    """Return the peak resident size in bytes since the start or the last :func:`reset_peak`."""
    if _STATUS.is_file():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    import resource

    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> None:
    """Reset the peak; where the system does not support that, it stays the peak since the start."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return
