"""Routers: where requests go, and that the conformance kit finds routers that are wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_plugins.routing.router import Load, ReplicaLoad, Router, RouterContext
from paged_plugins.routing.routers import KnownPrefixes, content_keys
from paged_plugins.routing.testing import RouterConformance
from paged_plugins.routing.testing.router_conformance import Scene, make_request, unrelated_requests
from unit.faulty_routers import FAULTY, FaultyRouter
from unit.faulty_settings import FaultyLimitSettings, FaultySettings
from unit.mutants import Mutant, first_failure

REGISTRY = Registry.discover()
CAUGHT_BY = {
    "OffByOneRouter": "there are replicas 0 to",
    "FloatRouter": "which is no int",
    "FirstRouter": "a replica gets no request",
    "SparingRouter": "a replica gets no request",
    "MostLoadedRouter": "a replica gets no request",
    "BurstyRouter": "requests at once, and may have",
    "RollingRouter": "cannot be repeated",
    "SharedRouter": "cannot be repeated|changed by a second router",
    "BookingRouter": "changed the loads",
    "HoardingRouter": "bytes allocated",
    "KeepingRouter": "bytes allocated",
    "OrderlyRouter": "r[0-9]",
    "ListRouter": "no attribute 'copy'",
    "SessionlessRouter": "string index out of range",
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_kit_catches(name: str, tmp_path: Path) -> None:
    caught = first_failure(Mutant(RouterConformance, FaultySettings, FAULTY[name]), tmp_path)
    assert caught is not None, "no test noticed"
    assert caught.is_written
    assert re.search(CAUGHT_BY[name], str(caught.error)), caught.error


class LimitedRouter(FaultyRouter):
    """Wrong with a large limit."""

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.limit = options.limit

    def choose(self, request: Request, session: str, replicas: Sequence[ReplicaLoad]) -> int:
        return len(replicas) if self.limit > 1000 else self.turns(replicas)


def test_the_kit_tries_other_options(tmp_path: Path) -> None:
    mutant = Mutant(RouterConformance, FaultyLimitSettings, LimitedRouter)
    caught = first_failure(mutant, tmp_path)
    assert caught is not None
    assert "there are replicas 0 to" in str(caught.error)
    assert "'limit': 100000" in caught.error.__notes__[0]


def make(name: str, num_replicas: int, seed: int = 0, **options: Any) -> Router:
    """A router for replicas of 64 blocks of 4 tokens."""
    part = REGISTRY.get("router", name)
    context = RouterContext(num_replicas=num_replicas, block_size=4, num_blocks=64, seed=seed)
    made = part.load()(part.settings.model_validate(options), context)
    assert isinstance(made, Router)
    return made


def loads(*num_requests: int, tokens: tuple[int, ...] | None = None) -> list[Load]:
    return [
        Load(count, each) for count, each in zip(num_requests, tokens or num_requests, strict=True)
    ]


class TestLeastLoaded:
    def test_compares_requests_and_then_tokens(self) -> None:
        router, request = make("least_loaded", 3), make_request(0, [1])
        assert router.route(request, "", loads(2, 1, 3)) == 1
        assert router.route(request, "", loads(1, 1, 1, tokens=(9, 8, 7))) == 2

    def test_equal_replicas_take_turns(self) -> None:
        router, request = make("least_loaded", 3), make_request(0, [1])
        assert [router.route(request, "", loads(0, 0, 0)) for _ in range(5)] == [0, 1, 2, 0, 1]


class TestPowerOfTwo:
    def test_never_takes_the_worst(self) -> None:
        router, request = make("power_of_two", 4), make_request(0, [1])
        chosen = Counter(router.route(request, "", loads(5, 1, 9, 3)) for _ in range(600))
        assert set(chosen) == {0, 1, 3}
        assert chosen[1] > chosen[3] > chosen[0]

    def test_is_far_better_balanced_than_one_choice(self) -> None:
        """The most loaded of n bins: log log n against log n / log log n (Mitzenmacher)."""
        requests = list(islice(unrelated_requests(), 1000))
        two, one = Scene(make("power_of_two", 100), 100, 1000), make("session", 100)
        two.route_all(requests)
        hashed = Counter(one.route(*each, two.loads) for each in requests)
        assert two.most_live <= 13 < max(hashed.values())


class TestSession:
    def test_a_conversation_stays_on_its_replica(self) -> None:
        router = make("session", 8)
        chosen = {
            router.route(make_request(number, [number]), "talk", loads(*range(8)))
            for number in range(20)
        }
        assert len(chosen) == 1

    def test_one_more_replica_moves_few_conversations_and_only_to_itself(self) -> None:
        """A ninth of them; hashing modulo the number would move eight ninths."""
        before, after = make("session", 8), make("session", 9)
        moved = []
        for number in range(2000):
            request, name = make_request(number, [1]), f"session {number}"
            old, new = (
                router.route(request, name, loads(*[0] * size))
                for router, size in ((before, 8), (after, 9))
            )
            if old != new:
                moved.append(new)
        assert set(moved) == {8}
        assert len(moved) == pytest.approx(2000 / 9, rel=0.35)

    def test_places_are_the_same_in_every_process(self) -> None:
        router = make("session", 8)
        requests = [make_request(number, [1]) for number in range(8)]
        placed = [router.route(each, "", loads(*[0] * 8)) for each in requests]
        assert placed == [7, 7, 0, 0, 0, 3, 0, 3]


class TestPrefixAffinity:
    SHARED = range(100, 140)

    def test_follows_the_longest_known_prefix(self) -> None:
        router, idle = make("prefix_affinity", 3), loads(0, 0, 0)
        first = router.route(make_request(0, self.SHARED), "", idle)
        other = router.route(make_request(1, [*self.SHARED[:8], *range(30)]), "", idle)
        longer = make_request(2, [*self.SHARED, *range(200, 208)])
        busy = [Load(5 * (number == first), 5) for number in range(3)]
        assert router.route(longer, "", busy) == first
        assert other != first, "two blocks of four are less than the least share"

    def test_forgets_what_was_sent_least_recently(self) -> None:
        router, idle = make("prefix_affinity", 1, max_blocks=10), loads(0)
        known = router._known  # type: ignore[attr-defined]
        for number in range(20):
            router.route(make_request(number, range(40 * number, 40 * number + 24)), "", idle)
            assert len(known) <= 10
        assert known.longest(content_keys(make_request(0, range(760, 784)), 4))[0] == 6
        assert known.longest(content_keys(make_request(0, range(720, 744)), 4))[0] == 4
        assert known.longest(content_keys(make_request(0, range(680, 704)), 4))[0] == 0

    def test_a_replica_far_ahead_of_the_others_is_relieved(self) -> None:
        router = make("prefix_affinity", 2, most_ahead=4, most_ratio=2.0)
        request = make_request(0, self.SHARED)
        assert router.route(request, "", loads(0, 0)) == 0
        assert router.route(request, "", loads(4, 0)) == 0, "by 4 at most"
        assert router.route(request, "", loads(10, 5)) == 0, "twice as many at most"
        assert router.route(request, "", loads(11, 5)) == 1
        assert router.route(request, "", loads(1, 0)) == 1, "both know it: the less loaded"

    def test_salted_prompts_are_others(self) -> None:
        plain, salted = make_request(0, self.SHARED), make_request(1, self.SHARED, cache_salt="s")
        assert not set(content_keys(plain, 4)) & set(content_keys(salted, 4))

    def test_a_prefix_is_known_as_far_as_it_was_sent(self) -> None:
        known = KnownPrefixes(2, 100)
        known.note(0, [1, 2, 3])
        known.note(1, [1, 2])
        assert known.longest([1, 2, 3, 4]) == (3, [0])
        assert known.longest([1, 2, 9]) == (2, [0, 1])
        assert known.longest([9]) == (0, [])
        assert known.longest([]) == (0, [])
