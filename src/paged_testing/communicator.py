"""Conformance of communicators, between real processes."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from paged_core.engine.contexts import CommunicatorContext
from paged_core.interfaces.communicator import RankGroup
from paged_testing.component import ComponentConformance
from paged_testing.ranks import (
    RankPool,
    RankProcess,
    check_no_memory_left,
    named_memory,
    tensor_of,
    values_of,
)

Values = tuple[Any, ...]
"""A tensor: dtype, shape, bytes, whether it is transposed."""
Call = tuple[str, Any, int]
"""Kind, tensor, source; ``slow``, what to add and whether its sockets are, ``pause`` and seconds,
``many`` and how many at most, or ``uses``, how many and of which package."""

_Asked = tuple[str, Sequence[Values], int]
"""Kind, tensors of all ranks, source."""

ADDED = ("float32", "bfloat16", "float16")
OTHERS = ("float64", "int64", "int32", "int16", "uint8", "bool", "complex64", "float8_e4m3fn")
_MEETING = 60.0
"""Seconds, where no rank is to be lost: processes import a tensor library."""
_DEADLINE = 4.0
"""Seconds of a group whose deadline is measured."""
_ORDERED = {
    "float32": ((1e8, 1.0, -1e8), (16777216.0, 1.0, 1.0), (0.1, 0.2, 0.3), (3e38, 3e38, -3e38)),
    "bfloat16": ((256.0, 1.0, 1.0), (1.0, 0.00390625, 0.00390625), (-256.0, -1.0, -1.0)),
    "float16": ((2048.0, 1.0, 1.0), (65504.0, 15.0, 0.5), (6e-8, 6e-8, 6e-8), (60000.0, 9e3, -9e3)),
}
"""Numbers of three ranks: their sums depend on order, precision, and how often is rounded."""


class CommunicatorConformance(ComponentConformance):
    """Subclass it for a communicator between CPUs::

        class TestMyCommunicator(CommunicatorConformance):
            component = "my_communicator"

    Three processes join a group, and compute what is compared with sums in this one.
    """

    slot: ClassVar[str] = "communicator"
    max_seconds: ClassVar[float] = 600
    """Ranks are waited for."""
    timeout: ClassVar[float] = 2.0
    """Deadline of groups that are to lose a rank."""
    patience: ClassVar[float] = 15.0
    """Seconds beyond the deadline that a busy machine may take."""
    num_kept: ClassVar[int] = 0
    """Descriptors that a library keeps for each group that was left."""
    large: ClassVar[int] = 3 << 20
    """Bytes of a tensor that is larger than any buffer."""

    # ------------------------------------------------------------------ groups

    @contextmanager
    def group(
        self, size: int = 3, timeout: float = _MEETING, absent: Sequence[int] = ()
    ) -> Iterator[_Group]:
        """A group that has been joined by all ranks but some, closed afterwards."""
        pool = _pool()
        processes = pool.take(size)
        group = _Group(processes, timeout)
        present = [rank for rank in range(size) if rank not in absent]
        try:
            for each in processes:  # alone first: a deadline is not for what a process imports
                self._join(each, _group_of_ranks(_MEETING))
                each.send("leave")
            for each in processes:
                assert [each.answer(_MEETING) for _ in range(2)] == [None, None]
            ranks = _group_of_ranks(timeout)
            for rank in present:
                self._join(processes[rank], ranks, rank, size)
            limit = timeout + self.patience
            group.joined = {rank: processes[rank].answer(limit) for rank in present}
            if not absent:
                assert not any(group.joined.values()), group.joined
            yield group
        except BaseException:
            for each in processes:
                each.is_lost = True  # its answers may still come
            raise
        finally:
            group.leave()
            pool.give_back(processes)

    def _join(self, process: RankProcess, group: RankGroup, rank: int = 0, size: int = 1) -> None:
        context = CommunicatorContext(group=group, rank=rank, size=size, device="cpu")
        process.send("join", self.record, self.options, context)

    def run(self, group: _Group, *calls: Sequence[Call]) -> list[list[Any]]:
        """Make each rank's calls; return their results, by rank."""
        for rank, each in enumerate(calls):
            group.start(rank, each)
        limit = (group.timeout + self.patience) * max(map(len, calls))
        found = [group.answer(rank, limit) for rank in range(len(calls))]
        assert all(isinstance(each, list) for each in found), found
        return found

    def other_settings(self) -> list[dict[str, Any]]:
        """The smallest ones: of others ranks might take gigabytes."""
        return super().other_settings()[:1]

    def check_written(self) -> None:
        super().check_written()
        with self.group(2) as group:
            parts = [_random("bfloat16", (self.large // 16 + 3,), rank) for rank in range(2)]
            self.check_all(group, parts, 1)

    # ------------------------------------------------------------------ results

    @pytest.mark.parametrize("dtype", ADDED)
    def test_adds_in_float32_in_the_order_of_the_ranks_and_rounds_once(self, dtype: str) -> None:
        with self.group() as group:
            numbers = list(zip(*_ORDERED[dtype], strict=True))
            parts = [_tensor(dtype, values) for values in numbers]
            self.check(group, ("all_reduce", parts, 0))

    def test_gathers_in_the_order_of_the_ranks(self) -> None:
        """Results stay as they are: those of like tensors are others. None need be contiguous."""
        for size in (3, 1):
            with self.group(size) as group:
                for dtype in (*ADDED, *OTHERS):
                    alike = [
                        [_random(dtype, (2, 3), 3 * n + r) for r in range(size)] for n in range(9)
                    ]
                    self.check(group, *(("all_gather", parts, 0) for parts in alike))
                turned = [(*_random("float32", (3, 5), rank), True) for rank in range(size)]
                self.check(group, ("all_gather", turned, 0))

    @pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1, 7)], ids=str)
    def test_takes_tensors_of_any_shape(self, shape: tuple[int, ...]) -> None:
        with self.group() as group:
            parts = [_random("bfloat16", shape, rank) for rank in range(3)]
            self.check_all(group, parts, 2, 0, 1)

    def test_takes_tensors_that_are_larger_than_a_buffer(self) -> None:
        with self.group() as group:
            for dtype, more in (("float32", 4), ("bfloat16", 2), ("uint8", 1)):
                shape = (self.large // more + 17,)
                parts = [_random(dtype, shape, rank) for rank in range(3)]
                self.check_all(group, parts, 1)

    def test_a_deadline_begins_with_the_operation(self) -> None:
        """After the ranks have had nothing to do for longer, at first and since the last one; one
        of them comes late."""
        seconds = max(2.0, self.timeout)
        pause, late = (("pause", each, 0) for each in (seconds / 2 + 0.1, 0.4))
        call: Call = ("all_reduce", _random("float32", (100,), 0), 0)
        with self.group(2, seconds) as group:
            for found in self.run(group, [pause, pause, call] * 2, [pause, pause, late, call] * 2):
                answers = [each for each in found if each is not None]
                said = f"after {seconds:g} s without calls: {answers}"
                assert [*map(type, answers)] == [bytes] * 2, said

    def test_groups_do_not_mix(self) -> None:
        with self.group(2) as one, self.group(2) as other:
            for seed in range(3):
                parts = [_random("float32", (70,), seed * 4 + rank) for rank in range(4)]
                calls: list[list[Call]] = [[("all_reduce", each, 0)] for each in parts]
                for rank in (0, 1):
                    one.start(rank, calls[rank])
                    other.start(rank, calls[rank + 2])
                for group, own in ((one, parts[:2]), (other, parts[2:])):
                    for rank in (0, 1):
                        assert group.answer(rank, _MEETING + self.patience) == [_sum(own)]

    def test_a_rank_of_another_group_is_not_let_in(self) -> None:
        """One that is left of a group which met at the same port, and comes first."""
        with self.group(3, self.timeout, absent=range(3)) as group:
            ranks, (first, second, other) = _group_of_ranks(self.timeout), group.processes
            self._join(other, replace(ranks, name=uuid4().hex), 1, 2)
            for rank, each in enumerate((first, second)):
                time.sleep(0.2)
                self._join(each, ranks, rank, 2)
            found = [each.answer(self.timeout + self.patience) for each in group.processes]
            assert found[:2] == [None, None] and found[2], (
                "of two ranks of a group, and one of a group of another name at the same port, "
                f"joining gives {found}: the name is compared, too"
            )

    def test_any_calls_give_what_they_should(self) -> None:
        """Calls of all kinds, dtypes and sizes, one after another in one group."""
        drawn = Random(0)
        for sizes in ((1, 2, 3), (6,)):  # of as many processes
            with ExitStack() as stack:
                groups = {size: stack.enter_context(self.group(size)) for size in sizes}
                for size in sizes * 4:
                    asked = list[_Asked]()
                    for number in range(drawn.randint(1, 6)):
                        kind = drawn.choice(("all_reduce", "all_gather", "broadcast"))
                        dtype = drawn.choice(ADDED if kind == "all_reduce" else (*ADDED, *OTHERS))
                        shape = (drawn.randint(0, 40), drawn.choice((1, 3, 64, 257)))
                        parts = [_random(dtype, shape, 7 * number + rank) for rank in range(size)]
                        asked.append((kind, parts, drawn.randint(0, 2) % size))
                    self.check(groups[size], *asked)

    def test_a_group_lives_for_more_calls_than_16_bits_count(self) -> None:
        with self.group(2) as group:
            found = self.run(group, *([("many", 70_000, 0)],) * 2)
            assert found == [[None]] * 2, f"in 70,000 calls: {found}"

    def growth(self) -> tuple[int, float, float]:
        """Bytes that calls leave in a rank."""
        calls: list[Call] = [("uses", (self.num_uses, self.package), 0)]
        with self.group() as group:
            left = [each for (each,) in self.run(group, calls, calls, calls)]
        assert all(isinstance(each, int) for each in left), left
        return max(left), 0.0, 0.0

    # ------------------------------------------------------------------ what is refused

    def test_refuses_what_cannot_be_added_or_written(self) -> None:
        """At once, so that no rank waits, and the group goes on; one of three ranks, and a group of
        one, too."""
        whole = _random("float32", (3, 5), 0)
        wrong: dict[str, Call] = {
            "a sum of integers": ("all_reduce", _random("int64", (3,), 0), 0),
            "a sum of a tensor that is not contiguous": ("all_reduce", (*whole, True), 0),
            "a broadcast of a tensor that is not contiguous": ("broadcast", (*whole, True), 0),
        }
        sources: tuple[Any, ...] = (3, -1, -3, 1 << 40, None)
        wrong |= {f"a broadcast from {each} of 3": ("broadcast", whole, each) for each in sources}
        calls = [*wrong.values()]
        for size, ranks in ((3, (0, 1, 2)), (3, (1,)), (1, (0,))):
            with self.group(size) as group:
                for rank in ranks:
                    group.start(rank, calls)
                for rank in ranks:
                    found = self.answer(group, rank, len(calls))
                    for what, each in zip(wrong, found, strict=True):
                        assert isinstance(each, tuple), f"rank {rank} of {size} takes {what}"
                        assert each[0] in ("TypeError", "ValueError"), (
                            f"rank {rank} of {size} answers {what} by {each[0]}: {each[1]}; it is "
                            "a TypeError or ValueError, raised before anything is exchanged"
                        )
                self.check(group, ("all_reduce", [whole] * size, 0))

    @pytest.mark.parametrize("what", ["operation", "dtype", "size", "nothing", "source"])
    def test_ranks_that_are_asked_for_different_things_say_so(self, what: str) -> None:
        one, kinds = _random("bfloat16", (6,), 0), ("all_reduce", "all_gather", "broadcast")
        unlike = {"dtype": _random("float16", (6,), 1)}
        unlike |= {"size": _random("bfloat16", (7,), 1), "nothing": _random("bfloat16", (0,), 1)}
        for place in range(2 if what == "source" else 0, 3):
            first: Call = (kinds[place], one, 0)
            other = kinds[place - (what == "operation")]
            second: Call = (other, unlike.get(what, one), int(what == "source"))
            with self.group(2, self.timeout) as group:
                for (found,) in self.run(group, [first], [second]):
                    self.check_lost(group, found, (0, 1))
                    assert "asked for" in found[1], f"{kinds[place]}(): {found[1]}"

    # ------------------------------------------------------------------ ranks that are lost

    @pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast"])
    def test_a_rank_that_does_not_come_is_named_within_the_deadline(self, kind: str) -> None:
        """On it too, when it comes."""
        calls: list[Call] = [(kind, _random("float32", (4,), 0), 0)]
        with self.group(3, self.timeout) as group:
            for rank in (0, 2):
                group.start(rank, calls)
            for rank in (0, 2):
                self.check_lost(group, self.answer(group, rank)[0], [1])
            group.start(1, calls)
            self.check_lost(group, self.answer(group, 1)[0])

    @pytest.mark.parametrize("is_slow", [False, True], ids=["late ranks", "slow pieces"])
    def test_nothing_puts_off_a_deadline(self, is_slow: bool) -> None:
        """One of three ranks arrives shortly before it, and one never does; or one of two takes a
        while for each call of a socket; a busy machine has three trials."""
        kind, shape = ("slow", (self.large,)) if is_slow else ("all_reduce", (4,))
        calls: list[Call] = [(kind, _random("float32", shape, 0), late) for late in (0, 1)]
        found: list[float] = []
        while not found or found[-1] > 1.6 * _DEADLINE:
            assert len(found) < 3, (
                f"a rank ends an operation after {found} s, and is to give up after {_DEADLINE:g}: "
                "the deadline is one, whichever ranks or pieces arrive meanwhile"
            )
            with self.group(3 - is_slow, _DEADLINE) as group:
                group.start(1, calls[:1])
                group.start(0, [("pause", 0.9 * _DEADLINE * (not is_slow), 0), calls[1]])
                lost = self.answer(group, 1, 2)[0]
                if not is_slow:
                    self.check_lost(group, lost)
                self.answer(group, 0, 2)
            found.append(lost[2])

    @pytest.mark.parametrize(
        "lost", ["SIGKILL 0", "SIGKILL 2", "SIGKILL 0 1 2", "SIGSTOP 0", "SIGSTOP 1"]
    )
    def test_ranks_that_die_or_stop_in_an_operation_are_named(self, lost: str) -> None:
        """And nothing stays, also of a group of which all are killed."""
        name, *numbers = lost.split()
        victims, before = {*map(int, numbers)}, named_memory()
        with self.group(3, self.timeout) as group:
            for rank in range(3):
                group.start(rank, [("repeat", _random("bfloat16", (9000,), rank), 0)])
            time.sleep(0.3)
            for victim in victims:
                group.processes[victim].signal(signal.Signals[name])
            for rank in {0, 1, 2} - victims:
                self.check_lost(group, self.answer(group, rank)[0], [*victims])
        check_no_memory_left(before)

    def test_a_rank_that_never_joins_is_named(self) -> None:
        before = named_memory()
        with self.group(3, self.timeout, absent=[1]) as group:
            for found in group.joined.values():
                self.check_lost(group, found and (*found[:2], 0.0, 0.0), [1])
        check_no_memory_left(before)

    def test_may_be_closed_twice_and_then_refuses(self) -> None:
        call: Call = ("all_reduce", _random("float32", (4,), 0), 0)
        for size in (2, 1):
            with self.group(size, self.timeout) as group:
                assert group.leave() == [None] * size
                assert group.leave() == [None] * size
                group.start(0, [call])
                self.check_lost(group, self.answer(group, 0)[0])

    def test_gives_back_what_it_holds_when_it_is_closed(self) -> None:
        """Descriptors, threads and memory; and the others wait no longer than the deadline."""
        calls: list[Call] = [
            (kind, _random("float32", (9000,), 0), 0)
            for kind in ("all_reduce", "all_gather", "broadcast")
        ]
        with self.group(3, self.timeout + self.patience) as group:
            self.run(group, *[calls] * 3)
            assert group.leave() == [None] * 3
            before = [self._held(each, "drop") for each in group.processes]
            ranks = _group_of_ranks(self.timeout)
            for rank, each in enumerate(group.processes):
                self._join(each, ranks, rank, 3)
            joined = [each.answer(_MEETING) for each in group.processes]
            assert joined == [None] * 3, joined
            self.run(group, *[calls] * 3)
            group.processes[1].send("leave")
            assert group.processes[1].answer(_MEETING) is None
            for rank in (0, 2):
                group.start(rank, calls[:1])
            for rank in (0, 2):
                self.check_lost(group, self.answer(group, rank)[0], [1])
            assert group.leave() == [None] * 3
            for rank, (each, held) in enumerate(zip(group.processes, before, strict=True)):
                until = time.monotonic() + 2
                while (left := self._left(held, self._held(each))) and time.monotonic() < until:
                    time.sleep(0.1)  # threads end by themselves
                assert not left, f"after close() rank {rank} still holds {left}"

    def _held(self, process: RankProcess, *more: str) -> dict[str, Any]:
        process.send("held", *more)
        found: dict[str, Any] = process.answer(_MEETING)
        return found

    def _left(self, before: dict[str, Any], after: dict[str, Any]) -> str:
        """Say what there is more of after a group than before it."""
        new = {n: e for n, e in after["descriptors"].items() if before["descriptors"].get(n) != e}
        is_open = len(after["descriptors"]) > len(before["descriptors"]) + self.num_kept
        said = [f"the descriptors {new}"] if is_open else []
        said += [
            f"{after[what]} {what}, and {before[what]} before it joined"
            for what in ("threads", "maps of shared memory")
            if after[what] > before[what]
        ]
        return "; ".join(said)

    # ------------------------------------------------------------------ what is checked

    def check(self, group: _Group, *asked: _Asked) -> None:
        """Check that all ranks get what they should, bit by bit, in calls one after the other."""
        size = len(group.processes)
        calls = ([(kind, parts[r], source) for kind, parts, source in asked] for r in range(size))
        for rank, results in enumerate(self.run(group, *calls)):
            for (kind, parts, source), got in zip(asked, results, strict=True):
                like, wanted = parts[0], _wanted(kind, parts, source)
                assert got == wanted, (
                    f"{kind}() of {like[:2]} from rank {source}, one of {len(asked)} calls, gives "
                    f"rank {rank} of {size} {_numbers(like, got)}, and is to give "
                    f"{_numbers(like, wanted)}; sums are added in float32, in the order of the "
                    "ranks, and rounded once"
                )

    def check_all(self, group: _Group, parts: Sequence[Values], *sources: int) -> None:
        """Check operations of all kinds with tensors."""
        kinds = ["all_reduce"] * (parts[0][0] in ADDED) + ["all_gather"]
        asked = [(kind, parts, 0) for kind in kinds]
        self.check(group, *asked, *(("broadcast", parts, source) for source in sources))

    def answer(self, group: _Group, rank: int, count: int = 1) -> list[Any]:
        """Return what a rank's calls gave, within so many deadlines."""
        return group.answer(rank, count * (group.timeout + self.patience))

    def check_lost(self, group: _Group, found: Any, named: Sequence[int] = ()) -> None:
        """Check that a call raised ``ExecutorLost`` in time, and named the ranks, and that every
        later operation failed at once."""
        assert isinstance(found, tuple), f"it returned {found!r}, and ranks are lost"
        kind, text, seconds, later = found
        assert kind == "ExecutorLost" or text.startswith("ExecutorLost"), f"{kind}: {text}"
        assert "\n" not in text, "the reason is to be one line"
        assert seconds < group.timeout + self.patience, f"it took {seconds:g} s: {text}"
        assert later < group.timeout, f"a later call took {later:g} s: the group was lost already"
        said = " ".join(re.findall(r"\branks?\W+(\d+(?:(?:\W|and)+\d+)*)", text))
        for rank in named:
            assert str(rank) in re.findall(r"\d+", said), f"rank {rank} is not named: {text}"


class _Group:
    """Processes that have joined a group."""

    def __init__(self, processes: Sequence[RankProcess], timeout: float) -> None:
        self.processes, self.timeout = processes, timeout
        self.joined: dict[int, Any] = {}
        """Errors that joining raised, by rank."""
        self._asked: set[int] = set()

    def start(self, rank: int, calls: Sequence[Call]) -> None:
        """Have a rank make calls."""
        self.processes[rank].send("call", list(calls))
        self._asked.add(rank)

    def answer(self, rank: int, seconds: float) -> list[Any]:
        """Return what the calls gave."""
        self._asked.discard(rank)
        found: list[Any] = self.processes[rank].answer(seconds)
        return found

    def leave(self) -> list[Any]:
        """Have all ranks leave; those that are still in a call are of no further use."""
        for rank in self._asked:
            self.processes[rank].is_lost = True
        present = [each for each in self.processes if not each.is_lost]
        left = []
        for each in present:
            each.send("leave")
            with suppress(AssertionError):
                left.append(each.answer(_MEETING))
        return left


@cache
def _pool() -> RankPool:
    """For all classes: a process imports the tensor library once."""
    return RankPool()


def _group_of_ranks(timeout: float) -> RankGroup:
    """Return a group on this machine, at a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return RankGroup(name=uuid4().hex, host="127.0.0.1", port=port, timeout=timeout)


# ---------------------------------------------------------------------------------- tensors


def _tensor(dtype: str, values: Sequence[float]) -> Values:
    torch = import_module("torch")
    tensor = torch.tensor(values, dtype=getattr(torch, dtype))
    return dtype, tuple(tensor.shape), values_of(tensor)


def _random(dtype: str, shape: Sequence[int], seed: int) -> Values:
    """Numbers of many magnitudes."""
    torch = import_module("torch")
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape).numel()
    tensor = torch.randn(size, generator=generator) * torch.logspace(-3, 3, max(1, size))[:size]
    tensor = (tensor > 0) if dtype == "bool" else tensor.abs() if dtype == "uint8" else tensor
    return dtype, tuple(shape), values_of(tensor.to(getattr(torch, dtype)))


def _bytes(tensor: Values) -> bytes:
    return values_of(tensor_of(*tensor))


def _sum(parts: Sequence[Values]) -> bytes:
    """Return the sum of tensors: in float32, in order, rounded once."""
    tensors = [tensor_of(*each) for each in parts]
    total = tensors[0].float()
    for each in tensors[1:]:
        total = total + each.float()
    return values_of(total.to(tensors[0].dtype))


def _wanted(kind: str, parts: Sequence[Values], source: int) -> bytes:
    """Return what a call of all ranks is to give."""
    if kind == "all_reduce":
        return _sum(parts)
    return b"".join(map(_bytes, parts)) if kind == "all_gather" else _bytes(parts[source])


def _numbers(like: Values, found: Any) -> Any:
    """Return bytes as numbers, for messages; an error as it is."""
    if not found or not isinstance(found, bytes):
        return found
    numbers = tensor_of(like[0], (-1,), found).tolist()
    return [*numbers[:6], "..."][: len(numbers)]
