"""Requests arrive in the order of their time, and are served by an engine or over a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.engine.clock import VirtualClock
from paged_core.engine.driver import EngineDriver
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_plugins.workloads.batch import by_turn, longest
from paged_plugins.workloads.request import WorkloadRequest, linked
from paged_plugins.workloads.serving import Arrival, Arrivals, Refusal, ServingLoop
from paged_testing.engines import build_memory_engine


def request(number: int, at: float = 0.0, output: int = 1, length: int = 3) -> WorkloadRequest:
    first = 100 * number
    return WorkloadRequest(
        id=str(number), at=at, prompt=(range(first, first + length),), output=output
    )


def test_an_engine_is_told_all_that_a_router_and_a_queue_look_at() -> None:
    told = {"priority": 2, "tenant": "t", "session": "s", "cache_salt": "c"}
    asked = Arrival(replace(request(0), **told, deadline=3.0), 1.0, (1, 2, 3)).asked(10.0)
    assert {name: getattr(asked, name) for name in told} == told
    assert (asked.arrival, asked.deadline) == (11.0, 14.0)


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[WorkloadRequest, str | None]]:
    """Requests in the order of their ids, each with the id of an earlier one that it follows."""
    found: list[tuple[WorkloadRequest, str | None]] = []
    for number in range(draw(st.integers(0, 20))):
        place = draw(st.none() | st.integers(0, number - 1)) if number else None
        at, output = draw(st.integers(0, 9)), draw(st.integers(1, 4))
        asked = request(number, at=at, output=output, length=draw(st.integers(1, 5)))
        found.append((asked, None if place is None else str(place)))
    return found


def by_time(firsts: list[WorkloadRequest]) -> list[WorkloadRequest]:
    return sorted(firsts, key=lambda first: first.at)


@given(forests())
def test_requests_are_linked_with_those_that_follow_them(
    asked: list[tuple[WorkloadRequest, str | None]],
) -> None:
    firsts = linked(asked)
    assert [first.id for first in firsts] == [each.id for each, follows in asked if not follows]
    links = [link for first in firsts for link in first.links()]
    assert {each.id: follows for each, follows in links} == {
        each.id: follows for each, follows in asked
    }
    for each, _ in links:
        assert [int(one.id) for one in each.followers] == sorted(int(o.id) for o in each.followers)
    assert linked(links) == firsts


@given(forests())
def test_a_whole_prompt_continues_what_it_follows(
    asked: list[tuple[WorkloadRequest, str | None]],
) -> None:
    ends: dict[str | None, int] = {None: 0}
    whole: dict[str, int] = {}
    for each, follows in asked:
        whole[each.id] = ends[follows] + each.num_new
        ends[each.id] = whole[each.id] + each.output
    firsts = linked(asked)
    found = {each.id: length for first in firsts for each, length in first.whole_prompts()}
    assert found == whole
    assert longest(firsts) == max(ends.values())


@given(forests())
def test_turns_are_in_rounds(asked: list[tuple[WorkloadRequest, str | None]]) -> None:
    turns: dict[str | None, int] = {None: -1}
    rounds = {each.id: follows for each, follows in by_turn(linked(asked))}
    assert rounds == {each.id: follows for each, follows in asked}
    for name, follows in rounds.items():
        turns[name] = turns[follows] + 1
    assert list(turns.values()) == sorted(turns.values())


@given(forests(), st.integers(0, 40))
def test_what_is_due_arrives_in_order(
    asked: list[tuple[WorkloadRequest, str | None]], until: int
) -> None:
    """Every request ends as soon as it arrives, and those that follow it arrive meanwhile."""
    arrivals = Arrivals(by_time(linked(asked)))
    taken: list[Arrival] = []
    for arrival in arrivals.due(until):
        taken.append(arrival)
        arrivals.follow(arrival.request, arrival.at, arrival.prompt)
    times: dict[str | None, float] = {None: 0.0}
    for each, follows in asked:
        times[each.id] = times[follows] + each.at
    due = {each.id for each, _ in asked if times[each.id] <= until}
    assert {arrival.request.id for arrival in taken} == due
    assert all(arrival.at == times[arrival.request.id] for arrival in taken)
    assert [arrival.at for arrival in taken] == sorted(arrival.at for arrival in taken)
    waiting = [times[each.id] for each, _ in asked if each.id not in due]
    assert arrivals.next_at == min(waiting, default=None)


def test_they_are_drawn_as_they_arrive() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[WorkloadRequest]:
        for number in range(10**9):
            drawn.append(number)
            yield request(number, at=number)

    arrivals = Arrivals(endless())
    assert [arrival.request.id for arrival in arrivals.due(3)] == ["0", "1", "2", "3"]
    assert drawn == [0, 1, 2, 3, 4]
    assert arrivals.next_at == 4


def test_a_long_conversation() -> None:
    depth = 50_000
    turns = [(request(number), str(number - 1) if number else None) for number in range(depth)]
    (first,) = linked(turns)
    *_, (last, length) = first.whole_prompts()
    assert (last.id, length) == (str(depth - 1), 4 * depth - 1)
    del first


class Loop(ServingLoop):
    """Notes what becomes of requests."""

    def __init__(self, driver: EngineDriver, arrivals: Arrivals) -> None:
        super().__init__(driver, arrivals)
        self.notes: list[tuple[str, str, float]] = []

    def refused(self, arrival: Arrival, now: float, refusal: Refusal) -> None:
        self.notes.append(("refused", arrival.request.id, now))

    def ended(self, group: SequenceGroup, arrival: Arrival) -> None:
        assert group.finished_at is not None
        self.notes.append(("ended", group.id, group.finished_at - self.start))


def test_an_engine_serves_them_until_all_have_ended() -> None:
    asked = [
        (request(0, at=1.5, output=2), None),
        (request(1, at=2.0), "0"),
        (request(2, at=2.0, length=60), None),
        (request(3, at=1.0), "2"),
        (request(4, at=30.0), None),
    ]
    clock = VirtualClock(100.0)
    engine = build_memory_engine(Registry.discover(), num_blocks=8, block_size=4, clock=clock)
    loop = Loop(EngineDriver(engine), Arrivals(linked(asked)))
    loop.run()
    engine.close()
    assert loop.notes == [
        ("ended", "0", 1.5),
        ("refused", "2", 2.0),
        ("ended", "1", 3.5),
        ("ended", "4", 30.0),
    ]
    assert not loop.in_flight


@pytest.mark.parametrize(("vocab_size", "is_content"), [(None, True), (50, False)])
def test_prompts_are_token_ids(vocab_size: int | None, is_content: bool) -> None:
    (arrival,) = Arrivals([request(1)], vocab_size).due(0.0)
    assert (arrival.prompt == (100, 101, 102)) is is_content
    assert vocab_size is None or max(arrival.prompt) < vocab_size
