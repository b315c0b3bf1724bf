"""Views of vLLM's requests pass the cases of queue orders and victims; fields are vLLM's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from paged_core.plugins.registry import Registry
from paged_core.sequence import Status
from paged_testing.preemption import VictimCases
from paged_testing.queue_order import QueueOrderCases

from paged_core_vllm import cli
from paged_core_vllm.views import GroupView
from vllm_doubles import FakeCache, FakeRequest, running_views, waiting_views

DECIDING = [row[:2] for row in cli.components(Registry.discover()) if row[2] is None]
"""Slots, and components that can be carried over."""


@pytest.fixture(autouse=True)
def _views(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("queue_order", "preemption"):
        replaced = {
            "waiting_groups": waiting_views,
            "running_groups": running_views,
            "empty_cache": lambda registry, num_blocks=64: FakeCache(num_blocks),
        }
        for name, double in replaced.items():
            monkeypatch.setattr(f"paged_testing.{module}.{name}", double)


def cases(base: type, name: str) -> type:
    return type(f"Test_{name}", (base,), {"component": name, "__module__": __name__})


for _slot, _name in DECIDING:
    if _slot in {"queue_order", "victim"}:
        _base = QueueOrderCases if _slot == "queue_order" else VictimCases
        globals()[f"Test_{_slot}_{_name}"] = cases(_base, _name)


def view(**fields: Any) -> GroupView:
    inner = FakeRequest("r", [5, 6, 7], **fields)
    return GroupView(inner, 3, FakeCache(), 10)


def test_a_view_reads_what_vllm_has_now() -> None:
    group = view(max_tokens=4)
    inner, (sequence,) = group.inner, group.sequences
    assert (group.status, group.max_length, sequence.num_pending) == (Status.WAITING, 7, 3)
    inner.status = SimpleNamespace(name="RUNNING")
    inner.num_computed_tokens, inner.num_in_flight_tokens = 4, 1
    inner.num_output_placeholders, inner.output = 1, []
    assert (group.status, sequence.num_computed, sequence.num_tokens) == (Status.RUNNING, 3, 4)
    assert group.awaits_step
    inner.status = SimpleNamespace(name="FINISHED_ABORTED")
    assert (group.status, group.live) == (Status.FINISHED, [])


@pytest.mark.parametrize(
    ("extra", "tenant", "deadline"),
    [
        (None, "", None),
        ({"tenant": "a", "deadline": "12.5"}, "a", 12.5),
        ({"tenant": 7, "deadline": "soon"}, "7", None),
        ({"deadline": float("nan")}, "", None),
        ({"deadline": [1]}, "", None),
    ],
    ids=["none", "text", "no-number", "nan", "list"],
)
def test_tenant_and_deadline_are_what_fits(
    extra: dict[str, Any] | None, tenant: str, deadline: float | None
) -> None:
    request = view(extra_args=extra).request
    assert (request.tenant, request.deadline) == (tenant, deadline)


def test_the_priority_is_that_of_the_user_while_a_victim_is_marked() -> None:
    group = view(priority=2)
    group.inner.priority = float("inf")
    assert group.request.priority == 2


def test_a_lookup_is_bounded_by_what_is_asked_for() -> None:
    cache = FakeCache(block_size=4)
    group = GroupView(FakeRequest("r", list(range(20))), 0, cache, 64)
    cache.manager.found["r"] = 16
    assert len(cache.lookup(group.sequences[0], 19).blocks) == 4
    assert len(cache.lookup(group.sequences[0], 7).blocks) == 1
