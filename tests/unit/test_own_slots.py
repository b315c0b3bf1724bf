"""Slots that a package brings: components ask for those of others by ``make``."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import pytest

from paged_core.client.choice import ClientContext
from paged_core.engine import contexts
from paged_core.engine.contexts import Context, EvictorContext, Maker, SlotContext
from paged_core.errors import PluginError
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import Component, ComponentSettings, Slot
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cost_model import CostModelContext
from paged_plugins.routing.router import RouterContext
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import Workload, simple_request


class WeightSettings(ComponentSettings):
    """Options."""

    name: Literal["fixed"] = "fixed"
    factor: int = 1


class Weight:
    """A component of a slot of this file; it asks for others."""

    def __init__(self, options: WeightSettings, context: SlotContext, /) -> None:
        self.factor, self.settings, self.make = options.factor, context.settings, context.make


class LastFirstSettings(ComponentSettings):
    """Options."""

    name: Literal["last_first"] = "last_first"


class LastFirst(QueueOrder):
    """Serves by a weight."""

    def __init__(self, options: LastFirstSettings, context: contexts.OrderContext, /) -> None:
        self.weight = context.make("weight")
        assert self.weight.make("nothing") is None
        assert [each.factor for each in context.make("weights")] == [1, 5]

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return self.weight.factor * group.number


def registry() -> Registry:
    parts = [Slot(key, f"{__name__}:Weight", default) for key, default in SLOTS.items()]
    parts += [Slot("weights", f"{__name__}:Weight", ("fixed",), many=True)]
    keys = [*SLOTS, "weights"]
    made = [Component(key, WeightSettings, f"{__name__}:Weight", summary="w") for key in keys]
    order = Component("queue_order", LastFirstSettings, f"{__name__}:LastFirst", summary="o")
    return Registry.discover().extended(*parts, *made, order)


SLOTS = {"weight": "fixed", "nothing": None}
CHOSEN: dict[str, Any] = {
    "queue_order": "last_first",
    "weight": {"name": "fixed", "factor": -1},
    "weights": ["fixed", {"name": "fixed", "factor": 5}],
}


class Admitted(Observer):
    """Requests in the order in which they were admitted."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted":
            self.names.append(group.id)


@pytest.mark.parametrize(("factor", "order"), [(1, "ABC"), (-1, "CBA")])
def test_a_policy_asks_a_component_of_another_slot(factor: int, order: str) -> None:
    told, weight = Admitted(), {"name": "fixed", "factor": factor}
    chosen = CHOSEN | {"weight": weight, "scheduler": {"name": "token_budget", "max_num_seqs": 1}}
    engine = build_memory_engine(registry(), observers=[told], **chosen)
    serve(engine, Workload(tuple((0, simple_request(name, 4, 2)) for name in "ABC")))
    assert "".join(told.names) == order


def test_every_context_has_it() -> None:
    found = {each for name, each in vars(contexts).items() if name.endswith("Context")}
    assert len(found) > 12
    for kind in found | {RouterContext, CostModelContext, ClientContext}:
        assert issubclass(kind, Context), kind


def test_what_it_makes_is_new_each_time_and_in_other_processes() -> None:
    known = registry()
    maker = Maker(settings_class(known)(**CHOSEN), known)
    first, second = maker("weight"), pickle.loads(pickle.dumps(maker))("weight")
    assert first is not second
    assert first.factor == second.factor == -1
    assert first.settings == second.settings == maker.settings


@pytest.mark.parametrize(
    ("slot", "why"),
    [
        ("wieght", "did you mean 'weight'"),
        ("victim", "paged-core itself makes"),
        ("router", "paged-core itself makes"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_the_reason(slot: str, why: str) -> None:
    known = registry()
    with pytest.raises(PluginError, match=why):
        Maker(settings_class(known)(**CHOSEN), known)(slot)


def test_a_context_made_by_hand_says_what_it_lacks() -> None:
    with pytest.raises(PluginError, match=r"give this context maker=Maker\(settings, registry\)"):
        EvictorContext(num_blocks=1, block_size=1, seed=0).make("weight")
