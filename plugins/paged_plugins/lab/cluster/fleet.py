"""The replicas of a cluster, whichever processes they are in."""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from math import inf
from multiprocessing.connection import Connection
from operator import itemgetter
from types import TracebackType
from typing import Any, Protocol, Self

from paged_core.errors import EngineError, error_text
from paged_core.interfaces.executor import Capacity
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.lab.cluster.replica import ReplicaCounts
from paged_plugins.lab.cluster.shard import Progress, Shard, StepEnd, build_shard
from paged_plugins.lab.runs.arrivals import Arrival
from paged_plugins.lab.tasks.pool import start_worker


class ShardLink(Protocol):
    """Calls the methods of a :class:`~paged_plugins.lab.cluster.shard.Shard`, wherever it is."""

    def send(self, method: str, /, *arguments: Any) -> None:
        """Call a method; calls are answered in their order."""

    def receive(self) -> Any:
        """Return the answer to the first call that has none yet, or raise what it raised."""


class LocalLink:
    """Calls a shard in this process, which answers at once."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._answers: deque[Any] = deque()

    def send(self, method: str, /, *arguments: Any) -> None:
        self._answers.append(getattr(self._shard, method)(*arguments))

    def receive(self) -> Any:
        return self._answers.popleft()


class ShardProcess:
    """Calls a shard that a process of its own builds; leaving it ends the process.

    Args:
        numbers: of its replicas.
    """

    def __init__(self, numbers: range, settings: EngineSettings, registry: Registry) -> None:
        self._numbers = numbers
        self._process, self._pipe = start_worker(
            _serve, numbers, settings, registry, name="cluster worker"
        )

    @property
    def pid(self) -> int | None:
        """Number of the process."""
        return self._process.pid

    def send(self, method: str, /, *arguments: Any) -> None:
        with suppress(OSError):  # it has died, which its answer will say
            self._pipe.send_bytes(pickle.dumps((method, arguments), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Return an answer.

        Raises:
            EngineError: the process has died.
            Exception: what the shard raised.
        """
        try:
            answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self._process.join()
            first, last = self._numbers[0], self._numbers[-1]
            raise EngineError(
                f"the process of replicas {first} to {last} ended with status "
                f"{self._process.exitcode}; was memory short?"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._pipe.close()  # where a process ends that waits for a call
        self._process.join()


def _serve(pipe: Connection, numbers: range, settings: EngineSettings, registry: Registry) -> None:
    """Build a shard and answer calls, until the pipe is closed or something raises."""
    try:
        with closing(build_shard(numbers, settings, registry)) as shard:
            _answer_calls(pipe, shard)
    except Exception as error:  # noqa: BLE001 - raised where the call was made
        with suppress(OSError):
            pipe.send_bytes(_pickled(error))


def _answer_calls(pipe: Connection, shard: Shard) -> None:
    while True:
        try:
            call = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        method, arguments = pickle.loads(call)
        answer = pickle.dumps(getattr(shard, method)(*arguments), pickle.HIGHEST_PROTOCOL)
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def _pickled(error: Exception) -> bytes:
    """Return an error, or what it says if it cannot be pickled."""
    try:
        found = pickle.dumps(error)
        pickle.loads(found)
    except Exception:  # noqa: BLE001 - code of a plugin
        return pickle.dumps(EngineError(error_text(error)))
    return found


class Fleet:
    """All replicas, as one shard that serves its parts beside each other.

    Args:
        shards: with the numbers of their replicas, in the order of these.
    """

    def __init__(self, shards: Sequence[tuple[range, ShardLink]]) -> None:
        self._shards = [shard for _, shard in shards]
        self._shard_of = [shard for numbers, shard in shards for _ in numbers]
        self._asked = self._shards[0]
        """To whose replicas the last request was added."""
        self._until = 0.0
        self.next_at = inf
        """No step ends before; infinite if none will."""

    def capacity(self) -> Capacity:
        """Return that of each engine."""
        found: list[Capacity] = self._ask("capacity")
        return found[0]

    def add(self, number: int, arrival: Arrival) -> None:
        """A request arrives at the time that the replicas have come to; see :meth:`refusal`."""
        followers = arrival.request.followers
        if followers:
            arrival = replace(arrival, request=replace(arrival.request, followers=()))
        self._asked = self._shard_of[number]
        self._asked.send("add", number, arrival, bool(followers))
        self.next_at = self._until

    def refusal(self) -> str | None:
        """Return why the request that was added last is refused, if it is.

        It is called once for each, before another is added, and before :meth:`ends`.
        """
        reason: str | None = self._asked.receive()
        return reason

    def start(self, until: float) -> None:
        """Serve all that happens before a time, and end the steps that end at it."""
        self._until = until
        for shard in self._shards:
            shard.send("run", until)

    def ends(self) -> Iterator[StepEnd]:
        """Yield the steps that end, in their order. :attr:`next_at` is known after that."""
        running, waiting = self._shards, list[StepEnd]()
        self.next_at = inf
        while running:
            behind, known_until = list[ShardLink](), inf
            for shard in running:
                progress: Progress = shard.receive()
                waiting += progress.ends
                if progress.is_complete:
                    self.next_at = min(self.next_at, progress.next_at)
                else:
                    known_until = min(known_until, progress.next_at)
                    behind.append(shard)
            for shard in behind:
                shard.send("run", self._until)
            waiting.sort()
            num_known = bisect_left(waiting, known_until, key=itemgetter(0))
            yield from waiting[:num_known]
            del waiting[:num_known]
            running = behind

    def totals(self) -> tuple[list[ReplicaCounts], Counter[int]]:
        """The run has ended: return the counts of each replica, and the times between tokens."""
        counts, token_gaps = list[ReplicaCounts](), Counter[int]()
        found: list[tuple[Sequence[ReplicaCounts], Mapping[int, int]]] = self._ask("totals")
        for of_replicas, gaps in found:
            counts += of_replicas
            token_gaps.update(gaps)
        return counts, token_gaps

    def _ask(self, method: str) -> list[Any]:
        for shard in self._shards:
            shard.send(method)
        return [shard.receive() for shard in self._shards]
