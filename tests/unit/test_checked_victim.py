"""What a victim component answers is looked at before a scheduler acts on it."""

from __future__ import annotations

import pytest

from paged_policies.victims.newest import NewestVictim
from paged_testing import build_memory_engine, check_nothing_leaked, registry_with
from paged_testing.workloads import simple_request
from unit.faulty_settings import registry_of


class Absent(NewestVictim):
    """Chooses a group that is not a candidate."""

    def choose(self, candidates: object, now: float, /) -> object:  # type: ignore[override]
        return None


class Indexing(NewestVictim):
    """Answers with a place."""

    def choose(self, candidates: object, now: float, /) -> object:  # type: ignore[override]
        return 0


@pytest.mark.parametrize("scheduler", sorted(registry_with().of("scheduler")))
@pytest.mark.parametrize("kind", [Absent, Indexing])
def test_an_engine_names_the_victim_that_chose_no_candidate(kind: type, scheduler: str) -> None:
    engine = build_memory_engine(
        registry_of("victim", kind), victim="faulty", num_blocks=6, scheduler=scheduler
    )
    groups = [engine.add(simple_request(name, 7, 12)) for name in "ABC"]
    while engine.has_unfinished:
        engine.step()
    errors = [group.sequences[0].error or "" for group in groups]
    assert any(f"victim 'faulty': {kind.__name__} chose" in error for error in errors), errors
    check_nothing_leaked(engine)
