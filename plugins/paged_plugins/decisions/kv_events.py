"""vLLM's KV events as a workload: the requests for which these blocks were stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from paged_plugins.progress import counted
from paged_plugins.workloads.request import MOST_FAMILY, ContentIds, WorkloadRequest, linked
from paged_plugins.workloads.traces.files import TraceError, checked

Hash = int | str | bytes
_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_STALL = 4.0
"""A block that comes later than so many times the usual is of a further turn."""


class _Batch(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    ts: Annotated[float, Field(allow_inf_nan=False)]
    events: list[Any]
    data_parallel_rank: int | None = None


class _Event(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: str
    block_hashes: list[Hash] = []
    parent_block_hash: Hash | None = None
    block_size: Annotated[int, Field(gt=0, le=2**20)] | None = None
    medium: str | None = None
    group_idx: int | None = None


class _Stored(NamedTuple):
    rank: int
    batch: int
    at: float
    hashes: Sequence[Hash]
    parent: Hash | None


@dataclass(slots=True, eq=False)
class _Chain:
    """A request: blocks that were stored one after the other."""

    at: float
    last: float
    batch: int
    tip: Hash
    prompt: list[Hash]
    follows: _Chain | None = None
    num_answered: int = 0
    begins_before: bool = False
    """The first blocks of its prompt were stored before the events begin."""
    is_answer: bool = False
    """So was its prompt."""
    is_repeated: bool = False
    """Each of its first blocks had been stored before."""


@dataclass
class KvEvents:
    """Batches of events, and what they say of the requests.

    Args:
        source: named in errors.
    """

    source: Path
    block_size: int | None = None
    num_batches: int = 0
    num_missed: int = 0
    most_cached: int = 0
    """Blocks that were findable at once."""
    _stored: list[_Stored] = field(default_factory=list)
    _batches: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    _cached: set[tuple[int, Hash]] = field(default_factory=set)

    def take(self, batch: object) -> None:
        """Take a batch, as vLLM packs it: an array, or an object with the same names.

        Raises:
            TraceError: it is none; the message names its number and the keys that are wrong.
        """
        self.num_batches += 1
        if isinstance(batch, list):
            batch = dict(zip(_Batch.model_fields, batch, strict=False))
        made = checked(self.source, self.num_batches, batch, _Batch)
        rank = made.data_parallel_rank or 0
        self._batches[rank] += 1
        for event in made.events:
            self._take(rank, made.ts, self._event(event))

    def _event(self, event: object) -> _Event:
        if isinstance(event, list) and event:  # of older releases
            names = _FIELDS if event[0] == "BlockStored" else ("block_hashes", "medium")
            event = {"type": event[0]} | dict(zip(names, event[1:], strict=False))
        return checked(self.source, self.num_batches, event, _Event)

    def _take(self, rank: int, at: float, event: _Event) -> None:
        if event.medium not in (None, "GPU") or event.group_idx:
            return  # copies elsewhere, and other layers of the same tokens
        found = {(rank, each) for each in event.block_hashes}
        if event.type == "AllBlocksCleared":
            self._cached = {each for each in self._cached if each[0] != rank}
        elif event.type == "BlockRemoved":
            self._cached -= found
        elif event.type == "BlockStored" and found:
            if event.block_size != (self.block_size or event.block_size) or not event.block_size:
                problem = f"a block of {event.block_size} tokens among others of {self.block_size}"
                raise TraceError(self.source, self.num_batches, problem)
            self.block_size = event.block_size
            self._cached |= found
            self.most_cached = max(self.most_cached, len(self._cached))
            parent, batch = event.parent_block_hash, self._batches[rank]
            self._stored.append(_Stored(rank, batch, at, event.block_hashes, parent))

    def requests(self) -> tuple[list[WorkloadRequest], list[str]]:
        """Return the requests that follow no other, by their time, and what to say of them.

        Prompts share what had the same hashes. Lengths are to a block: half a block is added to
        each prompt that is no further turn, and a token to each answer, their mean.

        Raises:
            TraceError: there is none.
        """
        gaps = list(_Chains(self._stored, float("inf")).gaps)
        usual = quantiles(gaps, n=4)[0] if len(gaps) > 1 else float("inf")
        chains = sorted(_Chains(self._stored, _STALL * usual).made, key=lambda chain: chain.at)
        kept = [chain for chain in chains if not chain.is_answer]
        if not kept:
            raise TraceError(self.source, None, "no event in it says that a prompt was stored")
        size, ids, known = self.block_size or 1, ContentIds(), dict[Hash, range]()
        names = {id(chain): f"r{number}" for number, chain in enumerate(kept)}
        lines = list[tuple[WorkloadRequest, str | None]]()
        for chain in kept:
            parts = list[range]()
            for block in chain.prompt:
                part = known.get(block) or known.setdefault(block, ids.take(size))
                if parts and parts[-1].stop == part.start:
                    part = range(parts.pop().start, part.stop)
                parts.append(part)
            before, at = chain.follows, chain.at - kept[0].at
            if before is not None:
                at = max(0.0, chain.at - before.last)
            elif size > 1:
                parts.append(ids.take(size // 2))
            request = WorkloadRequest(
                id=names[id(chain)],
                at=round(at, 6),
                prompt=tuple(parts),
                output=chain.num_answered * size + 1,
            )
            lines.append((request, None if before is None else names[id(before)]))
        return [each.first(MOST_FAMILY) for each in linked(lines)], self._notes(chains)

    def _notes(self, chains: Sequence[_Chain]) -> list[str]:
        counts = {
            "had begun before: left out": [each.is_answer for each in chains],
            "have prompts that lack blocks stored before": [each.begins_before for each in chains],
            "stored only what had been stored before: they were repeated, or preempted and so are "
            "here twice": [each.is_repeated for each in chains],
        }
        told = [f"{counted(sum(n), 'request')} {what}" for what, n in counts.items() if any(n)]
        if self.num_missed:
            told.append(f"{self.num_missed:,} of the batches did not arrive")
        return [
            f"lengths are to a block of {self.block_size} tokens; a request that filled no block "
            "of its own is not seen; it arrives when its first block is stored",
            *told,
        ]


class _Chains:
    """Requests of stored blocks.

    Args:
        longest: seconds from one block of an answer to the next; later it is a further turn.
    """

    def __init__(self, stored: Iterable[_Stored], longest: float) -> None:
        self.made: list[_Chain] = []
        self.gaps: list[float] = []
        self._longest = longest
        self._parents: dict[Hash, Hash | None] = {}
        self._tips: defaultdict[tuple[int, Hash | None], list[_Chain]] = defaultdict(list)
        self._answered: dict[Hash, _Chain] = {}
        """Who answered with a block, the last one."""
        for event in stored:
            is_repeated = all(each in self._parents for each in event.hashes)
            self._parents.update(zip(event.hashes, (event.parent, *event.hashes), strict=False))
            chain = self._continued(event)
            if chain is None:
                chain = self._begun(event)
                chain.is_repeated = is_repeated
                self.made.append(chain)
            chain.last, chain.batch, chain.tip = event.at, event.batch, event.hashes[-1]
            self._tips[event.rank, chain.tip].append(chain)

    def _continued(self, event: _Stored) -> _Chain | None:
        """Return the request that goes on with these blocks: its prompt in chunks, or its answer,
        which fills one at a time."""
        found = self._tips.get((event.rank, event.parent), [])
        is_one = len(event.hashes) == 1
        for place, chain in enumerate(found):
            num_batches, seconds = event.batch - chain.batch, event.at - chain.last
            if not chain.num_answered and num_batches <= (0 if is_one else 1):
                chain.prompt += event.hashes
            elif is_one and seconds <= self._longest:
                self.gaps.append(seconds)
                chain.num_answered += 1
                if not chain.is_answer:
                    self._answered[event.hashes[0]] = chain
            else:
                continue
            return found.pop(place)
        return None

    def _begun(self, event: _Stored) -> _Chain:
        blocks = list[Hash]()
        block: Hash | None = event.hashes[-1]
        follows, is_cut = None, False
        while block is not None and follows is None and not is_cut:
            chain = self._answered.get(block)
            if blocks and chain is not None and chain.tip == block:
                follows = chain
            elif block in self._parents:
                blocks.append(block)
                block = self._parents[block]
            else:
                is_cut = True
        made = _Chain(event.at, event.at, event.batch, event.hashes[-1], blocks[::-1], follows)
        made.is_answer = is_cut and len(event.hashes) == 1
        made.begins_before = is_cut and not made.is_answer
        return made
