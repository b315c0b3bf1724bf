"""The rounds of successive halving: how many arms, how much work for each.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016; the rounds are those of the most aggressive bracket of Hyperband (Li et al., JMLR 18,
2018): each has a fraction of the arms, and gives each arm so many times the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from paged_plugins.progress import counted

MIN_REQUESTS = 40
"""The least work by which arms are told apart, in requests of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One round."""

    num_arms: int
    """That take part."""
    num_seeds: int
    share: float
    """Of the requests of each workload; below 1 only where there is one seed."""

    def __str__(self) -> str:
        part = "" if self.share == 1 else f" and {100 * self.share:.0f}% of the requests"
        return f"{counted(self.num_arms, 'arm')} with {counted(self.num_seeds, 'seed')}{part}"


def rungs(
    num_arms: int, *, finalists: int, reduction: int, num_seeds: int, num_requests: int
) -> list[Rung]:
    """Return the rounds, the last with all seeds and requests.

    Work is spared on seeds first: fewer seeds are noisier, but fewer requests may also be a
    different workload, one that never fills the cache.

    Args:
        num_requests: of the shortest workload.
    """
    cuts = 0
    while num_arms >= finalists * reduction ** (
        cuts + 1
    ) and num_seeds * num_requests >= MIN_REQUESTS * reduction ** (cuts + 1):
        cuts += 1
    made = []
    for number in range(cuts + 1):
        work = num_seeds / reduction ** (cuts - number)
        made.append(
            Rung(
                num_arms=ceil(num_arms / reduction**number),
                num_seeds=max(1, round(work)),
                share=min(1.0, work),
            )
        )
    return made
