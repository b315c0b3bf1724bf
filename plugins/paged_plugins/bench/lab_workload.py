"""A workload of the lab as items of a benchmark: what is simulated can be sent to a live engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from paged_core.interfaces.tokenizer import Tokenizer
from paged_plugins.bench.workloads import Item
from paged_plugins.workloads.content import token_ids
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.spec import WorkloadSpec
from paged_plugins.workloads.traces.token_count import TokenCount, estimated_tokens

_SHIFT = 10**17
"""Between the content ids of two repeats: more than any workload has."""


@dataclass(frozen=True, slots=True)
class LabWorkload:
    """The requests of a specification with their arrivals, drawn with seed 0."""

    spec: WorkloadSpec
    count_tokens: TokenCount = estimated_tokens

    @classmethod
    def counted(cls, spec: WorkloadSpec, tokenizer: Tokenizer | None) -> Self:
        """Return one whose texts, if a trace has some, are counted with a model's tokenizer."""
        if tokenizer is None:
            return cls(spec)
        encode = tokenizer.encode
        return cls(spec, lambda text: len(encode(text, add_special_tokens=False)))

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.spec.name

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return self.spec.about

    def items(self, repeat: int = 0, *, vocab_size: int = 10_000) -> list[Item]:
        """Return the requests, each before those that follow it; repeats differ in their tokens.

        Raises:
            TraceError: a trace is broken.
        """
        places: dict[str, int] = {}
        """Of the requests that are followed, by id."""
        items: list[Item] = []
        for first in self.spec.build(self.count_tokens).draw(0):
            for request in first.family():
                follows = places.pop(request.id, None)
                items.append(_item(request, follows, repeat * _SHIFT, vocab_size))
                places |= dict.fromkeys((each.id for each in request.followers), len(items) - 1)
        return items


def _item(request: WorkloadRequest, follows: int | None, shift: int, vocab_size: int) -> Item:
    parts = [range(part.start + shift, part.stop + shift) for part in request.prompt]
    return Item(
        prompt=token_ids(parts, vocab_size),
        num_output=request.output,
        follows=follows,
        at=request.at,
        n=request.n,
        deadline=request.deadline,
        fields={
            "priority": request.priority,
            "tenant": request.tenant,
            "cache_salt": request.cache_salt,
        },
    )
