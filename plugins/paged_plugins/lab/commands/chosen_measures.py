"""The option ``--measure`` of commands that compare."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError
from paged_plugins.lab.measures.measure import GOODPUT, MEASURES
from paged_plugins.lab.measures.service_level import ServiceLevel


def chosen_measures(names: Sequence[str] | None, slo: ServiceLevel) -> list[str]:
    """Return the measures that were named.

    Args:
        slo: what goodput is measured by.

    Raises:
        SettingsError: there is none of that name, or it cannot be measured.
    """
    for name in names or ():
        if name not in MEASURES:
            raise SettingsError(
                f"no measure is called {name!r:.80}{did_you_mean(name, MEASURES)} (--measure)"
            )
        if name == GOODPUT and not slo.has_limits:
            raise SettingsError(
                f"--measure {GOODPUT}: there is no goodput without limits on latencies, which are "
                "--slo-ttft-ms and --slo-tpot-ms, or `slo` in a file"
            )
    return list(names or ())
