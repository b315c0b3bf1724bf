"""Every combination of policies serves workloads correctly, or is refused when the engine is built.

The components are those that are registered when the tests are collected, so new ones are included.
By default every pair of components, options and limits occurs at least once; the long version draws
a thousand of all combinations for each scheduler.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest

from paged_core.errors import SettingsError
from paged_testing.engines import POLICY_SLOTS, build_memory_engine, serve
from paged_testing.served import check_served
from paged_testing.workloads import Workload
from properties.combinations import LIMITS, Table, columns, settings_of, variants
from properties.covering import pairwise_rows
from properties.mixed_workloads import mixed_workload
from unit.engines import REGISTRY

COLUMNS = columns(REGISTRY)
CLASHING = ("block_allocator", "preemption")
"""Slots with components that cannot be combined; of any others, a row would be refused."""
PARTS = 8
in_parts = pytest.mark.parametrize(
    "part", [pytest.param(n, marks=[pytest.mark.heavy] * (n % 2)) for n in range(PARTS)]
)


def refusal(values: dict[str, Any]) -> str | None:
    """The reason why no engine is built from these settings; ``None``: one is built."""
    try:
        build_memory_engine(REGISTRY, **values).close()
    except SettingsError as error:
        return str(error)
    return None


@cache
def misfits() -> list[tuple[dict[str, Table], str]]:
    """Pairs of components, by slot, that cannot be combined, with the reason."""
    one, other = CLASHING
    found = []
    for left, right in product(COLUMNS[one], COLUMNS[other]):
        if reason := refusal({one: left, other: right}):
            found.append(({one: left, other: right}, reason))
    return found


def may_meet(one: str, left: Any, other: str, right: Any) -> bool:
    return all({one: left, other: right} != pair for pair, _ in misfits())


@cache
def rows() -> list[dict[str, Any]]:
    """Settings in which every pair occurs, made by the first test that needs them."""
    return [settings_of(row, REGISTRY) for row in pairwise_rows(COLUMNS, may_meet)]


def numbered(part: int) -> list[tuple[int, dict[str, Any]]]:
    """One of :data:`PARTS` parts of the rows, with their numbers."""
    return list(enumerate(rows()))[part::PARTS]


def serves(values: dict[str, Any], workload: Workload) -> int:
    """Serve a workload, check every output, and return the number of preemptions by recompute."""
    engine = build_memory_engine(REGISTRY, **values)
    groups = serve(engine, workload)
    check_served(engine, workload, groups)
    engine.close()
    return sum(group.num_preemptions for group in groups.values())


@in_parts
@pytest.mark.parametrize(
    "number",
    [
        0,
        *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3, 4)),
    ],
)
def test_every_pair_serves_as_if_each_request_were_alone(part: int, number: int) -> None:
    for row, values in numbered(part):
        assert refusal(values) is None
        num_preemptions = serves(values, mixed_workload(5 * row + number))
        assert not num_preemptions or values["preemption"]["name"] != "never"


@pytest.mark.long
@pytest.mark.parametrize("scheduler", variants(REGISTRY, "scheduler"), ids=repr)
def test_combinations_of_all_slots_serve_or_are_refused(scheduler: Table) -> None:
    """A thousand for each scheduler, of more than a hundred thousand."""
    others = [slot for slot in POLICY_SLOTS if slot != "scheduler"]
    limits = {name: values[0] for name, values in LIMITS.items()}
    every, drawn = list(product(*(COLUMNS[slot] for slot in others))), Random(repr(scheduler))
    for number, tables in enumerate(drawn.sample(every, 1000)):
        row = dict(zip(others, tables, strict=True)) | limits | {"scheduler": scheduler}
        values = settings_of(row, REGISTRY)
        if reason := refusal(values):
            assert names_two_components(reason, values)
        else:
            num_preemptions = serves(values, mixed_workload(number % 50, num_requests=6))
            assert not num_preemptions or values["preemption"]["name"] != "never"


def names_two_components(reason: str, values: dict[str, Any]) -> bool:
    """Return whether a refusal names the components that cannot be combined, by slot and name."""
    named = [
        slot
        for slot in POLICY_SLOTS
        if slot in values and re.search(rf"{slot} '{values[slot]['name']}'", reason)
    ]
    return len(named) >= 2


def test_invalid_combinations_are_refused_with_a_reason_and_a_remedy() -> None:
    assert misfits(), "contiguous reservations and swapping are one"
    for pair, reason in misfits():
        assert names_two_components(reason, pair), reason
        assert re.search(rf"set ({'|'.join(pair)}) to \w+", reason), reason
        for slot, table in pair.items():
            assert refusal({slot: table}) is None, "it is refused by itself"


@pytest.mark.parametrize("profile", sorted(REGISTRY.profiles))
def test_a_profile_serves(profile: str) -> None:
    small = {"profile": profile, "block_size": 4, "num_blocks": 33, "max_model_len": 64}
    serves(small, mixed_workload(5, num_requests=5))


def test_the_workloads_cause_preemptions() -> None:
    """If all requests fitted at once, preemption would not be tested."""
    num_preemptions = [
        sum(serves(row, mixed_workload(number)) for number in range(3))
        for row in rows()
        if row["preemption"]["name"] == "recompute"
        and row["block_allocator"]["name"] != "contiguous"
        and row["num_blocks"] < 30
    ]
    assert sum(count > 0 for count in num_preemptions) > len(num_preemptions) / 4, num_preemptions
