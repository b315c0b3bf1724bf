"""Requests of a workload as they arrive, and the loop in which an engine serves them.

:class:`Arrivals` knows nothing of what serves its requests, nor on which clock: a loop over an
engine (:class:`ServingLoop`), a replay, a simulated cluster, and a client that sends them over a
network ask it what is due, and tell it what has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final, NamedTuple

from paged_core.engine.clock import Clock, SystemClock
from paged_core.engine.driver import EngineDriver
from paged_core.engine.outcome import StepOutcome
from paged_core.errors import AdmissionRefused, PluginError, RequestError
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState
from paged_plugins.workloads.request import WorkloadRequest, token_ids

_TEMPERATURE = 20.0
"""Temperature of several sequences: so high that these differ whatever the model, as they do in a
simulation; equal ones would share blocks."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has arrived, with its whole prompt."""

    request: WorkloadRequest
    at: float
    """Seconds from the start of the run."""
    prompt: tuple[int, ...]
    """Token ids."""

    def asked(
        self,
        start: float,
        *,
        sampling: SamplingParams | None = None,
        deadline: float | None = None,
        delay: float = 0.0,
    ) -> Request:
        """Return what an engine is to serve.

        Args:
            start: seconds on the engine's clock at which the run started.
            sampling: ``None``: :func:`exact_sampling`.
            deadline: on the engine's clock, where it does not follow from the arrival.
            delay: seconds by which the engine is told a later arrival, to order those at one time.
        """
        asked, arrival = self.request, start + self.at
        if deadline is None and asked.deadline is not None:
            deadline = arrival + asked.deadline
        return Request(
            id=asked.id,
            prompt=self.prompt,
            sampling=sampling or exact_sampling(asked.n, asked.output),
            priority=asked.priority,
            arrival=arrival + delay,
            cache_salt=asked.cache_salt,
            tenant=asked.tenant,
            session=asked.session,
            deadline=deadline,
        )


REFUSED: Final = "refused"
"""Reason for the end of a request that the admission refused, beside those of ``FinishReason``."""


class Refusal(NamedTuple):
    """Why an engine did not take on a request."""

    reason: str
    end: str
    """``error``: a component raised over it; :data:`REFUSED`; ``ignored``: it can never be
    served."""

    @classmethod
    def of(cls, error: RequestError | PluginError) -> Refusal:
        """Return what an engine's ``add`` says by raising."""
        if isinstance(error, AdmissionRefused):
            return cls(str(error), REFUSED)
        is_error = isinstance(error, PluginError)
        return cls(str(error), (FinishReason.ERROR if is_error else FinishReason.IGNORED).value)

    @property
    def is_error(self) -> bool:
        """True if a component raised."""
        return self.end == FinishReason.ERROR.value


@cache
def exact_sampling(n: int, output: int) -> SamplingParams:
    """Parameters under which ``n`` sequences generate ``output`` tokens each."""
    return SamplingParams(
        n=n,
        temperature=0.0 if n == 1 else _TEMPERATURE,
        max_tokens=output,
        ignore_eos=True,
        detokenize=False,
    )


def deciding_sequence(group: SequenceGroup) -> SequenceState:
    """Return the sequence that says how a request ended: one with an error, else the first."""
    ended = group.sequences
    return next((each for each in ended if each.finish_reason is FinishReason.ERROR), ended[0])


class Arrivals:
    """Requests that have not arrived yet, by the time at which they do.

    Those that follow another one arrive when they are told of its end. Of requests that arrive at
    one time, the one that was drawn or told of earlier comes first.

    Args:
        drawn: requests that follow no other, by their time ``at``; they are drawn as they arrive,
            so that memory does not grow with the length of the workload.
        vocab_size: token ids are below it; ``None``: any token id is served, and content ids are
            token ids.
    """

    def __init__(self, drawn: Iterable[WorkloadRequest], vocab_size: int | None = None) -> None:
        self._drawn = iter(drawn)
        self._vocab_size = vocab_size
        self._numbers = count()
        self._heap: list[tuple[float, int, WorkloadRequest, Sequence[int]]] = []
        """Times, requests, and the tokens that they follow; of the drawn ones the next alone."""
        self._draw_next()

    @property
    def next_at(self) -> float | None:
        """Seconds from the start at which the next request arrives; ``None``: none will."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Arrival]:
        """Take out the requests that arrive until ``now``, in seconds from the start; also those
        that are added meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            at, _, request, before = heappop(self._heap)
            if not before:
                self._draw_next()
            yield self.arrival(request, at, before)

    def follow(self, request: WorkloadRequest, ended: float, tokens: Sequence[int]) -> None:
        """Let the followers of a request arrive after its end.

        Args:
            ended: seconds from the start.
            tokens: its prompt and the answer of its first sequence.
        """
        for follower in request.followers:
            heappush(self._heap, (ended + follower.at, next(self._numbers), follower, tokens))

    def add(self, request: WorkloadRequest) -> None:
        """Let a request arrive at its time ``at``, beside those that are drawn."""
        heappush(self._heap, (request.at, next(self._numbers), request, ()))

    def arrival(self, request: WorkloadRequest, at: float, before: Sequence[int] = ()) -> Arrival:
        """Return a request as it arrives at a time; ``before``: the tokens that it follows."""
        return Arrival(request, at, (*before, *token_ids(request.prompt, self._vocab_size)))

    def _draw_next(self) -> None:
        request = next(self._drawn, None)
        if request is not None:
            heappush(self._heap, (request.at, next(self._numbers), request, ()))


class ServingLoop(ABC):
    """Offers requests to an engine when they arrive, and steps it until all have ended.

    Time is the engine's, virtual or this machine's: where nothing is to be done, its clock sleeps
    until the next arrival. A subclass says what becomes of the requests.

    Args:
        driver: of the engine, which serves nothing else.
    """

    def __init__(self, driver: EngineDriver, arrivals: Arrivals) -> None:
        clock = driver.engine.clock
        self.driver = driver
        self.engine = driver.engine
        self.arrivals = arrivals
        self.in_flight: dict[str, Arrival] = {}
        """By id, the requests that have arrived and not ended."""
        self._clock = clock if isinstance(clock, Clock) else SystemClock()
        self.start = self._clock()
        """Seconds on the engine's clock."""

    def run(self) -> None:
        """Serve all requests.

        Raises:
            EngineError: the scheduler plans nothing although requests wait.
        """
        engine, arrivals, clock, start = self.engine, self.arrivals, self._clock, self.start
        while True:
            now = clock() - start
            for arrival in arrivals.due(now):
                self._offer(arrival, now)
            held_for, next_at = engine.held_for, arrivals.next_at
            if engine.has_unfinished and not held_for:
                outcome = self.step()
                ended = clock() - start
                self.stepped(outcome, now, ended)
                for group in outcome.finished:
                    self._end(group, ended)
            elif held_for or next_at is not None:
                pause = inf if next_at is None else next_at - now
                clock.sleep(min(pause, held_for or pause))
            else:
                return

    def add(self, arrival: Arrival) -> None:
        """Give the engine a request.

        Raises:
            RequestError: it can never be served.
            PluginError: a component raised over it.
        """
        self.driver.add(arrival.asked(self.start))

    def step(self) -> StepOutcome:
        """Run a step of the engine; pause if nothing could be planned.

        Raises:
            EngineError: that has been so for too long.
        """
        return self.driver.step()

    @abstractmethod
    def refused(self, arrival: Arrival, now: float, refusal: Refusal) -> None:
        """The engine did not take on a request; those that follow it do not arrive."""

    @abstractmethod
    def ended(self, group: SequenceGroup, arrival: Arrival) -> None:
        """A request has ended; ``group`` is as it stands after that."""

    def stepped(self, outcome: StepOutcome, began: float, ended: float) -> None:  # noqa: B027
        """A step was run; times are seconds from the start."""

    def _offer(self, arrival: Arrival, now: float) -> None:
        try:
            self.add(arrival)
        except (RequestError, PluginError) as error:
            self.refused(arrival, now, Refusal.of(error))
        else:
            self.in_flight[arrival.request.id] = arrival

    def _end(self, group: SequenceGroup, now: float) -> None:
        """Let those arrive that follow a request which has ended."""
        arrival = self.in_flight.pop(group.id)
        self.ended(group, arrival)
        if arrival.request.followers:
            self.arrivals.follow(arrival.request, now, tuple(group.sequences[0].tokens))
