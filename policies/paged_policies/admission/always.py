"""Every request that can be served is."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import AdmissionContext
from paged_core.interfaces.admission import Admission, Decision, Load
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request


class AlwaysSettings(ComponentSettings):
    """Options of :class:`AlwaysAdmission`: there are none."""

    name: Literal["always"] = "always"


class AlwaysAdmission(Admission):
    """Accepts whatever comes; the queue grows without a limit."""

    def __init__(self, options: AlwaysSettings, context: AdmissionContext, /) -> None:
        pass

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        return None
