"""Options of the decision log; imports little, because ``plugins`` imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from paged_core.component import ComponentSettings


class DecisionLogSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.decisions.log.DecisionLog`."""

    name: Literal["decision_log"] = "decision_log"
    path: Path = Field(
        default=Path("decisions.jsonl"), description="the file to write; it is overwritten"
    )
