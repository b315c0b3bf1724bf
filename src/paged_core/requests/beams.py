"""The sequences of beam searches: forked and released as each search chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paged_core.ids import SeqId
from paged_core.kv_cache import KVCache
from paged_core.requests.beam_search import BeamSearch, Branch
from paged_core.sequence import SequenceGroup, SequenceState, Status


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
        """Start the search of a request that was accepted, if it asks for beams."""
        if group.request.sampling.beam_width is not None:
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
                self._kv.introduce_again(parent)
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
