"""What came of a replay beside its trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from paged_plugins.decisions.request_times import RequestTimes


@dataclass(slots=True)
class Outcome:
    """What a trace does not contain, filled in while the scenario is replayed."""

    refused: dict[str, str] = field(default_factory=dict)
    """Requests that were refused or ignored, with the reason."""
    unfinished: list[str] = field(default_factory=list)
    """Requests that were unfinished when ``max_steps`` was reached."""
    requests: list[RequestTimes] = field(default_factory=list)
    """Those that ran, in the order in which they ended."""
