"""This engine again with other settings, beside itself: ``bench compare --variant``."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.cli.options import Given
from paged_core.config.documents import DocumentError, parse_yaml
from paged_core.errors import SettingsError
from paged_plugins.bench.peer_choice import Choice
from paged_plugins.bench.peer_python import PeerPython
from paged_plugins.bench.peers.table import OURS, PEERS

_EXAMPLE = "--variant 'torch={attention: torch}'"


def variants(texts: Sequence[str], given: Given) -> list[Choice]:
    """Return this engine with the settings of each ``NAME={KEY: VALUE, ...}`` on top of its own.

    Raises:
        SettingsError: a text is not written so, its settings are wrong, or its name is taken.
    """
    taken = {OURS.name, *PEERS}
    found = []
    for text in texts:
        name, equals, rest = text.partition("=")
        name = name.strip()
        try:
            values, _ = parse_yaml(rest)
        except DocumentError as error:
            raise SettingsError(f"--variant {text:.80}: {error}") from error
        if not (name and equals and isinstance(values, dict) and values):
            raise SettingsError(
                f"--variant {text:.80}: write NAME={{KEY: VALUE}}, as in {_EXAMPLE}"
            )
        if name in taken:
            raise SettingsError(f"--variant {text:.80}: {name!r} is another engine's name")
        taken.add(name)
        try:
            settings = given.resolve(**{str(key): value for key, value in values.items()}).settings
        except SettingsError as error:
            raise SettingsError(f"--variant {text:.80}: {error}") from error
        found.append(Choice(OURS, PeerPython(), settings, name))
    return found
