"""Routers: where requests go, and that the conformance kit finds routers that are wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from paged_core.errors import EngineError
from paged_core.ids import BlockKey, content_digests
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_plugins.routing.checked_router import CheckedRouter
from paged_plugins.routing.load_book import Load, LoadBook
from paged_plugins.routing.prefix_affinity import HeldBlocks
from paged_plugins.routing.router import (
    ReplicaLoad,
    Router,
    RouterContext,
    SupportsBlockEvents,
)
from paged_plugins.routing.testing import RouterConformance
from paged_plugins.routing.testing.scene import make_request, unrelated_requests
from unit.faulty_routers import FAULTY, RIGHT, FaultyRouter
from unit.faulty_settings import FaultyLimitSettings, FaultySettings
from unit.mutants import Mutant, first_failure, recorded

REGISTRY = Registry.discover()
CAUGHT_BY = {
    "OffByOneRouter": "the replicas that take requests are",
    "FloatRouter": "which is no int",
    "FirstRouter": "a replica gets no request",
    "SparingRouter": "a replica gets no request",
    "MostLoadedRouter": "a replica gets no request",
    "BurstyRouter": "requests at once, and may have|a replica gets no request",
    "RollingRouter": "cannot be repeated",
    "SharedRouter": "cannot be repeated|another process decides",
    "BookingRouter": "changed the loads",
    "BoundedRouter": "unsupported operand",
    "ClimbingRouter": "of 16, 512 and 2048 tokens|has not returned",
    "SlicingRouter": "of 16, 512 and 2048 tokens",
    "LastingRouter": "where they have 1024",
    "RereadingRouter": "go through them once",
    "HoardingRouter": "a replica gets no request|bytes allocated",
    "IdleRouter": "bytes allocated",
    "SubsetRouter": "when they have come [1-3] times before",
    "CountedRouter": "where each replica holds 64 blocks",
    "OrderlyRouter": "r[0-9]",
    "TakingRouter": "no attribute 'pop'",
    "SessionlessRouter": "string index out of range",
    "HashingRouter": "another process decides",
    "NamelessRouter": "a replica gets 400 of 400|a replica gets no request",
    "JoinedRouter": "the replicas that take requests are",
    **dict.fromkeys(("LoyalRouter", "OwingRouter"), "a replica gets no request"),
    "ReturningRouter": "a replica gets no request",
    "CountingRouter": "a replica gets [0-9]+ of 210",
    "GrievingRouter": "KeyError|^[0-9]$",
    "RemindedRouter": "40 replicas that have left left",
    **dict.fromkeys(("UnsaltedRouter", "PromptRouter"), "of the salt 'a?' is sent to"),
    "DeafRouter": "has no effect",
    "SortingRouter": "in their order",
    "UnclearedRouter": "until its cache was `cleared`",
    "LingeringRouter": "left, and is back",
    "LastHolderRouter": "of [0-3] these",
}


USUAL = ("OffByOneRouter", "FirstRouter", "RollingRouter")
"""Each is found by another case; the others are of the long run."""


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.long] * (one not in USUAL)) for one in FAULTY]
)
def test_catches(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    mutant = Mutant(RouterConformance, FaultySettings, FAULTY[name])
    caught, _ = recorded(mutant, tmp_path, record_property)
    assert re.search(CAUGHT_BY[name], str(caught.error)), caught.error


@pytest.mark.long
@pytest.mark.parametrize("made", RIGHT)
def test_passes_what_is_right(made: type[FaultyRouter], tmp_path: Path) -> None:
    """Although it does not use replicas alike, so that caches fill one after the other."""
    found = first_failure(Mutant(RouterConformance, FaultySettings, made), tmp_path)
    assert found is None, found


class LimitedRouter(FaultyRouter):
    """Wrong with a large limit."""

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.limit = options.limit

    def choose(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad]) -> int:
        return len(replicas) if self.limit > 1000 else self.turns(replicas)


@pytest.mark.long
def test_the_kit_tries_other_options(tmp_path: Path) -> None:
    mutant = Mutant(RouterConformance, FaultyLimitSettings, LimitedRouter)
    caught = first_failure(mutant, tmp_path)
    assert caught is not None
    assert "the replicas that take requests are" in str(caught.error)
    assert any("'limit': 100000" in note for note in caught.error.__notes__)


def make(name: str, num_replicas: int = 0, seed: int = 0, **options: Any) -> Any:
    """A router that replicas of 64 blocks of 4 tokens have joined."""
    part = REGISTRY.get("router", name)
    made = part.load()(
        part.settings.model_validate(options), RouterContext(block_size=4, seed=seed)
    )
    assert isinstance(made, Router)
    for number in range(num_replicas):
        made.joined(number, 64)
    return made


def loads(
    *num_requests: int, tokens: tuple[int, ...] | None = None, counts: tuple[int, ...] | None = None
) -> dict[int, Load]:
    each = zip(num_requests, tokens or num_requests, counts or num_requests, strict=True)
    return {number: Load(number, *values) for number, values in enumerate(each)}


def idle(*numbers: int) -> dict[int, Load]:
    """Replicas that have nothing to do."""
    return {number: Load(number) for number in numbers}


def book(router: Router, *numbers: int) -> LoadBook:
    """A book in which these replicas have joined and are offered."""
    made = LoadBook(router)
    for number in numbers:
        made.joined(number, 64)
        made.offer(number)
    return made


REQUEST = make_request(0, [1, 2, 3])


class TestLoadBook:
    def test_counts_requests_and_tokens_until_they_end(self) -> None:
        kept = book(make("least_loaded"), 0)
        first, second = kept.route(REQUEST, ""), kept.route(REQUEST, "")
        first.progressed(5)
        assert kept.loads[0] == Load(0, 2, 11, 2)
        first.ended()
        assert kept.loads[0] == Load(0, 1, 3, 2)
        second.progressed(1)
        second.ended()
        assert kept.loads[0] == Load(0, 0, 0, 2)

    def test_a_replica_that_is_back_has_no_load_of_its_former_life(self) -> None:
        kept = book(make("least_loaded"), 0)
        former = kept.route(REQUEST, "")
        kept.left(0)
        assert not kept.offered
        kept.joined(0, 64)
        kept.offer(0)
        now = kept.route(REQUEST, "")
        former.progressed(9)
        former.ended()
        assert kept.loads[0] == Load(0, 1, 3, 1)
        now.ended()
        assert kept.loads[0] == Load(0, 0, 0, 1)

    def test_one_that_joins_begins_with_the_fewest_of_the_others(self) -> None:
        kept = book(make("round_robin"), 0, 1)
        for _ in range(5):
            kept.route(REQUEST, "")
        kept.joined(2, 64)
        assert [each.num_routed for each in kept.loads.values()] == [3, 2, 2]

    def test_offers_replicas_in_the_order_of_their_numbers(self) -> None:
        kept = book(make("round_robin"), 4, 2, 7)
        assert list(kept.offered) == [2, 4, 7]
        kept.withhold(4)
        kept.withhold(4)
        assert list(kept.offered) == [2, 7]
        kept.offer(4)
        assert list(kept.offered) == [2, 4, 7]
        assert set(kept.loads) == {2, 4, 7}

    def test_an_answer_that_is_not_offered_changes_no_load(self) -> None:
        class Stubborn(Router):
            def route(self, *_: Any) -> int:
                return 1

        kept = book(CheckedRouter(Stubborn(), "stubborn"), 0, 1)
        kept.withhold(1)
        with pytest.raises(EngineError, match=r"router 'stubborn' answered 1 .* it is given, 0 "):
            kept.route(REQUEST, "")
        assert kept.loads == {0: Load(0), 1: Load(1)}


def requests(num: int) -> list[tuple[Request, str]]:
    """Requests that have nothing in common."""
    return list(islice(unrelated_requests(), num))


def test_a_component_built_for_interface_1_is_refused_with_the_reason() -> None:
    old = Component("router", FaultySettings, "unit.faulty_routers:FirstRouter", summary="old")
    with pytest.raises(Exception, match="built for interface 1, this is 2"):
        REGISTRY.extended(old)


class TestRoundRobin:
    def test_turns_are_fair_when_replicas_come_and_go(self) -> None:
        """Between two turns of a replica, every other that stays has exactly one."""
        kept = book(make("round_robin"), *range(5))
        random = Random(3)
        stays = {0, 2, 4}
        chosen = []
        for request, name in requests(400):
            replica = kept.route(request, name).replica
            if replica in stays:
                chosen.append(replica)
            number = random.choice((1, 3))
            if number not in kept.loads:
                kept.joined(number, 64)
                kept.offer(number)
            elif random.random() < 0.5:
                kept.left(number)
        assert chosen == [(0, 2, 4)[turn % 3] for turn in range(len(chosen))]


class TestLeastLoaded:
    def test_compares_requests_then_tokens_then_requests_so_far(self) -> None:
        router = make("least_loaded", 3)
        assert router.route(REQUEST, "", loads(2, 1, 3)) == 1
        assert router.route(REQUEST, "", loads(1, 1, 1, tokens=(9, 8, 7))) == 2
        assert router.route(REQUEST, "", loads(1, 1, 1, counts=(5, 3, 4))) == 1


class TestPowerOfTwo:
    def test_never_takes_the_worst(self) -> None:
        router = make("power_of_two", 4)
        chosen = Counter(router.route(REQUEST, "", loads(5, 1, 9, 3)) for _ in range(600))
        assert set(chosen) == {0, 1, 3}
        assert chosen[1] > chosen[3] > chosen[0]

    def test_equal_loads_go_by_the_requests_so_far(self) -> None:
        router = make("power_of_two", 2)
        chosen = {router.route(REQUEST, "", loads(1, 1, counts=(7, 6))) for _ in range(20)}
        assert chosen == {1}


class TestSession:
    def test_a_conversation_stays_on_its_replica(self) -> None:
        router = make("session", 8)
        chosen = {
            router.route(make_request(number, [number]), "talk", loads(*range(8)))
            for number in range(20)
        }
        assert len(chosen) == 1

    def placed(self, router: Router, *numbers: int) -> dict[str, int]:
        """Where sessions go while these replicas take requests."""
        return {
            name: router.route(request, name, idle(*numbers)) for request, name in requests(2000)
        }

    def test_one_more_replica_takes_only_its_share(self) -> None:
        """A ninth of them; hashing modulo the number would move eight ninths."""
        router = make("session", 8)
        before = self.placed(router, *range(8))
        router.joined(8, 64)
        after = self.placed(router, *range(9))
        moved = [after[name] for name in before if after[name] != before[name]]
        assert set(moved) == {8}
        assert len(moved) == pytest.approx(2000 / 9, rel=0.35)

    @pytest.mark.parametrize("gone", ["has left", "takes no requests"])
    def test_only_the_sessions_of_a_replica_that_goes_move_and_they_come_back(
        self, gone: str
    ) -> None:
        router, others = make("session", 8), [*range(3), *range(4, 8)]
        before = self.placed(router, *range(8))
        if gone == "has left":
            router.left(3)
        during = self.placed(router, *others)
        moved = {name for name in before if during[name] != before[name]}
        assert moved == {name for name, replica in before.items() if replica == 3}
        counts = Counter(during[name] for name in moved)
        assert len(counts) == 7, "the others share its sessions"
        if gone == "has left":
            router.joined(3, 64)
        assert self.placed(router, *range(8)) == before

    def test_places_are_the_same_in_every_process(self) -> None:
        router = make("session", 8)
        given = [make_request(number, [1]) for number in range(8)]
        assert [router.route(each, "", idle(*range(8))) for each in given] == [
            7,
            7,
            0,
            0,
            0,
            3,
            0,
            3,
        ]


class TestPrefixAffinity:
    SHARED = range(100, 140)

    def test_follows_the_longest_known_prefix(self) -> None:
        kept = book(make("prefix_affinity"), 0, 1, 2)
        first = kept.route(make_request(0, self.SHARED), "").replica
        other = kept.route(make_request(1, [*self.SHARED[:8], *range(30)]), "").replica
        longer = make_request(2, [*self.SHARED, *range(200, 208)])
        assert kept.route(longer, "").replica == first, "although others have nothing to do"
        assert other != first, "two blocks of nine are less than the least share"

    def test_forgets_what_was_sent_least_recently(self) -> None:
        router = make("prefix_affinity", 1, max_blocks=10)
        for number in range(20):
            prompt = range(40 * number, 40 * number + 24)
            router.route(make_request(number, prompt), "", idle(0))
            assert len(router.known) <= 10
        for start, depth in ((760, 6), (720, 4), (680, 0)):
            keys = content_digests(range(start, start + 24), 4)
            assert router.held.longest(keys, {0})[0] == depth

    def test_what_has_left_is_forgotten_with_its_prefixes(self) -> None:
        kept = book(make("prefix_affinity"), 0, 1)
        request = make_request(0, self.SHARED)
        assert kept.route(request, "").replica == 0
        kept.left(0)
        kept.joined(0, 64)
        kept.offer(0)
        kept.route(make_request(1, [1]), "").ended()
        kept.route(make_request(2, [1]), "").ended()
        assert kept.loads[0].num_routed == kept.loads[1].num_routed
        kept.loads[0].num_requests = 1
        assert kept.route(request, "").replica == 1, "no replica knows it: the least loaded"

    def test_one_that_knows_the_prompt_and_takes_no_requests_is_passed_over(self) -> None:
        """The longest prefix is that of those that may be chosen."""
        router = make("prefix_affinity", 3)
        router.route(make_request(0, self.SHARED), "", idle(0))
        router.route(make_request(1, self.SHARED[:32]), "", idle(2))
        assert router.route(make_request(2, self.SHARED), "", loads(0, 1, 1)) == 0
        offered = {number: Load(number, number) for number in (1, 2)}
        assert router.route(make_request(3, self.SHARED), "", offered) == 2

    def test_a_replica_far_ahead_of_the_others_is_relieved(self) -> None:
        router = make("prefix_affinity", 2, most_ahead=4, most_ratio=2.0)
        request = make_request(0, self.SHARED)
        assert router.route(request, "", loads(0, 0)) == 0
        assert router.route(request, "", loads(4, 0)) == 0, "by 4 at most"
        assert router.route(request, "", loads(10, 5)) == 0, "twice as many at most"
        assert router.route(request, "", loads(11, 5)) == 1
        assert router.route(request, "", loads(1, 0)) == 1, "both know it: the less loaded"

    def test_salted_prompts_are_others(self) -> None:
        kept = book(make("prefix_affinity"), 0, 1)
        assert kept.route(make_request(0, self.SHARED), "").replica == 0
        salted = make_request(1, self.SHARED, cache_salt="s")
        assert kept.route(salted, "").replica == 1, "no replica knows it: the least loaded"
        assert kept.route(make_request(2, self.SHARED, cache_salt="s"), "").replica == 1
        kept.loads[0].num_requests = 2
        assert kept.route(make_request(3, self.SHARED), "").replica == 0

    def test_a_block_without_those_before_it_is_of_no_use(self) -> None:
        held = HeldBlocks()
        for key in (1, 2):
            held.add(0, key)
        held.add(1, 2)
        held.add(1, 3)
        assert held.longest([1, 2, 3], {0, 1}) == (2, {0})


class TestExactIndex:
    """``prefix_affinity`` that is told what replicas hold."""

    SHARED = range(100, 140)
    KEYS = content_digests(SHARED, 4)

    def made(self) -> Any:
        router = make("prefix_affinity", 3, index="exact", most_ahead=4)
        assert isinstance(router, SupportsBlockEvents)
        return router

    def test_is_told_only_if_it_wants_to_know(self) -> None:
        for index, wants in (("exact", True), ("approximate", False)):
            router = CheckedRouter(make("prefix_affinity", index=index), "prefix_affinity")
            assert router.wants_block_events is wants
        router.blocks_changed(0, [("stored", [1])])  # is no error

    def test_follows_what_is_held_and_not_what_was_sent(self) -> None:
        router, request = self.made(), make_request(0, self.SHARED)
        assert router.route(request, "", loads(1, 0, 1)) == 1
        assert router.route(request, "", loads(1, 1, 0)) == 2, "nothing was stored yet"
        router.blocks_changed(0, [("stored", self.KEYS)])
        assert router.route(request, "", loads(3, 0, 0)) == 0
        assert router.route(request, "", loads(9, 2, 3)) == 1, "too far ahead"

    @pytest.mark.parametrize(
        "change", [("removed", KEYS[:1]), ("cleared", []), ("removed", KEYS[2:])]
    )
    def test_what_is_removed_is_not_known(self, change: tuple[str, list[int]]) -> None:
        router, request = self.made(), make_request(0, self.SHARED)
        router.blocks_changed(0, [("stored", self.KEYS)])
        router.blocks_changed(0, [change])
        assert router.route(request, "", loads(3, 0, 1)) == 1
        router.blocks_changed(0, [("cleared", []), ("stored", self.KEYS)])
        assert router.route(request, "", loads(3, 0, 1)) == 0

    def test_what_has_left_holds_nothing_when_it_is_back(self) -> None:
        router, request = self.made(), make_request(0, self.SHARED)
        router.blocks_changed(0, [("stored", self.KEYS)])
        router.left(0)
        router.joined(0, 64)
        assert router.route(request, "", loads(3, 0, 1)) == 1


class TestContentKeys:
    def test_are_the_same_in_every_process(self) -> None:
        """Written down: not Python's ``hash``, which differs from process to process."""
        assert content_digests([1, 2, 3, 4, 5], 2) == [8901564848246840783, 5144891096145841010]
        assert content_digests([1, 2], 2, "tenant") == [9252758873612783994]

    def test_a_salt_and_every_token_before_count(self) -> None:
        base = content_digests(range(12), 4)
        assert len(set(base)) == len(base) == 3
        assert not set(base) & set(content_digests(range(12), 4, "a"))
        assert not set(base) & set(content_digests([9, *range(1, 12)], 4))
        assert content_digests([*range(8), 0, 0, 0, 0], 4)[:2] == base[:2]

    def test_those_of_a_prompt_are_those_of_its_blocks_in_the_cache(self) -> None:
        for salt in (None, "a salt \N{SNOWMAN}"):
            key = None
            for digest, (start, end) in zip(
                content_digests(range(5000), 4, salt), pairwise(range(0, 5001, 4)), strict=True
            ):
                key = BlockKey(key, range(start, end), salt)
                if start % 16:  # some are asked for first by a later one
                    assert key.digest == digest
            assert key is not None
            assert key.digest == digest


class TestBoundedLoads:
    """``session`` with a limit on loads."""

    def test_no_replica_exceeds_the_mean_by_more(self) -> None:
        kept = book(make("session", most_over_mean=1.25), 0, 1, 2, 3)
        first = kept.route(make_request(0, [1]), "hot").replica
        for number in range(1, 100):
            kept.route(make_request(number, [1]), "hot")
            counts = [each.num_requests for each in kept.loads.values()]
            assert max(counts) <= -(-1.25 * sum(counts) // 4)
        assert kept.loads[first].num_requests == max(counts)


class TestWeighing:
    SHARED = range(100, 140)

    def test_preble_goes_to_a_known_prefix_up_to_a_ratio(self) -> None:
        router, request = make("preble", 2, most_ratio=2.0), make_request(0, self.SHARED)
        assert router.route(request, "", loads(0, 1, tokens=(0, 10))) == 0
        assert router.route(request, "", loads(3, 1, tokens=(100, 10))) == 0, "2 x (10 + 40)"
        assert router.route(request, "", loads(3, 1, tokens=(101, 10))) == 1

    def test_preble_weighs_a_short_prefix_against_the_queue(self) -> None:
        router = make("preble", 2)
        router.route(make_request(0, self.SHARED), "", idle(0))
        other = make_request(1, [*self.SHARED[:8], *range(32)])
        assert router.route(other, "", loads(1, 1, tokens=(17, 10))) == 0, "17 - 8 < 10"
        third = make_request(2, [*self.SHARED[:8], *range(40, 72)])
        assert router.route(third, "", loads(1, 0, tokens=(19, 10))) == 1

    @pytest.mark.parametrize(
        ("weights", "chosen"),
        [({"queue": 0, "memory": 0}, 0), ({"prefix": 0, "memory": 0}, 1), ({"prefix": 0}, 1)],
    )
    def test_weights_choose(self, weights: dict[str, float], chosen: int) -> None:
        router, request = make("weighted", 3, **weights), make_request(0, self.SHARED)
        router.route(request, "", idle(0))
        assert router.route(request, "", loads(2, 0, 1, tokens=(80, 10, 40))) == chosen

    def test_freeness_is_free_memory_by_requests(self) -> None:
        router, request = make("freeness", 2), make_request(0, [1])
        assert router.route(request, "", loads(1, 2, tokens=(200, 128))) == 1, "56 < 64"
        assert router.route(request, "", loads(1, 2, tokens=(180, 128))) == 0, "76 > 64"
