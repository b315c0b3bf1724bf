"""The tokens that sequences draw without a model."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from paged_core.ids import SeqId
from paged_core.sampling_params import SamplingParams
from paged_core.step import NewSequence, StepInput, StepResult
from paged_plugins.lab.runs.work_count import CountedSequence

_POSITION_BITS = 22
"""Of a token id; the bits above are a hash of the sequence."""
_FIRST = 1 << 59
"""Token ids begin here, above those of any prompt; below ``1 << 60`` Python's integers are small
and fast."""
_LOWEST = -8.0
"""No log-probability is lower."""


class Answers:
    """Draws tokens that no other request draws: a hash of the request, and the position.

    Sequences of one request differ if they are sampled, and are equal if they are greedy.
    """

    def __init__(self) -> None:
        self._first: dict[SeqId, int] = {}
        """To which the position is added."""
        self._special: dict[SeqId, int] = {}
        """Sequences that do not just draw a token, and how many tokens they draw next."""

    @property
    def are_plain(self) -> bool:
        """Whether each sequence draws one token and nothing more."""
        return not self._special

    def learn(self, step: StepInput) -> None:
        """Forget and add the sequences that a step removes and adds."""
        for seq_id in step.removed:
            self._first.pop(seq_id, None)
            self._special.pop(seq_id, None)
        for new in step.added:
            self._first[new.id] = _first_token(new, new.index)
            if new.fan_out > 1 or new.num_candidates or _asks_more(new.sampling):
                self._special[new.id] = new.fan_out

    def draw(self, complete: Sequence[CountedSequence]) -> StepResult:
        """Draw a token for each sequence, or several where it fans out, or candidates of a beam."""
        first = self._first
        if self.are_plain:
            ids = [sequence.id for sequence in complete]
            tokens = [first[sequence.id] + sequence.num_computed for sequence in complete]
            return StepResult(sequence_ids=ids, token_ids=tokens)
        asked = any(each.new.sampling.needed_logprobs is not None for each in complete)
        result = StepResult(logprobs=[] if asked else None)
        for sequence in complete:
            self._draw_one(sequence, result)
        return result

    def clear(self) -> None:
        """Forget all sequences."""
        self._first.clear()
        self._special.clear()

    def _draw_one(self, sequence: CountedSequence, result: StepResult) -> None:
        new = sequence.new
        refusal = _refusal(new.sampling)
        if refusal:
            result.failed[new.id] = refusal
            return
        if new.num_candidates:
            result.candidates[new.id] = _rank(new.tokens[-1], new.num_candidates)
            return
        place = sequence.num_computed
        others = range(new.index + 1, new.index + self._special.get(new.id, 1))
        tokens = [self._first[new.id] + place]
        tokens += [_first_token(new, index) + place for index in others]
        if new.id in self._special:
            self._special[new.id] = 1
            if not _asks_more(new.sampling):
                del self._special[new.id]
        result.sequence_ids.extend([new.id] * len(tokens))
        result.token_ids.extend(tokens)
        if result.logprobs is not None:
            wanted = new.sampling.needed_logprobs is not None
            reported = [{each: _logprob(each)} if wanted else None for each in tokens]
            result.logprobs.extend(reported)


def _first_token(new: NewSequence, index: int) -> int:
    """The token that the ``index``-th sequence of a request would have at position 0."""
    stream = 0 if new.sampling.temperature == 0 else index
    return _FIRST + (_hash(f"{stream} {new.request_id}") << _POSITION_BITS)


def _hash(text: str) -> int:
    """37 bits."""
    return int.from_bytes(blake2b(text.encode(), digest_size=5).digest(), "big") >> 3


def _logprob(token: int) -> float:
    """Return the log-probability of a token: arbitrary, but repeatable."""
    return _LOWEST * (_hash(str(token)) % 1000) / 1000


def _rank(last: int, count: int) -> dict[int, float]:
    """Return log-probabilities of the continuations of a beam by token id, best first."""
    first = _FIRST + (_hash(f"beam {last}") << _POSITION_BITS)
    noise = [_logprob(first + place) / _LOWEST for place in range(count)]
    return {first + place: -0.5 * (place + noise[place]) for place in range(count)}


def _asks_more(sampling: SamplingParams) -> bool:
    """Whether more than drawn tokens is to be reported of a sequence."""
    return sampling.needed_logprobs is not None or _refusal(sampling) is not None


def _refusal(sampling: SamplingParams) -> str | None:
    """Why a request cannot be simulated, if it cannot."""
    if sampling.prompt_logprobs is not None:
        return "prompt_logprobs need a model, and the executor 'simulated' has none; leave them out"
    if sampling.logits_processors:
        return "logits_processors need logits, which the executor 'simulated' has none of"
    return None
