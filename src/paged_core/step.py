"""Steps as the engine and an executor exchange them: plain data, fit for another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paged_core.ids import BlockId, SeqId
from paged_core.sampling_params import SamplingParams


class TokenLogprobs(dict[int, float]):
    """Log-probabilities by token id: the chosen token's first, then the best ones in order.

    An executor may report plain dictionaries; ranks are then unknown.
    """

    def __init__(self, logprobs: Mapping[int, float], rank: int) -> None:
        """``rank``: the chosen token's among all; 1: it is the best."""
        super().__init__(logprobs)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSequence:
    """A sequence that the executor does not know, or was told to forget."""

    id: SeqId
    request_id: str
    tokens: list[int]
    """Prompt and everything generated so far."""
    num_prompt_tokens: int
    num_computed: int
    """Leading tokens whose keys and values are in ``blocks`` already."""
    blocks: list[BlockId]
    """The block table, this step's blocks included."""
    sampling: SamplingParams
    index: int = 0
    """Its place among the sequences of its request: each has a random stream, by this number."""
    fan_out: int = 1
    """Tokens to sample when its prompt is first computed, and never again: one for each sequence of
    its request, with ``index`` and the numbers after it. The first is appended to this one; the
    others are added in the next step, as sequences of their own."""
    num_candidates: int = 0
    """Beam search: report this many best continuations and sample no token; 0: sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step's work. The executor keeps a copy of each sequence: only changes are sent, in lists
    that may change once the step is collected.

    In this order: forget ``removed``; copy device blocks to the host (``swap_out``), host blocks to
    the device (``swap_in``), then device blocks (``copy``; every source is read before any target
    is written); add ``added``; change entries of block tables (``edit``); compute.
    A sequence samples a token if all of its tokens are computed after the step, and the executor
    appends it to its copy.
    """

    number: int
    """Counts steps from 0."""
    sequence_ids: list[SeqId] = field(default_factory=list)
    """The batch, in order."""
    num_tokens: list[int] = field(default_factory=list)
    """Tokens of each sequence of ``sequence_ids`` to compute in this step."""
    added: list[NewSequence] = field(default_factory=list)
    removed: list[SeqId] = field(default_factory=list)
    edit_ids: list[SeqId] = field(default_factory=list)
    edit_indices: list[int] = field(default_factory=list)
    edit_blocks: list[BlockId] = field(default_factory=list)
    """Entry ``edit_indices[i]`` of the table of ``edit_ids[i]`` is now ``edit_blocks[i]``."""
    copy_sources: list[BlockId] = field(default_factory=list)
    copy_targets: list[BlockId] = field(default_factory=list)
    swap_out_sources: list[BlockId] = field(default_factory=list)
    swap_out_targets: list[BlockId] = field(default_factory=list)
    """Host blocks."""
    swap_in_sources: list[BlockId] = field(default_factory=list)
    """Host blocks."""
    swap_in_targets: list[BlockId] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The tokens that one step sampled, as parallel lists in the order of the batch."""

    sequence_ids: list[SeqId] = field(default_factory=list)
    """Sequences that sampled a token; one that fans out is repeated for each of its tokens."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float] | None] | None = None
    """Per sampled token, if any sequence asks: log-probabilities by token id, the sampled one
    first; with its rank, if they are :class:`TokenLogprobs`."""
    prompt_logprobs: dict[SeqId, list[dict[int, float]]] = field(default_factory=dict)
    """For sequences that ask: one entry per prompt token that follows a token of this chunk."""
    candidates: dict[SeqId, dict[int, float]] = field(default_factory=dict)
    """For sequences of a beam search, which sample none: processed log-probabilities by token id,
    best first, without those of -inf."""
    failed: dict[SeqId, str] = field(default_factory=dict)
    """Sequences whose own code (a logits processor, say) raised, with the reason."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent by phase: ``prepare``, ``model``, ``sample``."""
