"""The router ``prefix_affinity``: to the replica that knows most of the prompt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal

from pydantic import Field

from paged_core.ids import content_digests
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request
from paged_plugins.routing.router import BlockChange, ReplicaLoad, Router, RouterContext
from paged_plugins.routing.routers import least_loaded


class PrefixAffinitySettings(ComponentSettings):
    """Options of :class:`PrefixAffinityRouter`."""

    name: Literal["prefix_affinity"] = "prefix_affinity"
    index: Literal["approximate", "exact"] = Field(
        default="approximate",
        description="what a replica knows: approximate: the prompts that were sent to it; "
        "exact: the blocks that its prefix cache holds, as its engine tells",
    )
    least_share: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="share of the prompt that a replica must know to be preferred",
    )
    most_ahead: int = Field(
        default=16,
        ge=0,
        description="balance by load alone while one replica has more requests than the least "
        "loaded one by this number and by most_ratio",
    )
    most_ratio: float = Field(default=1.5, ge=1, description="see most_ahead")
    max_blocks: int | None = Field(
        default=None,
        ge=1,
        description="blocks remembered for each replica where the index is approximate; null: as "
        "many as its cache has",
    )


class HeldBlocks:
    """Which replicas hold which blocks."""

    def __init__(self) -> None:
        self._holders: dict[int, set[int]] = {}
        """For each content key, the replicas that hold such a block."""

    def longest(self, keys: Sequence[int], among: Set[int]) -> tuple[int, Set[int]]:
        """Return how many leading blocks one of ``among`` holds at most, and those that do."""
        depth, holders = 0, among
        for key in keys:
            both = self._holders.get(key, set()) & holders
            if not both:
                break
            depth, holders = depth + 1, both
        return depth, holders if depth else set()

    def depths(self, keys: Sequence[int], among: Set[int]) -> dict[int, int]:
        """Return how many leading blocks each of ``among`` holds."""
        found, holders = dict.fromkeys(among, 0), among
        for depth, key in enumerate(keys, 1):
            holders = self._holders.get(key, set()) & holders
            if not holders:
                break
            found |= dict.fromkeys(holders, depth)
        return found

    def add(self, replica: int, key: int) -> None:
        """A replica holds a block."""
        self._holders.setdefault(key, set()).add(replica)

    def remove(self, replica: int, key: int) -> None:
        """A replica holds a block no more."""
        holders = self._holders[key]
        holders.remove(replica)
        if not holders:
            del self._holders[key]


class SentPrefixes:
    """Prefixes that were sent to each replica, as an estimate of its cache.

    A block is sent no later than what follows it in a prompt, and forgotten no earlier: a replica
    that knows a block knows the whole prefix before it.

    Args:
        max_blocks: remembered for each replica; ``None``: as many as its cache has.
    """

    def __init__(self, max_blocks: int | None) -> None:
        self.held = HeldBlocks()
        self._max_blocks = max_blocks
        self._limits: dict[int, int] = {}
        self._recent: dict[int, OrderedDict[int, None]] = {}
        """For each replica, the keys of its blocks, the least recently sent first."""

    def __len__(self) -> int:
        """Blocks remembered, over all replicas."""
        return sum(map(len, self._recent.values()))

    def joined(self, replica: int, num_blocks: int) -> None:
        """Remember blocks for a replica."""
        self._limits[replica] = self._max_blocks or num_blocks
        self._recent[replica] = OrderedDict()

    def left(self, replica: int) -> None:
        """Forget a replica."""
        del self._limits[replica]
        for key in self._recent.pop(replica):
            self.held.remove(replica, key)

    def sent(self, replica: int, keys: Sequence[int]) -> None:
        """A prompt of these blocks is sent to a replica."""
        recent, limit = self._recent[replica], self._limits[replica]
        for key in reversed(keys[:limit]):  # the first becomes the most recent
            if key in recent:
                recent.move_to_end(key)
            else:
                recent[key] = None
                self.held.add(replica, key)
        while len(recent) > limit:
            self.held.remove(replica, recent.popitem(last=False)[0])


class AffinityRouter(Router):
    """Longest known prefix, balanced against load; what a replica knows is up to subclasses.

    While the load is balanced, a request goes to the replica that knows the longest prefix of its
    prompt, if that is ``least_share`` of it or more; else to the least loaded. Of several that know
    equally much, to the least loaded. The rule is that of the cache-aware router of SGLang (Zheng
    et al., NeurIPS 2024; SGLang v0.4 and its gateway), with most of its defaults: 64 requests ahead
    leave replicas of a small cluster idle. What is known nowhere goes to the replica with the
    smallest tree there; to the least loaded in Preble (Srivatsa et al., ICLR 2025), and here.
    """

    held: HeldBlocks

    def __init__(self, options: PrefixAffinitySettings, context: RouterContext, /) -> None:
        self._options = options
        self._block_size = context.block_size

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        keys = content_digests(request.prompt, self._block_size, request.cache_salt)
        known = self._candidates(request, keys, replicas)
        chosen = least_loaded(map(replicas.__getitem__, known) if known else replicas.values())
        self._sent(chosen, keys)
        return chosen

    def _sent(self, replica: int, keys: Sequence[int]) -> None:
        """A prompt of these blocks is sent to a replica."""

    def _candidates(
        self, request: Request, keys: Sequence[int], replicas: Mapping[int, ReplicaLoad]
    ) -> Set[int]:
        """Return the replicas that know the longest part of the prompt, if that is to decide."""
        depth, holders = self.held.longest(keys, replicas.keys())
        if depth * self._block_size < self._options.least_share * len(request.prompt):
            return frozenset()
        return frozenset() if self._is_unbalanced(replicas) else holders

    def _is_unbalanced(self, replicas: Mapping[int, ReplicaLoad]) -> bool:
        counts = [replica.num_requests for replica in replicas.values()]
        most, least = max(counts), min(counts)
        return most - least > self._options.most_ahead and most > self._options.most_ratio * least


class ApproximateRouter(AffinityRouter):
    """Takes a replica to know what was sent to it, the least recently sent forgotten first."""

    def __init__(self, options: PrefixAffinitySettings, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.known = SentPrefixes(options.max_blocks)
        self.held = self.known.held

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self.known.joined(replica, num_blocks)

    def left(self, replica: int, /) -> None:
        self.known.left(replica)

    def _sent(self, replica: int, keys: Sequence[int]) -> None:
        self.known.sent(replica, keys)


class ExactRouter(AffinityRouter):
    """Knows what the prefix cache of each replica holds, from its engine's block events."""

    def __init__(self, options: PrefixAffinitySettings, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self.held = HeldBlocks()
        self._keys: dict[int, set[int]] = {}
        """Keys of the blocks that each replica holds."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self._keys[replica] = set()

    def left(self, replica: int, /) -> None:
        self._clear(replica)
        del self._keys[replica]

    def blocks_changed(self, replica: int, changes: Iterable[BlockChange], /) -> None:
        """The prefix cache of a replica has changed, see :class:`SupportsBlockEvents`."""
        held, known = self.held, self._keys[replica]
        for kind, keys in changes:
            if kind == "cleared":
                self._clear(replica)
            elif kind == "stored":
                known.update(keys)
                for key in keys:
                    held.add(replica, key)
            else:
                known.difference_update(keys)
                for key in keys:
                    held.remove(replica, key)

    def _clear(self, replica: int) -> None:
        for key in self._keys[replica]:
            self.held.remove(replica, key)
        self._keys[replica].clear()


def make_router(options: PrefixAffinitySettings, context: RouterContext, /) -> AffinityRouter:
    """Return the router with the index that the options name."""
    return (ExactRouter if options.index == "exact" else ApproximateRouter)(options, context)
