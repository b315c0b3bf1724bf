"""The directory for compiled kernels and other files that can be made again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``PAGED_CORE_CACHE_DIR``, or else the user's cache directory; it may not exist."""
    if chosen := environ.get("PAGED_CORE_CACHE_DIR"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "paged_core"
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "paged_core"
