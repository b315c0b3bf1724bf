"""The sequences of beam searches: forked and released as each search chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from paged_core.cache.kv_cache import KVCache
from paged_core.ids import SeqId
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_core.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Branch:
    """One beam with one more token."""

    parent: SequenceState
    token: int
    cumulative_logprob: float
    logprobs: list[dict[int, float]] | None
    """Log-probabilities of all tokens, this one included, if the request asks for them."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A beam that has ended."""

    tokens: list[int]
    """Prompt and generated tokens."""
    cumulative_logprob: float
    score: float
    """Cumulative log-probability over ``generated tokens ** length_penalty``."""
    finish_reason: FinishReason
    logprobs: list[dict[int, float]] | None


class BeamSearch:
    """Keeps the ``beam_width`` best running sequences, and as many of the best that have ended.

    The rules are those of ``transformers`` (``GenerationMixin._beam_search``, version 5). Of all
    continuations of all beams the best ``num_candidates`` are considered. Those that end count only
    if they rank among the first ``beam_width``; the best ``beam_width`` of the others run on. Ties
    rank by beam, then by token id. The search is over when none can run on, or when ``beam_width``
    sequences have ended, and

    - ``early_stopping=True``: at once;
    - ``early_stopping=False``: when the best beam, scored at its present length, is no better than
      the worst that has ended;
    - ``early_stopping="never"``: the same, but scored at the length that is best for it, which is
      the longest possible one if ``length_penalty`` is positive.

    One beam is greedy search, and ends when it ends.
    """

    def __init__(self, group: SequenceGroup) -> None:
        self._sampling = group.request.sampling
        self._width = self._sampling.width
        self._prompt_length = len(group.request.prompt)
        self._max_length = group.max_length
        self._stop_token_ids = group.stop_token_ids
        self._num_candidates = group.num_candidates
        self._ended: list[Hypothesis] = []
        self.candidates: dict[SeqId, Mapping[int, float]] = {}
        """By beam: the log-probabilities of its best next tokens, best first."""

    def advance(self, live: Sequence[SequenceState]) -> list[Branch]:
        """Choose among the candidates of all beams; return the beams to go on with, best first.

        Empty: the search is over, and :meth:`best` returns its result.
        """
        ranked = [
            ((parent.cumulative_logprob or 0.0) + logprob, parent, token)
            for parent in live
            for token, logprob in self.candidates[parent.id].items()
        ]
        ranked.sort(key=lambda candidate: -candidate[0])
        length = len(live[0].tokens) + 1
        running: list[Branch] = []
        for rank, (total, parent, token) in enumerate(ranked[: self._num_candidates]):
            reason = self._ends(token, length)
            if reason is None and len(running) < self._width:
                running.append(Branch(parent, token, total, self._logprobs(parent, token)))
            elif reason is not None and rank < self._width:
                logprobs = self._logprobs(parent, token)
                self._end([*parent.tokens, token], total, reason, logprobs)
        self.candidates.clear()
        if running and self._is_over(running[0].cumulative_logprob, length - self._prompt_length):
            return []
        return running

    def cut(self, live: Sequence[SequenceState]) -> None:
        """End every beam as it is, unless it has generated nothing."""
        for beam in live:
            if len(beam.tokens) > self._prompt_length:
                total = beam.cumulative_logprob or 0.0
                self._end(list(beam.tokens), total, FinishReason.LENGTH, beam.logprobs)

    def best(self) -> list[Hypothesis]:
        """Return the ``n`` best sequences that have ended, best first."""
        return self._ended[: self._sampling.n]

    def _ends(self, token: int, length: int) -> FinishReason | None:
        enough = length - self._prompt_length >= self._sampling.min_tokens
        if enough and token in self._stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self._max_length else None

    def _logprobs(self, parent: SequenceState, token: int) -> list[dict[int, float]] | None:
        if self._sampling.logprobs is None:
            return None
        best, count = self.candidates[parent.id], self._sampling.logprobs
        top = dict(islice(best.items(), None if count == -1 else count))
        entry = TokenLogprobs({token: best[token], **top}, list(best).index(token) + 1)
        return [*(parent.logprobs or ()), entry]

    def _end(
        self,
        tokens: list[int],
        total: float,
        reason: FinishReason,
        logprobs: list[dict[int, float]] | None,
    ) -> None:
        score = self._score(total, len(tokens) - self._prompt_length)
        self._ended.append(Hypothesis(tokens, total, score, reason, logprobs))
        self._ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self._ended[self._width :]

    def _is_over(self, best: float, generated: int) -> bool:
        sampling = self._sampling
        if len(self._ended) < self._width:
            return False
        if sampling.early_stopping is True or self._width == 1:
            return True
        if sampling.early_stopping == "never" and sampling.length_penalty > 0:
            generated = self._max_length - self._prompt_length
        return self._score(best, generated) <= self._ended[-1].score

    def _score(self, cumulative_logprob: float, generated: int) -> float:
        return float(cumulative_logprob / generated**self._sampling.length_penalty)


def keep_best(group: SequenceGroup) -> None:
    """Keep the ``n`` sequences of the largest mean log-probability, best first.

    Sequences that failed come first, so that the error is returned; equals stay in order.
    """
    for sequence in group.sequences:
        if sequence.cumulative_logprob is not None:
            sequence.score = sequence.cumulative_logprob / len(sequence.output)
    group.sequences.sort(
        key=lambda sequence: (
            sequence.finish_reason is not FinishReason.ERROR,
            sequence.score is None,
            -(sequence.score or 0.0),
        )
    )
    del group.sequences[group.request.sampling.n :]
    for index, sequence in enumerate(group.sequences):
        sequence.index = index


class Beams:
    """Keeps the searches of an engine, and turns their choices into sequences.

    Beams share the blocks of common tokens. A parent's best child takes its place, others are
    forked from it, and the first to write into a shared last block gets a copy of it.

    Args:
        sequences: the live ones of the engine, by id; kept up to date.
        ids: the next free ids.
    """

    def __init__(
        self, kv_cache: KVCache, sequences: dict[SeqId, SequenceState], ids: Iterator[int]
    ) -> None:
        self._kv = kv_cache
        self._sequences = sequences
        self._ids = ids
        self._searches: dict[str, BeamSearch] = {}
        """By request id."""

    def start(self, group: SequenceGroup) -> None:
        """Start the search of a request that was accepted and asks for beams."""
        self._searches[group.id] = BeamSearch(group)

    def end(self, group: SequenceGroup) -> None:
        """Forget the search of a request that has finished."""
        self._searches.pop(group.id, None)

    def advance(
        self, group: SequenceGroup, candidates: Mapping[SeqId, Mapping[int, float]]
    ) -> bool:
        """Take in the best next tokens of the beams of ``group``; return whether it searches on.

        Beams advance together. After a preemption some may be computed before others: their
        candidates are kept, and their last token is computed once more, so that a scheduler finds
        something to compute in every sequence at any time.
        """
        search, live = self._searches[group.id], group.live
        known = search.candidates
        known.update((beam.id, candidates[beam.id]) for beam in live if beam.id in candidates)
        is_running = group.status is Status.RUNNING  # if not, all beams are recomputed in any case
        if any(
            beam.id not in known or (is_running and beam.num_computed < len(beam.tokens) - 1)
            for beam in live
        ):
            for beam in live:
                if beam.id in candidates:
                    self._kv.step_back(beam)
            return True
        branches = search.advance(live)
        if branches:
            self._branch(group, branches)
        return bool(branches)

    def cut(self, group: SequenceGroup) -> None:
        """End the search of ``group`` early, with its beams as they are."""
        self._searches[group.id].cut(group.live)

    def found(self, group: SequenceGroup) -> list[SequenceState]:
        """Return the result of a search, best first, as finished sequences without blocks."""
        sequences = []
        for index, hypothesis in enumerate(self._searches[group.id].best()):
            sequence = SequenceState(SeqId(next(self._ids)), group, index, hypothesis.tokens)
            sequence.cumulative_logprob = hypothesis.cumulative_logprob
            sequence.score = hypothesis.score
            sequence.logprobs = hypothesis.logprobs
            sequence.finish_reason = hypothesis.finish_reason
            sequences.append(sequence)
        return sequences

    def _branch(self, group: SequenceGroup, branches: Sequence[Branch]) -> None:
        beams: list[SequenceState] = []
        continued: set[SeqId] = set()
        for branch in branches:
            parent = branch.parent
            beams.append(self._fork(parent) if parent.id in continued else parent)
            continued.add(parent.id)
        for parent in group.live:
            if parent.id in continued:
                self._kv.send_again(parent)
            else:
                self._kv.release(parent)
                del self._sequences[parent.id]
        for index, (beam, branch) in enumerate(zip(beams, branches, strict=True)):
            beam.index = index
            beam.tokens.append(branch.token)
            beam.cumulative_logprob = branch.cumulative_logprob
            beam.logprobs = branch.logprobs
        group.live[:] = beams
        group.sequences = list(beams)

    def _fork(self, parent: SequenceState) -> SequenceState:
        child = SequenceState(SeqId(next(self._ids)), parent.group, 0, list(parent.tokens))
        self._kv.fork(parent, child)
        self._sequences[child.id] = child
        return child
