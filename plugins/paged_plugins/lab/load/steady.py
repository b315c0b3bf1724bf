"""Estimate by one run of the rate that its engine can serve: a look at the second half of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord
from paged_plugins.workloads.spec import WorkloadSpec

_OF_REQUEST, _OF_FAMILY = 6, 3
"""Duration of arrivals: so many times as long as one is served, on the mean, and as one
takes with all that follow it. In half of that time the engine fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """A run while it is loaded: from the middle between the first and the last arrival of a first
    request to the last. Rates are those of first requests, each with all that follow it.
    """

    served: float
    """Tokens served a second, by the mean tokens of a first request and those that follow it. Of a
    request its answer counts, and what is new in its prompt: this is served with its first token,
    and the answer evenly from then to its end."""
    overload: float
    """Tokens of the first requests that arrived, with all that follow them, by the tokens that were
    served; infinite if none were."""
    overall: float
    """The rate of the whole run, with its beginning and end: at most what could be served."""
    settling: float
    """Seconds for which requests must arrive until the second half is steady."""
    num_requests: int
    num_first: int
    record: RunRecord
    middle: float
    """Seconds from the start."""

    @classmethod
    def of(cls, record: RunRecord, workload: WorkloadSpec, seed: int) -> SteadyState:
        """Return that of a run in which all requests were served."""
        by_id = {each.id: each for each in record.requests}
        arrivals, sizes, spans = list[float](), list[int](), list[tuple[int, RequestRecord]]()
        families, requests = list[float](), list[float]()
        for first in workload.build().draw(seed):
            taken: dict[str, float] = {}
            size = 0
            for request in reversed(list(first.family())):
                own = by_id[request.id]
                began = own.arrival if own.admitted is None else own.admitted
                requests.append(own.finished - began)
                later = (each.at + taken[each.id] for each in request.followers)
                taken[request.id] = requests[-1] + max(later, default=0.0)
                spans.append((request.num_new, own))
                size += request.num_new + own.num_output
            arrivals.append(by_id[first.id].arrival)
            families.append(taken[first.id])
            sizes.append(size)
        middle, end = (arrivals[0] + arrivals[-1]) / 2, arrivals[-1]
        offered = sum(size for at, size in zip(arrivals, sizes, strict=True) if middle < at <= end)
        tokens = sum(_tokens_served(*each, middle, end) for each in spans)
        return cls(
            served=tokens / fmean(sizes) / (end - middle) if end > middle else 0.0,
            overload=offered / tokens if tokens else inf,
            overall=len(arrivals) / record.totals.elapsed,
            settling=max(_OF_FAMILY * fmean(families), _OF_REQUEST * fmean(requests)),
            num_requests=len(by_id),
            num_first=len(arrivals),
            record=record,
            middle=middle,
        )

    def measures(self) -> Mapping[str, float]:
        """Return the measures of the requests that arrived in the second half."""
        late = [each for each in self.record.requests if each.arrival >= self.middle]
        return measures(replace(self.record, requests=late), ServiceLevel())


def _tokens_served(num_new: int, request: RequestRecord, begin: float, end: float) -> float:
    """Return the tokens of a request that were served between two times; ``num_new``: of its
    prompt.
    """
    first, last = request.first_token, request.finished
    if first is None:
        return 0.0
    is_within = begin < first <= end
    if last <= first:
        return is_within * (num_new + request.num_output)
    share = max(0.0, min(last, end) - max(first, begin)) / (last - first)
    return is_within * num_new + share * request.num_output
