"""Completes the items of a workload on an engine, each when it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paged_core.clock import Clock, SystemClock
from paged_core.errors import EngineError
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.text.generation import Generation
from paged_plugins.bench.turns import full_prompt
from paged_plugins.bench.workloads import Item
from paged_plugins.workloads.arrival_queue import ArrivalQueue


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished item."""

    generation: Generation
    arrival: float
    """On the engine's clock; the engine got it up to a step later."""


def complete(llm: LLM, items: Sequence[Item], advance: Callable[[], None]) -> list[Completed]:
    """Return the items completed, in their order.

    An item arrives at its time, one that follows another so long after the end of that. Where
    nothing is to be done, the next arrival is waited for.

    Args:
        advance: called once for each item that ends.

    Raises:
        RequestError: an item does not fit the engine.
        EngineError: a request failed, or ended early.
    """
    run = _Run(llm, items)
    try:
        while not run.ended:
            run.step(advance)
    finally:
        llm.abort(run.under_way.values())
    return [run.done[place] for place in range(len(items))]


class _Run:
    """The state of a run."""

    def __init__(self, llm: LLM, items: Sequence[Item]) -> None:
        self.under_way: dict[int, Generation] = {}
        """By place among the items."""
        self.done: dict[int, Completed] = {}
        self._llm = llm
        self._items = items
        clock = llm.engine.clock
        self._clock = clock if isinstance(clock, Clock) else SystemClock()
        self._to_come = ArrivalQueue[float, int]()
        """Places, by the time on the engine's clock."""
        self._arrivals: dict[int, float] = {}
        self._places: dict[str, int] = {}
        self._outputs: dict[int, list[int]] = {}
        self._followers: dict[int, list[int]] = {}
        now = self._clock()
        for place, item in enumerate(items):
            if item.follows is None:
                self._to_come.add(now + item.at, place, place)
            else:
                self._followers.setdefault(item.follows, []).append(place)

    @property
    def ended(self) -> bool:
        return not self.under_way and not self._to_come

    def step(self, advance: Callable[[], None]) -> None:
        """Add what has arrived and run a step, or wait for the next arrival."""
        now = self._clock()
        for arrival, place in self._to_come.due(now):
            self._add(arrival, place)
        following = self._to_come.next_at
        if not self.under_way and following is not None:
            self._clock.sleep(following - now)
            return
        for group in self._llm.driver.step().finished:
            self._end(self._places.pop(group.id))
            advance()

    def _add(self, arrival: float, place: int) -> None:
        item = self._items[place]
        deadline = None if item.deadline is None else arrival + item.deadline
        prompt = full_prompt(self._items, place, self._outputs)
        generation = self._llm.add(prompt, _sampling(item), deadline=deadline, **item.fields)
        self.under_way[place] = generation
        self._arrivals[place] = arrival
        self._places[generation.group.id] = place

    def _end(self, place: int) -> None:
        generation = self.under_way.pop(place)
        self.done[place] = Completed(generation, self._arrivals.pop(place))
        self._outputs[place] = _tokens(generation.group, self._items[place])
        for following in self._followers.get(place, ()):
            at = self._clock() + self._items[following].at
            self._to_come.add(at, following, following)


def _sampling(item: Item) -> SamplingParams:
    """Greedy; several sequences of an item are sampled, or they would be equal."""
    return SamplingParams(
        n=item.n,
        temperature=0.0 if item.n == 1 else 1.0,
        max_tokens=item.num_output,
        ignore_eos=True,
    )


def _tokens(group: SequenceGroup, item: Item) -> list[int]:
    """Return the generated tokens of the first sequence.

    Raises:
        EngineError: the request failed, or a sequence has fewer tokens than the item asks for.
    """
    for sequence in group.sequences:
        if sequence.error is not None or len(sequence.output) != item.num_output:
            raise EngineError(
                f"request {group.id} ended after {len(sequence.output)} of {item.num_output} "
                f"tokens ({sequence.error or sequence.finish_reason}); raise max_model_len or "
                "num_blocks"
            )
    return group.sequences[0].output
