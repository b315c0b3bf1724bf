"""Routers that weigh what replicas know of a prompt, their queues and their memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, NonNegativeFloat

from paged_core.ids import content_digests
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request
from paged_plugins.routing.prefix_affinity import SentPrefixes
from paged_plugins.routing.router import ReplicaLoad, Router, RouterContext
from paged_plugins.routing.routers import least_loaded, load


class WeighingRouter(Router):
    """Base of routers that know how much of a prompt was sent to each replica before."""

    def __init__(self, options: ComponentSettings, context: RouterContext, /) -> None:
        self._known = SentPrefixes(None)
        self._block_size = context.block_size
        self.slots: dict[int, int] = {}
        """Tokens that the cache of each replica holds."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self._known.joined(replica, num_blocks)
        self.slots[replica] = num_blocks * self._block_size

    def left(self, replica: int, /) -> None:
        self._known.left(replica)
        del self.slots[replica]

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        keys = content_digests(request.prompt, self._block_size, request.cache_salt)
        depths = self._known.held.depths(keys, replicas.keys())
        known = {replica: depth * self._block_size for replica, depth in depths.items()}
        chosen = self.choose(len(request.prompt), known, replicas)
        self._known.sent(chosen, keys)
        return chosen

    @abstractmethod
    def choose(
        self, num_prompt: int, known: Mapping[int, int], replicas: Mapping[int, ReplicaLoad], /
    ) -> int:
        """Return the number of a replica.

        Args:
            num_prompt: tokens of the prompt.
            known: leading tokens of it that each replica knows.
        """


class PrebleSettings(ComponentSettings):
    """Options of :class:`PrebleRouter`."""

    name: Literal["preble"] = "preble"
    most_ratio: float = Field(
        default=2.0,
        ge=1,
        description="tokens of the replica that knows most over those of the least loaded one, up "
        "to which it is preferred",
    )


class PrebleRouter(WeighingRouter):
    """Exploitation or exploration (E2) of Preble (Srivatsa et al., ICLR 2025).

    If more of a prompt is known than not, it goes where most is known, unless that replica has too
    much to do; else where the tokens of unfinished requests and the new ones of the prompt are
    fewest. The paper counts seconds over a window, and what is evicted; a router is told neither.
    """

    def __init__(self, options: PrebleSettings, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self._most_ratio = options.most_ratio

    def choose(
        self, num_prompt: int, known: Mapping[int, int], replicas: Mapping[int, ReplicaLoad], /
    ) -> int:
        most = max(known.values())
        if 2 * most > num_prompt:
            best = least_loaded(replicas[number] for number in known if known[number] == most)
            least = min(replica.num_tokens for replica in replicas.values())
            if replicas[best].num_tokens <= self._most_ratio * (least + num_prompt):
                return best
        return min(replicas, key=lambda n: (replicas[n].num_tokens - known[n], load(replicas[n])))


class WeightedSettings(ComponentSettings):
    """Options of :class:`WeightedRouter`."""

    name: Literal["weighted"] = "weighted"
    prefix: NonNegativeFloat = Field(default=3.0, description="weight of the known share")
    queue: NonNegativeFloat = Field(default=2.0, description="weight of the shortness of the queue")
    memory: NonNegativeFloat = Field(default=2.0, description="weight of the free memory")


class WeightedRouter(WeighingRouter):
    """Scorers of llm-d's scheduler (Gateway API inference extension), with its default weights.

    Each score is from 0 to 1: the share of the prompt that is known; the queue, 1 for the shortest
    and 0 for the longest; the share of the memory that unfinished requests leave free.
    """

    def __init__(self, options: WeightedSettings, context: RouterContext, /) -> None:
        super().__init__(options, context)
        self._options = options

    def choose(
        self, num_prompt: int, known: Mapping[int, int], replicas: Mapping[int, ReplicaLoad], /
    ) -> int:
        options, counts = self._options, [each.num_requests for each in replicas.values()]
        most, span = max(counts), max(counts) - min(counts)

        def badness(replica: ReplicaLoad) -> tuple[float, tuple[int, int, int, int]]:
            score = options.prefix * known[replica.number] / max(1, num_prompt)
            score += options.queue * ((most - replica.num_requests) / span if span else 1.0)
            held = replica.num_tokens / self.slots[replica.number]
            return -score - options.memory * max(0.0, 1.0 - held), load(replica)

        return min(replicas.values(), key=badness).number


class FreenessSettings(ComponentSettings):
    """Options of :class:`FreenessRouter`."""

    name: Literal["freeness"] = "freeness"


class FreenessRouter(Router):
    """Dispatch of Llumnix (Sun et al., OSDI 2024), without its migration.

    The freeness of a replica is the memory that its requests leave free, by their number: how long
    they can go on. The highest is chosen. Waiting requests count with their whole prompts.
    """

    def __init__(self, options: FreenessSettings, context: RouterContext, /) -> None:
        self._block_size = context.block_size
        self._slots: dict[int, int] = {}

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self._slots[replica] = num_blocks * self._block_size

    def left(self, replica: int, /) -> None:
        del self._slots[replica]

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        def used(replica: ReplicaLoad) -> tuple[float, tuple[int, int, int, int]]:
            free = self._slots[replica.number] - replica.num_tokens
            return -free / max(1, replica.num_requests), load(replica)

        return min(replicas.values(), key=used).number
