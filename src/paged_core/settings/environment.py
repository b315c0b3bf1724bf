"""The environment variables that begin with ``PAGED_CORE_``."""

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


PREFIX = "PAGED_CORE_"
RESERVED = frozenset(
    {
        *("config", "env_file", "secrets_dir", "block_plugin", "cache_dir"),
        *("log_level", "log_format", "api_key"),
    }
)
"""Names after the prefix that are not settings: they are read before settings are."""
OTHERS = ("PAGED_CORE_VLLM_",)
"""Prefixes of variables that other programs read: here, what decides inside vLLM."""


def blocked_plugins(environ: Mapping[str, str]) -> list[str]:
    """Return the plugins that ``PAGED_CORE_BLOCK_PLUGIN`` names, separated by commas."""
    names = environ.get(f"{PREFIX}BLOCK_PLUGIN", "").split(",")
    return [name.strip() for name in names if name.strip()]
