"""A class of requests: their lengths, what their prompts share, who sends them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Strict, Tag, model_validator
from pydantic_core import PydanticCustomError

from paged_plugins.workloads.amount import Amount, Count, Fixed, LogNormal, SpecModel
from paged_plugins.workloads.arrivals import Arrivals
from paged_plugins.workloads.request import MOST_FAMILY
from paged_plugins.workloads.traces.files import NO_REQUEST, TokenCount, TraceError
from paged_plugins.workloads.traces.trace import TraceSpec

LengthDraw = Callable[[float, float], tuple[int, int]]
"""From two shares (0 to 1, below 1), tokens of a prompt and of its answer."""
_MOST_PAIRS = 1_000_000
MOST_PREFIXES = 100_000
"""Shared texts of a workload, each of which takes memory for its whole run."""


class Lengths(SpecModel):
    """Tokens of a prompt of its own (of a turn: what is new in it), and of an answer."""

    prompt: Count
    output: Count

    def sampler(self, count_tokens: TokenCount) -> LengthDraw:
        """Return what draws them, independently of each other."""
        prompt, output = self.prompt.whole, self.output.whole
        return lambda first, second: (prompt(first), output(second))


class TraceLengths(SpecModel):
    """Lengths of the requests of a trace, each as likely as the others."""

    trace: TraceSpec

    def sampler(self, count_tokens: TokenCount) -> LengthDraw:
        """Return what draws the two lengths of a request of the trace.

        The first million of its requests are read now.

        Raises:
            TraceError: the trace is broken, or has no request.
        """
        families = self.trace.requests(count_tokens)
        requests = (request for first in families for request in first.family())
        lengths = array("q")
        for request in islice(requests, _MOST_PAIRS):
            lengths.extend((request.num_new, request.output))
        num_pairs = len(lengths) // 2
        if not num_pairs:
            raise TraceError(self.trace.file, None, NO_REQUEST)

        def draw(first: float, _: float) -> tuple[int, int]:
            place = 2 * int(first * num_pairs)
            return lengths[place], lengths[place + 1]

        return draw


NAMED_LENGTHS = {
    "sharegpt": Lengths(
        prompt=LogNormal(median=98.52, sigma=1.2, min=4, max=1024),
        output=LogNormal(median=317.28, sigma=1.0, min=4, max=1024),
    ),
    "alpaca": Lengths(
        prompt=LogNormal(median=17.02, sigma=0.5, min=4, max=256),
        output=LogNormal(median=37.25, sigma=1.0, min=1, max=512),
    ),
}
"""Log-normal distributions with the mean lengths that the paper of PagedAttention publishes (Kwon
et al., SOSP 2023, Figure 11): ShareGPT 161.31 tokens in and 337.99 out, Alpaca 19.31 and 58.45.

The means are published, the spread and the bounds are not. ``sigma`` is our choice. The bounds of
ShareGPT are those to which benchmarks cut it: prompts of 4 to 1,024 tokens, 2,048 in all. The
medians follow from these: with them, the mean between the bounds is the published one."""


def _named(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in NAMED_LENGTHS:
        names = ", ".join(NAMED_LENGTHS)
        raise PydanticCustomError("lengths", f"there are {names}, and `{{prompt: 64, output: 16}}`")
    return NAMED_LENGTHS[value]


def _source(value: Any) -> str:
    traced = "trace" in value if isinstance(value, Mapping) else isinstance(value, TraceLengths)
    return "trace" if traced else "amounts"


LengthsSpec = Annotated[
    Annotated[Lengths, Tag("amounts")] | Annotated[TraceLengths, Tag("trace")],
    Discriminator(_source),
    BeforeValidator(_named),
]
"""``sharegpt``, ``alpaca``, ``{prompt: AMOUNT, output: AMOUNT}`` or ``{trace: trace.csv}``."""


Prefixes_ = Annotated[int, Field(ge=1, le=MOST_PREFIXES)]


class SystemPrompts(SpecModel):
    """Prompts that all begin with one of ``count`` texts."""

    tokens: Count
    count: Prefixes_ = 1
    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Frequency of these requests, compared with the other entries of a list."""
    exponent: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Popularity among the ``count``: Zipf with this exponent; 0: all are used alike."""


class FewShot(SpecModel):
    """Before each question, ``examples`` of a pool, in random order."""

    examples: Annotated[int, Field(ge=1, le=1000)]
    pool: Prefixes_
    tokens: Count

    @model_validator(mode="after")
    def _enough(self) -> FewShot:
        if self.pool < self.examples:
            raise PydanticCustomError("pool", "the pool has fewer examples than a prompt takes")
        return self


class Conversation(SpecModel):
    """Turns: each continues the prompt and answer of the one before, after a think time."""

    turns: Count
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


Weight = Annotated[float, Field(gt=0, le=1e9)]
Priority = Annotated[int, Field(gt=-(2**63), lt=2**63)]


def _weights(value: Any) -> Any:
    """Read one value, or a list of equally frequent ones, as weights."""
    if isinstance(value, Mapping):
        return value
    return dict.fromkeys(value if isinstance(value, list | tuple) else [value], 1.0)


class RequestClass(SpecModel):
    """Distributions of what requests of one class ask."""

    lengths: LengthsSpec = NAMED_LENGTHS["sharegpt"]
    prefixes: PrefixesSpec = Prefixes()
    n: Count = Fixed(value=1)
    """Sequences that are sampled for each request."""
    tenants: Annotated[
        dict[str, Weight], BeforeValidator(_weights), Field(min_length=1, max_length=100_000)
    ] = Field(default={"": 1.0})
    """Each first request belongs to one of these, with those that follow it."""
    priorities: Annotated[
        dict[Priority, Weight], BeforeValidator(_weights), Field(min_length=1, max_length=1000)
    ] = Field(default={0: 1.0})
    """Drawn as tenants are. Lower is more urgent."""
    deadline: Amount | None = None
    """Seconds after its arrival by which each request wants to be finished."""
    cache_salt: Literal["none", "tenant", "session"] = "none"
    """Among whom cached blocks are shared: all, the tenant's requests, those of one session."""
    max_tokens: Annotated[int, Strict(), Field(ge=2, le=10_000_000)] | None = None
    """Longest prompt and answer together: a conversation ends before it would be longer, and a
    drawn first request is shortened, first its answer, then its prompt. A class whose shortest
    request is longer is refused."""


class MixedClass(RequestClass):
    """One of the classes that a workload mixes."""

    weight: Weight = 1.0
    """Its share of the workload's arrivals, compared with the other classes that have one."""
    arrivals: Arrivals | None = None
    """A process of its own instead of that share."""
    first: Annotated[int, Strict(), Field(ge=1, le=10**9)] | None = None
    """With arrivals of its own: so many first requests, and no more."""

    @model_validator(mode="after")
    def _share_or_process(self) -> MixedClass:
        given = self.model_fields_set
        if self.arrivals is not None and "weight" in given:
            raise PydanticCustomError("weight", "`weight` and `arrivals` exclude each other")
        if self.arrivals is None and self.first is not None:
            raise PydanticCustomError("first", "`first` needs `arrivals` of this class")
        return self
