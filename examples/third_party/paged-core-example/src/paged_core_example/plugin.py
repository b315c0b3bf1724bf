"""The hooks: what this package adds, and where it is found once settings name it."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.plugins.component import Component
from paged_core.plugins.hooks import hookimpl

from paged_core_example.dearest import DearestSettings
from paged_core_example.utilisation_csv import UtilisationCsvSettings


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "evictor",
        DearestSettings,
        "paged_core_example.dearest:DearestEvictor",
        summary="keeps what is dear to compute again and often found",
    )
    yield Component(
        "observers",
        UtilisationCsvSettings,
        "paged_core_example.utilisation_csv:UtilisationCsv",
        summary="writes a CSV line per step: how full the cache and the batch were",
    )
