"""The mutable state that the core owns: sequences, the groups they form, their block tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from enum import Enum, auto

from paged_core.ids import BlockId, BlockKey, SeqId
from paged_core.request import FinishReason, Request

__all__ = [
    "BlockId",
    "BlockTable",
    "SeqId",
    "SequenceGroup",
    "SequenceState",
    "Status",
    "StopCheck",
]

StopCheck = Callable[["SequenceState"], str | None]
"""Called after each token of a sequence; returns the stop string that has come up, if any."""


class Status(Enum):
    """State of a group: admitted by the KVCache, preempted and resumed by the Preemptor."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class BlockTable:
    """Where one sequence's keys and values are: block ``i`` holds tokens ``i*size .. (i+1)*size``.

    Only :class:`~paged_core.cache.kv_cache.KVCache` changes it.
    """

    blocks: list[BlockId] = field(default_factory=list)
    """Device blocks, in the order of the tokens."""
    host_blocks: list[BlockId] = field(default_factory=list)
    """Host blocks instead, while the sequence is swapped out."""
    keys: list[BlockKey] = field(default_factory=list)
    """Content keys of the leading full blocks, as far as they were needed."""
    num_cached: int = 0
    """Leading blocks whose content the prefix cache knows; they are never copied on write."""


@dataclass(slots=True, eq=False, repr=False)
class SequenceState:
    """One sequence: its tokens, how far they are computed, and its block table."""

    id: SeqId
    group: SequenceGroup
    index: int
    """Its place among the sequences of its request."""
    tokens: list[int]
    """Prompt and generated tokens, as far as they are known."""
    num_unknown: int = 0
    """Tokens that a step in flight is sampling: counted, not known."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the cache."""
    num_scheduled: int = 0
    """Leading tokens that are computed or planned to be by a step in flight."""
    capacity: int = 0
    """Below this many tokens the sequence grows without a call of the KVCache."""
    last_step: int = 0
    """The last step in which it was scheduled."""
    table: BlockTable = field(default_factory=BlockTable)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, float]] | None = None
    """Per generated token, the log-probabilities asked for, the chosen token's first."""
    score: float | None = None
    """Number that it was ranked by, where the request asked for the best of several."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The token id or the string that ended it, unless that was the model's own."""
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and generated ones, known or not."""
        return len(self.tokens) + self.num_unknown

    @property
    def num_pending(self) -> int:
        """Tokens that no step has been planned for yet."""
        return self.num_tokens - self.num_scheduled

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[len(self.group.request.prompt) :]

    def __repr__(self) -> str:
        return f"SequenceState({self.group.id!r}[{self.index}], {len(self.tokens)} tokens)"


@dataclass(slots=True, eq=False, repr=False)
class SequenceGroup:
    """One request and its sequences, admitted, preempted and swapped as one."""

    request: Request
    number: int
    """Submission order; breaks every tie."""
    seq_id: InitVar[SeqId]
    """Id of its first sequence."""
    id: str = field(init=False)
    sequences: list[SequenceState] = field(init=False)
    """All of them, in the order of their index once forked."""
    live: list[SequenceState] = field(init=False)
    """Sequences that have not finished."""
    forked: bool = field(init=False)
    """True if all sequences exist; before that the first represents all of them. A group of beams,
    whose number changes, always counts as many as there may be."""
    status: Status = Status.WAITING
    waiting_since: float = field(init=False)
    """Since when it waits, or last waited: its arrival, or when it was last preempted."""
    num_cached: int | None = None
    """Prompt tokens served from the cache at the first admission."""
    num_preemptions: int = 0
    num_lost: int = 0
    """Computed tokens that its last preemption took, to be computed again unless cached."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    """Per prompt token, the log-probabilities asked for; the first has none."""
    max_length: int = 0
    """A sequence of this many tokens ends with ``length``."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end a sequence, the model's own included unless they are to be ignored."""
    eos_token_ids: frozenset[int] = frozenset()
    """The model's own, unless they are to be ignored; one of them that ends a sequence is not named
    as its stop reason."""
    stop_check: StopCheck | None = None

    def __post_init__(self, seq_id: SeqId) -> None:
        self.id, self.waiting_since = self.request.id, self.request.arrival
        first = SequenceState(seq_id, self, 0, list(self.request.prompt))
        self.sequences, self.live = [first], [first]
        self.forked = self.request.sampling.width == 1

    @property
    def arrival(self) -> float:
        """Seconds on the engine's clock."""
        return self.request.arrival

    @property
    def num_seqs(self) -> int:
        """Sequences that it counts for: all it will have, until it has forked."""
        return len(self.live) if self.forked else self.request.sampling.width

    @property
    def longest(self) -> int:
        """Tokens of its longest live sequence."""
        return max(sequence.num_tokens for sequence in self.live)

    @property
    def awaits_step(self) -> bool:
        """True if a sequence of a running group has nothing pending until a step in flight ends."""
        return not all(sequence.num_pending for sequence in self.live)

    @property
    def num_candidates(self) -> int:
        """Continuations that a beam search compares: so many that ``beam_width`` do not end."""
        return max(2, 1 + len(self.stop_token_ids)) * (self.request.sampling.beam_width or 0)

    @property
    def finished(self) -> bool:
        return not self.live

    def __repr__(self) -> str:
        return f"SequenceGroup({self.id!r}, {self.status.name}, {len(self.live)} live)"
