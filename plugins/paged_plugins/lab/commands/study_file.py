"""Commands whose settings are in the file of a study."""

from __future__ import annotations

from paged_core.cli.options import Given, flag
from paged_core.errors import SettingsError


def refuse_settings(given: Given) -> None:
    """Refuse options that are settings: those of a study are in its file.

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
        raise SettingsError(f"{named[0]} has no effect here; write it under `base` in the file")
