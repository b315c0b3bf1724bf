"""The mutable state that the core owns: sequences, the groups they form, their block tables."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from paged_core.block_key import BlockKey
from paged_core.ids import BlockId, SeqId
from paged_core.request import FinishReason, Request

if TYPE_CHECKING:
    from paged_core.requests.beam_search import BeamSearch
    from paged_core.requests.pins import Pin
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
    """What state a group is in: admitted by the KVCache, preempted and resumed by the Preemptor."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


class BlockTable:
    """Where one sequence's keys and values live: block ``i`` holds tokens ``i*size .. (i+1)*size``.

    Only :class:`~paged_core.kv_cache.KVCache` changes it.
    """

    __slots__ = ("blocks", "host_blocks", "keys", "num_published")

    def __init__(self) -> None:
        self.blocks: list[BlockId] = []
        """Device blocks, in the order of the tokens."""
        self.host_blocks: list[BlockId] = []
        """Host blocks instead, while the sequence is swapped out."""
        self.keys: list[BlockKey] = []
        """Content keys of the leading full blocks, as far as anyone asked for them."""
        self.num_published = 0
        """Leading blocks whose content the prefix cache knows; they are never copied on write."""


class SequenceState:
    """One sequence: its tokens, how far they are computed, and its block table."""

    __slots__ = (
        "capacity",
        "cumulative_logprob",
        "error",
        "finish_reason",
        "group",
        "id",
        "index",
        "last_step",
        "logprobs",
        "num_computed",
        "num_scheduled",
        "score",
        "stop_reason",
        "table",
        "tokens",
    )

    def __init__(self, seq_id: SeqId, group: SequenceGroup, index: int, tokens: list[int]) -> None:
        self.id = seq_id
        self.group = group
        self.index = index
        """Its place among the sequences of its request."""
        self.tokens = tokens
        """Prompt and generated tokens."""
        self.num_computed = 0
        """Leading tokens whose keys and values are in the cache."""
        self.num_scheduled = 0
        """Leading tokens that are computed or planned to be by a step under way."""
        self.capacity = 0
        """Below this many tokens the sequence grows without asking the KVCache for anything."""
        self.last_step = 0
        """The last step in which it was scheduled, where the KVCache notes steps."""
        self.table = BlockTable()
        self.cumulative_logprob: float | None = None
        self.logprobs: list[dict[int, float]] | None = None
        """Per generated token, the log-probabilities asked for, the chosen token's first."""
        self.score: float | None = None
        """What it was ranked by, where the request asked for the best of several."""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        """The token id or the string that ended it, where that was not the model's own."""
        self.error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and generated ones."""
        return len(self.tokens)

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


class SequenceGroup:
    """One request and its sequences, admitted, preempted and swapped as one."""

    __slots__ = (
        "admitted_at",
        "finished_at",
        "first_token_at",
        "forked",
        "id",
        "live",
        "max_length",
        "num_cached",
        "num_preemptions",
        "number",
        "pin",
        "prompt_logprobs",
        "request",
        "search",
        "sequences",
        "status",
        "stop_check",
        "stop_token_ids",
        "waiting_since",
    )

    def __init__(self, request: Request, number: int, seq_id: SeqId) -> None:
        self.request = request
        self.id = request.id
        self.number = number
        """Submission order; breaks every tie."""
        first = SequenceState(seq_id, self, 0, list(request.prompt))
        self.sequences = [first]
        """All of them, in the order of their index once forked."""
        self.live = [first]
        """Those that have not finished."""
        self.forked = request.sampling.width == 1
        """Whether all sequences exist; before that the first stands for all of them. Beams come
        and go: they count as all that there may be, to the end."""
        self.status = Status.WAITING
        self.waiting_since = request.arrival
        """Since when it waits, or last waited: its arrival, or when it was last preempted."""
        self.num_cached: int | None = None
        """Prompt tokens served from the cache at the first admission."""
        self.num_preemptions = 0
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        """Per prompt token, the log-probabilities asked for; the first has none."""
        self.max_length = 0
        """A sequence of this many tokens ends with ``length``."""
        self.stop_token_ids: frozenset[int] = frozenset()
        """Tokens that end a sequence, the model's own included unless they are to be ignored."""
        self.stop_check: StopCheck | None = None
        self.search: BeamSearch | None = None
        """Chooses among its sequences, if it searches with beams."""
        self.pin: Pin | None = None
        """What its blocks are computed for, if not for an answer."""

    @property
    def arrival(self) -> float:
        """Seconds on the engine's clock."""
        return self.request.arrival

    @property
    def num_seqs(self) -> int:
        """Sequences that it counts for: all it will have, until it has forked."""
        return len(self.live) if self.forked else self.request.sampling.width

    seats = num_seqs  # its name in 0.1, for schedulers written then

    @property
    def finished(self) -> bool:
        return not self.live

    def __repr__(self) -> str:
        return f"SequenceGroup({self.id!r}, {self.status.name}, {len(self.live)} live)"
