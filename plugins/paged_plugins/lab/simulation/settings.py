"""Options of the executor ``simulated``; every listing imports it, so it imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from paged_core.component import ComponentSettings


class SimulatedSettings(ComponentSettings):
    """Runs no model: every step takes the time that ``cost_model`` predicts, on a virtual clock."""

    name: Literal["simulated"] = "simulated"
