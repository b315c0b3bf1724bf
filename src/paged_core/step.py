"""What crosses the line between the engine and an executor: plain data, fit for another process."""

from __future__ import annotations

from dataclasses import dataclass, field

from paged_core.ids import BlockId, SeqId
from paged_core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSequence:
    """A sequence that the executor has not seen, or no longer knows."""

    id: SeqId
    request_id: str
    tokens: list[int]
    """Prompt and everything generated so far."""
    num_prompt_tokens: int
    num_computed: int
    """Leading tokens whose keys and values lie in ``blocks`` already."""
    blocks: list[BlockId]
    """The block table, this step's blocks included."""
    sampling: SamplingParams
    index: int = 0
    """Its place among the sequences of its request: each draws from a random stream of its own."""
    fan_out: int = 1
    """Tokens to draw when its pending tokens are first computed: one for each sequence to come."""
    num_candidates: int = 0
    """Beam search: draw and append nothing, but report this many best continuations; 0: draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step's work. The executor keeps what it was told: only changes are sent.

    In this order: forget ``removed``; copy device blocks to the host (``swap_out``), host blocks to
    the device (``swap_in``), then device blocks (``copy``; every source is read before any target
    is written); learn ``added``; change the block tables of known sequences (``edit``); compute.
    A sequence draws a token when all of its tokens are computed after the step, and the executor
    appends it to its own copy.
    """

    number: int
    """Counts steps from 0."""
    sequence_ids: list[SeqId] = field(default_factory=list)
    """The batch, in order."""
    num_tokens: list[int] = field(default_factory=list)
    """Beside it: how many tokens of each sequence are computed in this step."""
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
    """What one step drew, as parallel lists in the order of the batch."""

    sequence_ids: list[SeqId] = field(default_factory=list)
    """Those that drew a token; one that fans out stands here once for each token."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float] | None] | None = None
    """Per drawn token, where anyone asked: log-probabilities by token id, the drawn one first."""
    prompt_logprobs: dict[SeqId, list[dict[int, float]]] = field(default_factory=dict)
    """For sequences that asked: one entry per prompt token that follows a token of this chunk."""
    candidates: dict[SeqId, dict[int, float]] = field(default_factory=dict)
    """For sequences of a beam search, which draw nothing: log-probabilities by token id, after all
    changes asked for, best first; what is ruled out is left out."""
    failed: dict[SeqId, str] = field(default_factory=dict)
    """Sequences whose own code (a logits processor, say) raised, and what it said."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent by phase: ``prepare``, ``model``, ``sample``."""
