"""What an engine is asked for a request of a workload."""

from __future__ import annotations

from functools import cache

from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.lab.runs.arrivals import Arrival

_TEMPERATURE = 20.0
"""Of requests for several sequences: so high that these differ whatever the model, as they do in a
simulation; equal ones would share blocks."""


def engine_request(arrival: Arrival, start: float) -> Request:
    """Return what the engine is to serve.

    Args:
        start: seconds on the engine's clock at which the run started.
    """
    asked = arrival.request
    return Request(
        id=asked.id,
        prompt=arrival.prompt,
        sampling=exact_sampling(asked.n, asked.output),
        priority=asked.priority,
        arrival=start + arrival.at,
        cache_salt=asked.cache_salt,
        tenant=asked.tenant,
        deadline=None if asked.deadline is None else start + arrival.at + asked.deadline,
    )


@cache
def exact_sampling(n: int, output: int) -> SamplingParams:
    """Parameters under which ``n`` sequences generate ``output`` tokens each."""
    return SamplingParams(
        n=n,
        temperature=0.0 if n == 1 else _TEMPERATURE,
        max_tokens=output,
        ignore_eos=True,
        detokenize=False,
    )
