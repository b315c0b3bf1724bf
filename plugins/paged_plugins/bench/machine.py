"""The machine that figures were measured on."""

from __future__ import annotations

import os
import platform
from typing import Any

from paged_plugins.machine import cpu_model


def machine() -> dict[str, Any]:
    """Return what a figure must be quoted with: processor, cores, Python."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
    }
