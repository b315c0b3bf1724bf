"""The option ``--measure`` of commands that compare."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError
from paged_plugins.lab.measures.measure import MEASURES


def chosen_measures(names: Sequence[str] | None) -> list[str]:
    """Return the measures that were named; SettingsError if there is none of that name."""
    for name in names or ():
        if name not in MEASURES:
            raise SettingsError(
                f"no measure is called {name!r:.80}{did_you_mean(name, MEASURES)} (--measure)"
            )
    return list(names or ())
