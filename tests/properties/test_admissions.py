"""Token buckets give no tenant more than they may, and nothing that they need not withhold."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.engine.contexts import AdmissionContext
from paged_core.interfaces.admission import Admission, Held, Load, Refused
from paged_core.request import Request
from paged_core.settings.schema import settings_class
from unit.engines import REGISTRY

CONTEXT = AdmissionContext(settings=settings_class(REGISTRY)(executor="memory"))
EPS = 1e-6
arrivals = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(1, 12),
        st.one_of(st.just(0.0), st.floats(0, 5), st.floats(0, 500)),
    ),
    max_size=40,
)


@given(arrivals, st.floats(0.01, 20), st.floats(1, 12), st.sampled_from(["refuse", "hold"]))
def test_token_bucket(
    asked: list[tuple[str, int, float]], rate: float, burst: float, over: str
) -> None:
    component = REGISTRY.get("admission", "token_bucket")
    options = {"counts": "prompt_tokens", "rate": rate, "burst": burst, "over": over}
    bucket = cast("Admission", component.load()(component.settings(**options), CONTEXT))
    given_to: dict[str, list[tuple[float, int]]] = {"a": [], "b": []}
    levels, last, now = dict.fromkeys("ab", burst), dict.fromkeys("ab", 0.0), 0.0
    for number, (tenant, cost, pause) in enumerate(asked):
        now += pause
        levels[tenant] = min(burst, levels[tenant] + rate * (now - last[tenant]))
        last[tenant] = now
        request = Request(id=f"{number}", prompt=(1,) * cost, tenant=tenant, arrival=now)
        decision = bucket.decide(request, Load(), now)
        if cost > burst:
            assert isinstance(decision, Refused)
            assert decision.retry_after is None
            continue
        wait = max(0.0, cost - levels[tenant]) / rate
        if wait < EPS and decision is None:
            found = 0.0
        elif over == "refuse":
            assert isinstance(decision, Refused)
            assert decision.retry_after == pytest.approx(wait, rel=EPS, abs=EPS)
            continue
        else:
            assert isinstance(decision, Held)
            found = decision.until - now
            assert found == pytest.approx(wait, rel=EPS, abs=EPS)
        levels[tenant] -= cost
        given_to[tenant].append((now + found, cost))
    for taken in given_to.values():
        for first, (start, _) in enumerate(taken):
            total = 0
            for at, cost in taken[first:]:
                total += cost
                assert total <= rate * (at - start) + burst + EPS * (1 + rate * at)
