"""A connection to a Ray cluster: the user's, or one on this machine."""

from __future__ import annotations

import os
from typing import Any

from paged_core.errors import SettingsError, error_text

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with the connection."""


def unavailable_reason() -> str | None:
    """Return why there can be no connection, or ``None``."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        return f"Ray cannot be imported ({error}); pip install 'paged-core[ray]'"
    return None


def connect(
    setting: str,
    address: str,
    *,
    num_cpus: int | None = None,
    shows_logs: bool = False,
    remedy: str = "",
) -> Any:
    """Connect to a cluster; return the module ``ray``.

    Args:
        setting: what asked for it, for errors.
        num_cpus: of a cluster that is started here; ``None``: as many as there are.
        shows_logs: whether what workers write is written here, too.
        remedy: what to do if the cluster cannot be reached.

    Raises:
        SettingsError: Ray is not installed, or the cluster cannot be reached.
    """
    if (reason := unavailable_reason()) is not None:
        raise SettingsError(f"{setting}: {reason}")
    import ray

    chosen: dict[str, Any] = {"address": address}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        chosen |= {"include_dashboard": False, "num_cpus": num_cpus}
    try:
        ray.init(**chosen, logging_level="error", log_to_driver=shows_logs)
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = error_text(error).partition("\n")[0]
        place = "on this machine" if address == LOCAL else f"at {address}"
        raise SettingsError(f"{setting}: no Ray cluster {place}: {why}{remedy}") from None
    return ray
