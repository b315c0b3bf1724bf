"""Prefixes: what the prompts of a workload have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from paged_plugins.workloads.amount import Amount, Fixed
from paged_plugins.workloads.spec_model import SpecModel

MOST_PREFIXES = 100_000
"""Shared texts of a workload, each of which takes memory for its whole run."""
MOST_FAMILY = 10_000
"""Requests that follow one first request, directly or not."""

Prefixes_ = Annotated[int, Field(ge=1, le=MOST_PREFIXES)]


class SystemPrompts(SpecModel):
    """Prompts that all begin with one of ``count`` texts."""

    tokens: Amount
    count: Prefixes_ = 1
    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """How often one of these is used, compared with the other entries of a list."""
    exponent: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Popularity among the ``count``: Zipf with this exponent; 0: all are used alike."""


class FewShot(SpecModel):
    """Before each question, ``examples`` of a pool, in random order."""

    examples: Annotated[int, Field(ge=1, le=1000)]
    pool: Prefixes_
    tokens: Amount

    @model_validator(mode="after")
    def _enough(self) -> FewShot:
        if self.pool < self.examples:
            raise PydanticCustomError("pool", "the pool has fewer examples than a prompt takes")
        return self


class Conversation(SpecModel):
    """Turns: each continues the prompt and answer of the one before, after a think time."""

    turns: Amount
    think: Amount = Fixed(value=0)
    """Seconds from the end of an answer to the next turn."""


class Tree(SpecModel):
    """Each answer is continued by ``branching`` requests, down to ``depth`` answers in a row.

    As in tree of thoughts (Yao et al., NeurIPS 2023) without its choice of branches.
    """

    depth: Annotated[int, Field(ge=1, le=64)]
    branching: Annotated[int, Field(ge=1, le=1000)]
    think: Amount = Fixed(value=0)

    @model_validator(mode="after")
    def _bounded(self) -> Tree:
        if self.size > MOST_FAMILY:
            raise PydanticCustomError(
                "tree", f"the tree has more than {MOST_FAMILY:,} requests; lower depth or branching"
            )
        return self

    @property
    def size(self) -> int:
        """Requests of a whole tree."""
        return sum(self.branching**level for level in range(self.depth))


def _listed(value: Any) -> Any:
    """Read ``512`` and one mapping as a list of one entry; an amount stands for its tokens."""
    entries = value if isinstance(value, list | tuple) else [value]
    return tuple(
        each
        if isinstance(each, SystemPrompts) or (isinstance(each, dict) and "tokens" in each)
        else {"tokens": each}
        for each in entries
    )


class Prefixes(SpecModel):
    """The parts can be combined: a system prompt, then examples, then the turns.

    Lengths are those of what comes after the shared parts.
    """

    system: Annotated[
        tuple[SystemPrompts, ...], BeforeValidator(_listed), Field(max_length=1000)
    ] = ()
    few_shot: FewShot | None = None
    conversation: Conversation | None = None
    tree: Tree | None = None

    @model_validator(mode="after")
    def _one_structure(self) -> Prefixes:
        if self.conversation and self.tree:
            raise PydanticCustomError(
                "structure", "`conversation` and `tree` exclude each other; give one of them"
            )
        return self

    @property
    def num_shared(self) -> int:
        """Shared texts."""
        pool = self.few_shot.pool if self.few_shot else 0
        return pool + sum(each.count for each in self.system)


def _none(value: Any) -> Any:
    return Prefixes() if value == "none" or value is None else value


PrefixesSpec = Annotated[Prefixes, BeforeValidator(_none)]
"""``none``, or a mapping with the keys of :class:`Prefixes`."""
