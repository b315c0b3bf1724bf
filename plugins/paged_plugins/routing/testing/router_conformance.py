"""The conformance class of routers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice, product, repeat
from random import Random
from typing import Any, ClassVar

import pytest

from paged_core.ids import content_digests
from paged_core.request import Request
from paged_plugins.routing.router import BlockChange, Router, RouterContext
from paged_plugins.routing.testing.scene import (
    BLOCK_SIZE,
    Scene,
    make_request,
    unrelated_requests,
    varied_requests,
)
from paged_testing.policy_subjects import extreme_requests
from paged_testing.repeats import Repeats
from paged_testing.use import bytes_left, instructions, memory_traced

_MAX_GROWTH = 4 * 1024
"""Bytes that a router may have allocated more after many requests than after some."""


class RouterConformance(Repeats):
    """Subclass it for a router component::

    class TestMyRouter(RouterConformance):
        component = "my_router"
    """

    slot: ClassVar[str] = "router"
    most_over_mean: ClassVar[float] = 2.0
    """Requests that have nothing in common: so many times the mean a replica may get at most, in
    all and at once."""

    def make(self, seed: int = 0) -> Router:
        """A fresh component, which no replica has joined."""
        made = self.build(RouterContext(block_size=BLOCK_SIZE, seed=seed))
        assert isinstance(made, Router)
        return made

    def scene(
        self, num_replicas: int = 4, num_live: int = 10, seed: int = 0, **options: Any
    ) -> Scene:
        """A fresh component that these replicas have joined."""
        return Scene(self.make(seed), num_replicas, num_live, **options)

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Where written requests are sent, also beside others, made before and after."""
        other = beside and self.of(self.registry, self.slot, beside)
        scenes = [kit.scene(5, 100, seed=7) for kit in (other, self, other) if kit]
        requests = [*varied_requests(), *islice(unrelated_requests(), 100)]
        requests += [
            (replace(each, cache_salt=f"salt {at}"), name)
            for at, (each, name) in enumerate(requests)
        ]
        for scene in (scenes[0], scenes[-1]) if beside else ():
            scene.leave(0)
            scene.route_all(reversed(requests))
        return {"written requests": scenes[len(scenes) // 2].route_all(requests)}

    # ------------------------------------------------------------------ written cases

    @pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
    def test_chooses_one_of_the_replicas(self, num_replicas: int) -> None:
        """Whatever the request, and however many requests are being served."""
        for num_live in (0, 3, 100):
            scene = self.scene(num_replicas, num_live)
            scene.route_all(varied_requests())
            scene.end_all()
            scene.route_all((each, each.session) for each in extreme_requests())
            scene.route_all(varied_requests())

    def test_chooses_one_that_takes_requests(self) -> None:
        """Replicas leave, come back, and are joined by others; some take no requests for a time."""
        scene = self.scene(5, 20)
        for number in (0, 3):
            scene.book.withhold(number)
        scene.route_all(varied_requests())
        scene.leave(1)
        scene.route_all(varied_requests(100))
        scene.leave(3)
        scene.book.offer(0)
        scene.join(9)
        scene.route_all(varied_requests(200))
        scene.join(1)
        for number in (0, 2, 4, 9):
            scene.book.withhold(number)
        assert set(scene.route_all(varied_requests(300))) == {1}
        scene.leave(1)
        scene.book.offer(9)
        assert set(scene.route_all(varied_requests(400))) == {9}

    @pytest.mark.parametrize("num_live", [0, 16, 64])
    def test_uses_every_replica_alike_for_unrelated_requests(self, num_live: int) -> None:
        """Requests of sessions of their own, and of none."""
        for session in ("session {}", ""):
            scene = self.scene(8, num_live)
            scene.route_all(islice(unrelated_requests(session), 400))
            self.check_shares(scene, range(8), 400)

    @pytest.mark.parametrize("num_live", [0, 64])
    def test_uses_a_replica_that_has_joined_like_the_others(self, num_live: int) -> None:
        """One that is back, and a new one: from then on, and not to make up for what was."""
        scene, requests = self.scene(6, num_live), unrelated_requests()
        scene.route_all(islice(requests, 300))
        scene.leave(2)
        scene.route_all(islice(requests, 100))
        scene.join(2)
        scene.join(7)
        scene.counts.clear()
        scene.route_all(islice(requests, 210))
        self.check_shares(scene, [*range(6), 7], 210, num_idle=num_live)

    @pytest.mark.parametrize("past", ["held", "served again", "back before the end"])
    def test_uses_every_replica_alike_once_all_has_ended(self, past: str) -> None:
        """Requests had prompts that a replica held, were routed anew after it had left, or end
        after it is back."""
        scene = self.scene(3, 100)
        for number in range(4):
            request = make_request(number, range(1000 * number, 1000 * number + 400))
            if past == "held" and scene.is_told:
                scene.change(2, ("stored", content_digests(request.prompt, BLOCK_SIZE)))
            chosen = scene.route(request, "")
            if past != "held":
                scene.leave(chosen)
            if past == "served again":
                scene.route(request, "")
                scene.end_oldest()
                scene.end_oldest()
            if past != "held":
                scene.join(chosen)
            scene.end_all()
        scene.settle()
        scene.counts.clear()
        for request, session in islice(unrelated_requests(), 300):
            scene.route(request, session)
            scene.end_all()
        self.check_shares(scene, range(3), 300)

    def check_shares(
        self, scene: Scene, numbers: Collection[int], num_requests: int, num_idle: int = 0
    ) -> None:
        """Check that each replica got some of these requests, and none too many.

        Args:
            num_idle: of them, those that give a replica which had nothing to do as much as others.
        """
        counts = [scene.counts[number] for number in numbers]
        most = (self.most_over_mean * num_requests + num_idle) / len(counts)
        assert min(counts) > 0, f"a replica gets no request: {counts}"
        assert max(counts) <= most, (
            f"a replica gets {max(counts)} of {num_requests} unrelated requests, and may get "
            f"{most:.0f}"
        )

    def test_requests_of_no_session_have_none_in_common(self) -> None:
        """Where sessions matter, they are not routed as those of one session."""
        each, one, none = (
            self.scene(8, 24, 7).route_all(islice(unrelated_requests(session), 100))
            for session in ("session {}", "one", "")
        )
        assert none != one or one == each, "requests without a session are routed as one session"

    def test_bounds_the_requests_of_a_replica(self) -> None:
        scene = self.scene(8, 160)
        scene.route_all(islice(unrelated_requests(), 640))
        most = self.most_over_mean * 160 / 8 + 1  # the oldest ends after one has arrived
        assert scene.most_live <= most, (
            f"a replica has {scene.most_live} of 160 requests at once, and may have {most:.0f}"
        )

    @pytest.mark.parametrize("what", ["replicas", "unfinished requests"])
    def test_the_work_grows_in_proportion_to_the(self, what: str) -> None:
        costs = []
        for size in (16, 128):
            replicas, live = (size if what[:1] == each else 16 for each in "ru")
            scene = self.scene(replicas, live)
            scene.route_all(islice(unrelated_requests(), 2 * live))
            request = make_request(10**6, range(16))
            costs.append(instructions(partial(scene.route, request, "s"), self.package))
        assert costs[1] <= 16 * costs[0] + 400, (
            f"to route a request takes {costs[0]} instructions with 16 {what}, {costs[1]} with 128"
        )

    def test_the_work_grows_in_proportion_to_a_long_prompt(self) -> None:
        """Also where replicas hold all of it, since it comes again."""
        costs = []
        for size in (16, 512, 2048):
            scene = self.scene(2, 4, num_blocks=1024)
            again = [partial(make_request, 10**6 + number, range(size)) for number in range(4)]
            calls = [partial(scene.route, request(), "s") for request in again]
            costs.append([instructions(call, self.package) for call in calls])
        for time, (least, some, many) in enumerate(zip(*costs, strict=True)):
            assert many - some <= 6 * (some - least) + 400, (
                f"to route prompts of 16, 512 and 2048 tokens takes {least}, {some} and {many} "
                f"instructions and items when they have come {time} times before: the work may "
                "grow in proportion to the prompt, so look at each token a few times"
            )

    def test_the_work_does_not_grow_with_what_replicas_hold(self) -> None:
        costs = []
        for size in (64, 1024):
            scene = self.scene(4, 4, num_blocks=size)
            scene.settle()
            request, session = next(unrelated_requests())
            costs.append(instructions(partial(scene.route, request, session), self.package))
        assert costs[1] <= 2 * costs[0] + 400, (
            f"to route a request takes {costs[0]} instructions and items where each replica holds "
            f"64 blocks of others, {costs[1]} where each holds 1024"
        )

    # ------------------------------------------------------------------ what replicas hold

    def test_goes_by_the_blocks_that_it_is_told_of(self) -> None:
        """Blocks that replicas hold change where some request is sent, or to be told is in vain."""
        if not self.scene().is_told:
            pytest.skip("it is told of no blocks")
        told, as_list = self._where_some_is_held(iter), self._where_some_is_held(list)
        differ = [
            at for at, (one, other) in enumerate(zip(told, as_list, strict=True)) if one != other
        ]
        assert not differ, (
            f"request {differ[0]} is sent to {told[differ[0]]} where changes of caches come as an "
            f"iterator, and to {as_list[differ[0]]} where they come as a list: go through them once"
        )
        again = self._where_some_is_held(_undone_and_made_again)
        assert again == as_list, (
            f"requests are sent to {as_list}, and to {again} where what is stored or removed is "
            "undone and made again in one report: take its changes in their order"
        )
        kits = chain([self], (self.variant(**each) for each in self.other_settings()))
        where = (kit._where_some_is_held for kit in kits)
        assert any(each(iter) != each(lambda changes: ()) for each in where), (
            "with blocks_changed(), each request is sent where it is sent if no change of a cache "
            "is told, whatever the options: what replicas hold of a prompt has no effect"
        )

    def _where_some_is_held(self, handed: Callable[[list[BlockChange]], Any]) -> list[int]:
        """Return where requests are sent of which a replica holds the prompt, while replicas have
        as many requests as others, or more."""
        found = list[int]()
        for replica, num_live in product(range(4), (0, 3, 8)):
            scene = self.scene(4, num_live, handed=handed)
            scene.route_all(islice(unrelated_requests("", 10), num_live))
            scene.change(replica, ("stored", content_digests(_PROMPT, BLOCK_SIZE)))
            found.append(scene.route(make_request(0, _PROMPT), ""))
        scene = self.scene(5, handed=handed)
        return found + scene.route_all([*varied_requests(), *varied_requests(100)])

    @pytest.mark.parametrize("how", ["are removed", "are cleared", "have left"])
    def test_does_not_go_by_blocks_that(self, how: str) -> None:
        """A replica held the prompt: it gets it no more than if it had held another; one that also
        held it still does."""
        request = make_request(0, _PROMPT)
        for replica, keys in self._followed():
            found, usual = (
                self._chosen(replica, request, held, how)
                for held in (keys, content_digests(_OTHER, BLOCK_SIZE))
            )
            assert found == usual, (
                f"replica {replica} held the blocks of a prompt, {_HOW[how]}; it holds one again, "
                f"and another replica two: the prompt is sent to {found}, and to {usual} if the "
                "blocks were those of another"
            )
            both, other = self.scene(), (replica + 1) % 4
            for number in (other, replica):
                both.change(number, ("stored", keys))
            _lose(both, replica, keys, how)
            assert (found := both.route(request, "")) == other, (
                f"replicas {replica} and {other} held the blocks of a prompt, of {replica} these "
                f"{how.removeprefix('are ')}: the prompt is sent to {found}"
            )

    def test_goes_by_blocks_of_a_replica_that_is_offered_again(self) -> None:
        """While it takes no requests, it goes on holding its blocks, and others are stored."""
        for (replica, keys), when in product(self._followed(), ("are", "come when")):
            found = self._chosen(replica, make_request(0, _PROMPT), keys, f"{when} withheld")
            assert found == replica, (
                f"replica {replica} holds the blocks of a prompt and took no requests for a time; "
                f"the prompt is sent to {found}"
            )

    def test_goes_by_blocks_of_the_cache_salt_of_a_request(self) -> None:
        """Equal prompts of other salts share no block, and their keys are others."""
        salts = (None, "", "a", "b")
        for replica, _ in self._followed():
            for asked, held in product(salts, salts):
                request = make_request(0, _PROMPT, asked)
                keys = content_digests(_PROMPT, BLOCK_SIZE, held)
                found = self._chosen(replica, request, keys, "have come")
                others = content_digests(_OTHER, BLOCK_SIZE, held)
                wanted = self._chosen(replica, request, others, "have come")
                wanted = replica if asked == held else wanted
                assert found == wanted, (
                    f"replica {replica} holds a prompt of the cache salt {held!r}; the same prompt "
                    f"of the salt {asked!r} is sent to {found}, and is to be sent to {wanted}: "
                    "look for content_digests(prompt, block_size, request.cache_salt)"
                )

    def _followed(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield replicas, and keys of a prompt, which is sent to each of them that holds these."""
        keys = content_digests(_PROMPT, BLOCK_SIZE)
        request = make_request(0, _PROMPT)
        if not self.scene().is_told:
            pytest.skip("it is told of no blocks")
        if any(self._chosen(number, request, keys) != number for number in range(4)):
            pytest.skip("of replicas of equal loads, it does not choose the one with the prompt")
        yield from zip(range(4), repeat(keys))

    def _chosen(self, replica: int, request: Request, keys: Sequence[int], gone: str = "") -> int:
        """Return where a request is sent, of which a replica holds keys, or has held them."""
        scene = self.scene()
        if gone == "have come":  # under several salts, and nothing of these is held any more
            scene.route_all((make_request(9, _PROMPT, salt), "") for salt in (None, *"abc"))
            scene.end_all()
            scene.settle()
        if gone != "come when withheld":
            scene.change(replica, ("stored", keys))
        if "withheld" in gone:
            scene.book.withhold(replica)
            for number in range(1, 5):
                if number == 4:  # which it gets, and so as many as the others
                    if gone == "come when withheld":
                        scene.change(replica, ("stored", keys))
                    scene.book.offer(replica)
                scene.route(make_request(100 + number, range(200 * number, 200 * number + 40)), "")
            scene.end_all()
        elif gone in _HOW:
            _lose(scene, replica, keys, gone)
            # each of two holds the beginning of it now
            for number, blocks in ((replica, 1), ((replica + 1) % 4, 2)):
                scene.change(number, ("stored", content_digests(_PROMPT, BLOCK_SIZE)[:blocks]))
        return scene.route(request, "")

    def test_what_it_remembers_is_bounded(self) -> None:
        """By the replicas and their blocks: not by the requests that have ended.

        There are always requests, also of one tenant and session, beside those of ever new ones.
        """
        scene, requests = self.scene(4, 8), _returning(unrelated_requests())
        self.check_bounded(scene, "320 requests that have ended", requests, lambda turn: None)

        left = []
        for length in (256, 1024):  # caches are full, and tables as large as they become
            scene, prompts = self.scene(2, 8), (range(at, at + length) for at in range(96))
            requests = ((make_request(prompt[0], prompt), "") for prompt in prompts)
            go_on = partial(_route_and_settle, scene, requests)
            left.append(bytes_left(partial(go_on, 80), partial(go_on, 16)))
        assert left[1] <= 2 * left[0] + _MAX_GROWTH, (
            f"80 requests that have ended leave {left[0]} bytes where their prompts have 256 "
            f"tokens, {left[1]} where they have 1024, and caches hold 256 tokens"
        )

    def test_what_has_left_is_forgotten(self) -> None:
        scene, requests = self.scene(2, 8), unrelated_requests()

        def come_and_go(turn: int) -> None:
            for number in range(10 * turn + 2, 10 * turn + 12):
                scene.join(number)
                scene.route_all(islice(requests, 10))
                scene.leave(number)

        self.check_bounded(scene, "40 replicas that have left", requests, come_and_go)

    bytes_free: ClassVar[int] = 256 << 10
    """Contents of the caches change all the time; the two tests above bound their memory."""

    def uses(self) -> Callable[[int], object]:
        scene = self.scene(4, 0)
        return lambda number: scene.route(*next(unrelated_requests(first=number)))

    def check_bounded(
        self,
        scene: Scene,
        what: str,
        requests: Iterator[tuple[Request, str]],
        turn: Callable[[int], None],
    ) -> None:
        """Check that memory does not grow from turn to turn, whatever the caches hold."""
        numbers = count()

        def go_on() -> None:
            for number in islice(numbers, 4):
                scene.route_all(islice(requests, 80))
                turn(number)
            scene.settle()

        growths = list[int]()
        with memory_traced() as allocated:
            go_on()
            for _ in range(4):
                before = allocated()
                go_on()
                growths.append(allocated() - before)
                if growths[-1] < _MAX_GROWTH:
                    return
        raise AssertionError(
            f"{what} left {growths[0]} bytes allocated, and as many more {growths[1:]}: what a "
            "router remembers is bounded by the replicas that are there, their blocks and the "
            "requests that have not ended"
        )

    def check_written(self) -> None:
        self.test_chooses_one_of_the_replicas(3)
        self.test_chooses_one_that_takes_requests()
        self.check_repeats(1)

    def test_chooses_one_that_takes_requests_and_can_be_repeated(self) -> None:
        for seed in range(30):
            self.check_repeats(seed)

    def check_repeats(self, seed: int) -> None:
        """Check that two equal routers send equal requests to the same replicas."""
        first, second = (self.walk(Random(seed)) for _ in range(2))
        assert first == second, (
            f"requests went to {first}, and to {second} the second time: cannot be repeated"
        )

    def walk(self, drawn: Random) -> list[int]:
        """Return where drawn requests are sent while replicas leave, pause and come back."""
        scene, found = self.scene(drawn.randint(1, 9), drawn.randint(0, 30), 3), list[int]()
        for number in range(drawn.randint(0, 40)):
            start = drawn.choice((0, 0, 64, 512))
            request = make_request(number, range(start, start + drawn.randint(1, 70)))
            found.append(scene.route(request, drawn.choice(("", "a", "b", "c"))))
            scene.move(drawn.randint(0, 9), drawn.choice(("", "", "leave", "pause", "go on")))
        return found


_PROMPT, _OTHER = range(40), range(100, 140)


def _undone_and_made_again(changes: Iterable[BlockChange]) -> list[BlockChange]:
    other = {"stored": "removed", "removed": "stored"}
    again = (
        (each, keys)
        for kind, keys in changes
        for each in ((kind, other[kind], kind) if kind in other else (kind,))
    )
    return [("stored", [0]), ("removed", [0]), *again]


_HOW: Mapping[str, str] = {
    "are removed": "which were `removed`",
    "are cleared": "until its cache was `cleared`",
    "have left": "left, and is back",
}


def _lose(scene: Scene, replica: int, keys: Sequence[int], how: str) -> None:
    """Let a replica hold these blocks no more."""
    if how == "have left":
        scene.leave(replica)
        scene.join(replica)
    else:
        scene.change(replica, ("cleared", []) if "clear" in how else ("removed", keys))


def _route_and_settle(scene: Scene, requests: Iterable[tuple[Request, str]], most: int) -> None:
    scene.route_all(islice(requests, most))
    scene.end_all()
    scene.settle()


def _returning(requests: Iterable[tuple[Request, str]]) -> Iterator[tuple[Request, str]]:
    """Yield requests, every third of which is of the same tenant and session."""
    for number, (request, session) in enumerate(requests):
        yield (request, session) if number % 3 else (replace(request, tenant="always"), "always")
