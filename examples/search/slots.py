"""The fields that policies of each slot see, and the module around a score over them."""

FIELDS = {
    "evictor": ("last_use", "num_hits", "num_tokens", "cache_order", "cost"),
    "queue_order": ("waited", "prompt", "uncached", "expected", "priority"),
}
KITS = {"evictor": "EvictorConformance", "queue_order": "QueueOrderConformance"}
_HEAD = '''\
"""A policy that a program wrote{about}."""

from math import log2
from typing import Literal

from paged_core.plugins.component import Component, ComponentSettings
'''
_BODIES = {
    "evictor": '''\
from paged_policies.evictors.leaves import LeavesFirst
from paged_policies.evictors.ranked import RankedEvictor


class Found(RankedEvictor):
    """Evicts the block of the lowest score; of equal ones, the longest prefix."""

    def rank(self, info, /):
        last_use, num_hits = info.last_use, info.num_hits  # recency, in releases
        num_tokens, cache_order = info.num_tokens, info.cache_order  # depth; age
        cost = 1 + num_tokens / 24576  # to compute a token of it again
        return ({score}, -num_tokens)


def make(options, context, /):
    return {made}
''',
    "queue_order": '''\
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.requests.waiting import uncached_tokens
from paged_policies.job_size import expected_end


class Found(QueueOrder):
    """Serves the request of the lowest score first; of equal ones, the first."""

    stable = False

    def __init__(self, options, context, /):
        self._kv_cache, self._lengths = context.kv_cache, context.length_predictor

    def key(self, group, now, /):
        waited, prompt = now - group.arrival, len(group.request.prompt)
        uncached, priority = uncached_tokens(group, self._kv_cache), group.request.priority
        expected = expected_end(group, self._lengths) - group.longest  # tokens to generate
        return ({score}, group.number)


make = Found
''',
}
_TAIL = """

class FoundSettings(ComponentSettings):
    name: Literal["{name}"] = "{name}"


COMPONENT = Component("{slot}", FoundSettings, "{name}:make", summary="a score that was found")
"""


def written(slot: str, name: str, score: str, about: str = "") -> str:
    """Return the module of a policy; a score in brackets ``[]`` is of an evictor of leaves."""
    made = "LeavesFirst(Found(options, context))" if score[0] == "[" else "Found(options, context)"
    module = _HEAD + _BODIES[slot] + _TAIL
    return module.format(slot=slot, name=name, score=score.strip("[]"), about=about, made=made)
