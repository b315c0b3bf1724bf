"""Components for tests of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from paged_core.interfaces.scheduler import Schedule
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.request import Request
from paged_plugins.lab.router import ReplicaLoad, Router
from paged_policies.schedulers.token_budget import TokenBudgetScheduler
from unit.faulty_settings import FaultySettings, FaultyTokenBudgetSettings


class IdleScheduler(TokenBudgetScheduler):
    """Plans nothing."""

    def schedule(self, now: float, /) -> Schedule:
        return Schedule()


class IgnoringScheduler(TokenBudgetScheduler):
    """Finds that requests of priority 1 can never run; a step that does no more takes no time."""

    def schedule(self, now: float, /) -> Schedule:
        ignored = [group for group in self._waiting.ordered() if group.request.priority == 1]
        for group in ignored:
            self._waiting.remove(group)
        plan = super().schedule(now) if len(self) else Schedule()
        plan.ignored += [(group, "priority 1") for group in ignored]
        return plan


class LookingRouter(Router):
    """Notes what it is shown, and sends everything to the first replica."""

    seen: ClassVar[list[list[tuple[int, int]]]] = []
    """Of the last one that was made: requests and tokens of each replica, for each request."""

    def __init__(self, options: ComponentSettings, parts: object, /) -> None:
        self.seen.clear()

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        self.seen.append([(each.num_requests, each.num_tokens) for each in replicas])
        return 0


IDLE = Component(
    "scheduler", FaultyTokenBudgetSettings, f"{__name__}:IdleScheduler", summary="for a test"
)
IGNORING = Component(
    "scheduler", FaultyTokenBudgetSettings, f"{__name__}:IgnoringScheduler", summary="for a test"
)
LOOKING = Component("router", FaultySettings, f"{__name__}:LookingRouter", summary="for a test")
