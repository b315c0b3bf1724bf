"""So many requests may wait, with so many tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import AdmissionContext
from paged_core.interfaces.admission import Admission, Decision, Load, Refused
from paged_core.interfaces.observer import Observer
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request
from paged_core.requests.waiting import QueueBounds
from paged_core.sequence import SequenceGroup

_SHARE = 0.1
"""Share of the newest in the moving mean."""


class BoundedSettings(ComponentSettings):
    """Options of :class:`BoundedAdmission`."""

    name: Literal["bounded"] = "bounded"
    max_waiting_requests: PositiveInt = Field(
        default=1024, description="requests that wait, at most"
    )
    max_waiting_tokens: PositiveInt = Field(
        default=1 << 20, description="tokens of the prompts of these, at most"
    )


class BoundedAdmission(Admission, Observer):
    """Refuses what would wait behind too much, for as long as others waited lately."""

    def __init__(self, options: BoundedSettings, context: AdmissionContext, /) -> None:
        self._bounds = QueueBounds(options.max_waiting_requests, options.max_waiting_tokens)
        self._wait = 0.0

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        waiting = load.num_waiting, load.waiting_tokens
        if self._bounds.exceeded(*waiting, len(request.prompt)) is None:
            return None
        return Refused(self._bounds.reason(*waiting), self._wait)

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted" and not group.num_preemptions and group.admitted_at is not None:
            waited = max(0.0, group.admitted_at - group.arrival)
            self._wait += _SHARE * (waited - self._wait)
