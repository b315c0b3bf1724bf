"""Options of this plugin's components; imports little, because ``plugins`` imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from paged_core.component import ComponentSettings


class ChromeTraceSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.bench.chrome_trace.ChromeTrace`."""

    name: Literal["chrome_trace"] = "chrome_trace"
    path: Path = Field(
        default=Path("trace.json"), description="the file to write; it is overwritten"
    )
