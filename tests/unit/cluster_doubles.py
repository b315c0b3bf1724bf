"""Components for tests of clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from hypothesis import strategies as st

from paged_core.interfaces.scheduler import Schedule
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.request import Request
from paged_plugins.routing.router import VERSION, ReplicaLoad, Router
from paged_plugins.workloads.request import WorkloadRequest
from paged_policies.schedulers.token_budget import TokenBudgetScheduler
from unit.faulty_settings import FaultySettings, FaultyTokenBudgetSettings

STEP = 0.25
"""Seconds of every step, whatever is in it."""


@dataclass(frozen=True)
class Crowd:
    """Conversations of which much happens at the same time, and some of which are refused."""

    num: int
    pauses: tuple[float, ...]
    """Think times; multiples of a step let requests arrive when steps end."""
    lengths: tuple[int, ...] = (1, 9, 20, 150)
    """Tokens of prompts."""
    steps_apart: int = 2
    """Between the starts of conversations, in the mean."""
    name: str = "crowd"

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        random, at = Random(seed), 0.0
        for number in range(self.num):
            at += STEP * random.randrange(2 * self.steps_apart + 1)
            yield self._talk(f"{number}", at, random, random.choice((0, 0, 1, 3)))

    def _talk(self, name: str, at: float, random: Random, length: int) -> WorkloadRequest:
        num_followers = min(length, random.choice((1, 1, 2)))
        start = random.choice((0, 1000 * random.randrange(50)))
        return WorkloadRequest(
            id=name,
            at=at,
            prompt=(range(start, start + random.choice(self.lengths)),),
            output=random.randint(1, 9),
            n=random.choice((1, 1, 1, 2)),
            priority=random.choice((0, 0, 1)),
            tenant=random.choice("ab"),
            session=name.split(".", maxsplit=1)[0],
            followers=tuple(
                self._talk(f"{name}.{each}", random.choice(self.pauses), random, length - 1)
                for each in range(num_followers)
            ),
        )


SIZES, PAUSES = (
    st.integers(1, 12),
    st.sampled_from([(0.0,), (0.0, STEP), (STEP, 4 * STEP), (0.1, 3.7), (2.0,)]),
)
CROWDS = st.builds(Crowd, SIZES, PAUSES)
SERVED = st.builds(Crowd, SIZES, PAUSES, st.just((1, 9, 20)))
"""All of whose requests fit an engine."""


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
    """Views of the last router made: requests and tokens of each replica, for each request."""

    def __init__(self, options: ComponentSettings, parts: object, /) -> None:
        self.seen.clear()

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        self.seen.append([(each.num_requests, each.num_tokens) for each in replicas.values()])
        return 0


IDLE = Component(
    "scheduler", FaultyTokenBudgetSettings, f"{__name__}:IdleScheduler", summary="for a test"
)
IGNORING = Component(
    "scheduler", FaultyTokenBudgetSettings, f"{__name__}:IgnoringScheduler", summary="for a test"
)
LOOKING = Component(
    "router",
    FaultySettings,
    f"{__name__}:LookingRouter",
    summary="for a test",
    interface_version=VERSION,
)
