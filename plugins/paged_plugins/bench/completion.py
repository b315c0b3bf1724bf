"""Completes the items of a workload on an engine; later turns start when the previous one ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paged_core.errors import EngineError
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from paged_core.text.generation import Generation
from paged_plugins.bench.turns import full_prompt
from paged_plugins.bench.workloads import Item


def complete(llm: LLM, items: Sequence[Item], advance: Callable[[], None]) -> list[Generation]:
    """Return the finished generation of each item.

    All first turns arrive at once; a later turn arrives as soon as the previous one has ended.

    Args:
        advance: called once for each item that ends.

    Raises:
        RequestError: an item does not fit the engine.
        EngineError: a request failed, or ended early.
    """
    successors = {
        item.follows: place for place, item in enumerate(items) if item.follows is not None
    }
    first = [place for place, item in enumerate(items) if item.follows is None]
    started = llm.submit(
        [items[place].prompt for place in first], [_sampling(items[place]) for place in first]
    )
    pending = dict(zip(first, started, strict=True))
    done: dict[int, Generation] = {}
    outputs: dict[int, list[int]] = {}
    places = {generation.group.id: place for place, generation in pending.items()}
    try:
        while pending:
            for group in llm.driver.step().finished:
                place = places[group.id]
                done[place] = pending.pop(place)
                outputs[place] = _tokens(done[place], items[place])
                advance()
                following = successors.get(place)
                if following is not None:
                    prompt = full_prompt(items, following, outputs)
                    pending[following] = llm.add(prompt, _sampling(items[following]))
                    places[pending[following].group.id] = following
    finally:
        llm.abort(pending.values())
    return [done[place] for place in range(len(items))]


def _sampling(item: Item) -> SamplingParams:
    return SamplingParams(max_tokens=item.num_output, ignore_eos=True)


def _tokens(generation: Generation, item: Item) -> list[int]:
    """Return the generated tokens.

    Raises:
        EngineError: the request failed, or generated fewer tokens than the item asks for.
    """
    sequence = generation.group.sequences[0]
    if sequence.error is not None or len(sequence.output) != item.num_output:
        raise EngineError(
            f"request {generation.group.id} ended after {len(sequence.output)} of "
            f"{item.num_output} tokens ({sequence.error or sequence.finish_reason}); raise "
            "max_model_len or num_blocks"
        )
    return sequence.output
