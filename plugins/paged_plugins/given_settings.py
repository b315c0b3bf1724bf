"""Settings that were given to a command which takes none."""

from __future__ import annotations

from paged_core.cli.options import Given, flag
from paged_core.errors import SettingsError


def refuse_settings(given: Given, reason: str) -> None:
    """Refuse the options that are settings.

    Args:
        reason: why one has no effect, and what to do instead.

    Raises:
        SettingsError: one was given.
    """
    files = {
        "--config": given.config,
        "--env-file": given.env_file,
        "--secrets-dir": given.secrets_dir,
    }
    named = [option for option, path in files.items() if path is not None]
    named += [flag(entry.path) for entry in given.options]
    if named:
        raise SettingsError(f"{named[0]} has no effect here: {reason}")
