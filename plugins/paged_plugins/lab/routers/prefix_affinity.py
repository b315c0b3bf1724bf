"""The replica that was sent the longest part of the prompt before, unless it is overloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from paged_core.component import ComponentSettings
from paged_core.request import Request
from paged_plugins.lab.router import ReplicaLoad, Router, RouterParts
from paged_plugins.lab.routers.known_prefixes import KnownPrefixes, content_keys
from paged_plugins.lab.routers.least_loaded import LeastLoaded


class PrefixAffinitySettings(ComponentSettings):
    """Options of :class:`PrefixAffinityRouter`."""

    name: Literal["prefix_affinity"] = "prefix_affinity"
    least_share: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="share of the prompt that a replica must know to be preferred",
    )
    most_ahead: int = Field(
        default=64,
        ge=0,
        description="balance by load alone while one replica has more requests than the least "
        "loaded one by this number and by most_ratio",
    )
    most_ratio: float = Field(default=1.5, ge=1, description="see most_ahead")
    max_blocks: int | None = Field(
        default=None,
        ge=1,
        description="blocks remembered for each replica; null: as many as its cache has",
    )


class PrefixAffinityRouter(Router):
    """Longest known prefix, balanced against load.

    While the load is balanced, a request goes to the replica to which the longest prefix of its
    prompt was sent, if that is ``least_share`` of it or more; else to the least loaded. Of several
    that know equally much, to the least loaded. The rule and its defaults are those of the
    cache-aware router of SGLang (Zheng et al., NeurIPS 2024; SGLang v0.4 and its gateway), which
    sends what is known nowhere to the replica with the smallest tree; to the least loaded instead
    in Preble (Srivatsa et al., ICLR 2025), and here. What a replica knows is what was sent to it:
    blocks of prompts by their content, the least recently sent forgotten first.
    """

    def __init__(self, options: PrefixAffinitySettings, parts: RouterParts, /) -> None:
        self._options = options
        self._block_size = parts.block_size
        self._known = KnownPrefixes(parts.num_replicas, options.max_blocks or parts.num_blocks)
        self._least_loaded = LeastLoaded(parts.num_replicas)

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        keys = content_keys(request, self._block_size)
        candidates = self._candidates(request, keys, replicas)
        chosen = self._least_loaded.among(candidates or range(len(replicas)), replicas)
        self._known.note(chosen, keys)
        return chosen

    def _candidates(
        self, request: Request, keys: Sequence[int], replicas: Sequence[ReplicaLoad]
    ) -> Sequence[int]:
        """Return the replicas that know the longest part of the prompt, if that is to decide."""
        depth, holders = self._known.longest(keys)
        if depth * self._block_size < self._options.least_share * len(request.prompt):
            return ()
        return () if self._is_unbalanced(replicas) else holders

    def _is_unbalanced(self, replicas: Sequence[ReplicaLoad]) -> bool:
        counts = [replica.num_requests for replica in replicas]
        most, least = max(counts), min(counts)
        return most - least > self._options.most_ahead and most > self._options.most_ratio * least
