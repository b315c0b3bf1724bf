"""What a router component must do."""

from __future__ import annotations

import gc
import random
import tracemalloc
from itertools import islice
from typing import ClassVar

import pytest
from hypothesis import strategies as st

from paged_plugins.lab.router import Router, RouterParts
from paged_plugins.lab.testing.router_scene import (
    Scene,
    make_request,
    unrelated_requests,
    varied_requests,
)
from paged_testing.component import ComponentConformance

_BLOCK_SIZE = 4
_NUM_BLOCKS = 64
_MAX_GROWTH = 16 * 1024
"""Bytes that a router may have allocated more after many requests than after some."""


class RouterConformance(ComponentConformance):
    """Subclass it for a router component::

    class TestMyRouter(RouterConformance):
        component = "my_router"
    """

    slot: ClassVar[str] = "router"
    most_over_mean: ClassVar[float] = 2.0
    """Requests that have nothing in common: so many times the mean a replica may get at most, in
    all and at once."""

    def make(self, num_replicas: int = 4, seed: int = 0) -> Router:
        """A fresh component."""
        parts = RouterParts(
            num_replicas=num_replicas, block_size=_BLOCK_SIZE, num_blocks=_NUM_BLOCKS, seed=seed
        )
        made = self.build(parts)
        assert isinstance(made, Router)
        return made

    # ------------------------------------------------------------------ written cases

    @pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
    def test_chooses_one_of_the_replicas(self, num_replicas: int) -> None:
        """Whatever the request, and however many requests are being served."""
        for num_live in (0, 3, 100):
            scene = Scene(self.make(num_replicas), num_replicas, num_live)
            scene.route_all(varied_requests())
            scene.end_all()
            scene.route_all(varied_requests())

    @pytest.mark.parametrize("num_live", [16, 64])
    def test_uses_every_replica_alike_for_unrelated_requests(self, num_live: int) -> None:
        scene = Scene(self.make(8), 8, num_live)
        scene.route_all(list(islice(unrelated_requests(), 400)))
        most = self.most_over_mean * 400 / 8
        assert min(scene.counts) > 0, f"a replica gets no request: {scene.counts}"
        assert max(scene.counts) <= most, (
            f"a replica gets {max(scene.counts)} of 400 unrelated requests, and may get {most:.0f}"
        )

    def test_bounds_the_requests_of_a_replica(self) -> None:
        scene = Scene(self.make(8), 8, 160)
        scene.route_all(list(islice(unrelated_requests(), 640)))
        most = self.most_over_mean * 160 / 8 + 1  # the oldest ends after one has arrived
        assert scene.most_live <= most, (
            f"a replica has {scene.most_live} of 160 requests at once, and may have {most:.0f}"
        )

    def test_equal_seeds_choose_alike(self) -> None:
        requests = [*varied_requests(), *islice(unrelated_requests(), 100)]
        random.seed(1)
        first = Scene(self.make(5, seed=7), 5, 10).route_all(requests)
        random.seed(2)
        second = Scene(self.make(5, seed=7), 5, 10).route_all(requests)
        assert first == second, f"{first} the first time, {second} the second: cannot be repeated"

    def test_another_router_changes_nothing(self) -> None:
        """Two clusters in one process share no state."""
        requests = list(islice(unrelated_requests(), 60))
        alone = Scene(self.make(5), 5, 10).route_all(requests)
        scenes = [Scene(self.make(5), 5, 10) for _ in range(2)]
        beside = [[scene.route(*each) for scene in scenes] for each in requests]
        assert [chosen for chosen, _ in beside] == alone, "it is changed by a second router"

    def test_takes_any_sequence_of_replicas(self) -> None:
        scene, twin = Scene(self.make(), 4, 9), self.make()
        for request, session in varied_requests():
            of_tuple = twin.route(request, session, tuple(scene.loads))
            of_list = scene.route(request, session)
            assert of_tuple == of_list, f"of a tuple it chose {of_tuple}, of a list {of_list}"

    def test_takes_the_end_of_requests_in_any_order(self) -> None:
        """Equal prompts, ended last first, and a request that was refused at once."""
        router, scene = self.make(), Scene(self.make(), 4, 1000)
        requests = [make_request(number, range(20)) for number in range(6)]
        sent = [(request, router.route(request, "s", scene.loads)) for request in requests]
        for request, replica in reversed(sent):
            router.finished(request, replica)
        assert router.route(make_request(7, range(20)), "s", scene.loads) in range(4)

    def test_what_it_remembers_is_bounded(self) -> None:
        """By the replicas and their blocks: not by the requests that have ended."""
        scene, requests = Scene(self.make(), 4, 8), unrelated_requests()
        tracemalloc.start()
        try:
            scene.route_all(list(islice(requests, 120)))
            before = self._allocated(scene)
            for _ in range(4):
                scene.route_all(list(islice(requests, 80)))
            growth = self._allocated(scene) - before
        finally:
            tracemalloc.stop()
        assert growth < _MAX_GROWTH, (
            f"320 requests that have ended left {growth} bytes allocated: what a router remembers "
            "is bounded by its replicas, their blocks and the requests that have not ended"
        )

    # ------------------------------------------------------------------ properties

    def test_chooses_one_of_the_replicas_and_can_be_repeated(self) -> None:
        self.check(self.check_repeats, st.integers(1, 9), st.integers(0, 30), _events())

    def check_repeats(
        self, num_replicas: int, num_live: int, events: list[tuple[int, int, str]]
    ) -> None:
        """Check that two equal routers send equal requests to the same replicas."""
        requests = [
            (make_request(number, range(start, start + length)), session)
            for number, (start, length, session) in enumerate(events)
        ]
        scenes = [Scene(self.make(num_replicas, 3), num_replicas, num_live) for _ in range(2)]
        first, second = (scene.route_all(requests) for scene in scenes)
        assert first == second, f"{first} the first time, {second} the second: cannot be repeated"

    def _allocated(self, scene: Scene) -> int:
        """Bytes allocated since tracing began, once all requests have ended."""
        scene.end_all()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def _events() -> st.SearchStrategy[list[tuple[int, int, str]]]:
    starts, sessions = st.sampled_from([0, 0, 64, 512]), st.sampled_from(["", "a", "b", "c"])
    return st.lists(st.tuples(starts, st.integers(1, 70), sessions), max_size=40)
