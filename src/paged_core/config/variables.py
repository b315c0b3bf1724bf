"""The environment variables that begin with ``PAGED_CORE_``."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "PAGED_CORE_"
RESERVED = frozenset(
    {"config", "env_file", "secrets_dir", "block_plugin", "cache_dir", "log_level"}
)
"""Names after the prefix that are not settings: they are read before settings are."""


def blocked_plugins(environ: Mapping[str, str]) -> list[str]:
    """Return the plugins that ``PAGED_CORE_BLOCK_PLUGIN`` names, separated by commas."""
    names = environ.get(f"{PREFIX}BLOCK_PLUGIN", "").split(",")
    return [name.strip() for name in names if name.strip()]
