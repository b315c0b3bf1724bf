"""Caches and lengths of simulated arms that are more than a cost model has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paged_core.engine.contexts import Maker
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cost_model import CostModelContext
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.lab.simulation import CheckedCostModel
from paged_plugins.lab.study.arms import PlannedArm


def excess_notes(arms: Sequence[PlannedArm], registry: Registry) -> list[str]:
    """Return what to say of caches that do not fit beside the model of a cost model, and of lengths
    that it does not serve: they are simulated all the same.
    """
    found: dict[str, list[str]] = {}
    for one in arms:
        if one.settings.executor.name == SIMULATED:
            for note in _excess(one.settings, registry):
                found.setdefault(note, []).append(one.arm.label)
    return [
        f"note: {note}" + ("" if len(labels) == len(arms) else f" ({', '.join(labels)})")
        for note, labels in found.items()
    ]


def _excess(settings: EngineSettings, registry: Registry) -> Iterator[str]:
    asked, longest = settings.num_blocks, settings.max_model_len
    if asked is None and longest is None:
        return
    alone = settings.model_copy(update={"kv_cache_memory": None})
    chosen = dict(settings)["cost_model"]
    context = CostModelContext(settings=alone, maker=Maker(alone, registry))
    try:
        made = make_component(registry, "cost_model", chosen, context)
    except (PagedCoreError, OSError):
        return  # its runs say so
    model = CheckedCostModel(made, chosen.name)
    served = model.max_model_len
    if longest is not None and served is not None and longest > served:
        yield (
            f"max_model_len={longest:,} is more than the {served:,} tokens that the model of "
            f"cost_model {chosen.name} serves; leave it out, or choose another model"
        )
    try:
        room = model.num_blocks(settings.block_size)
    except SettingsError as error:
        if asked is not None:
            yield str(error)
        return
    if asked is not None and room is not None and asked > room:
        yield (
            f"num_blocks={asked:,} is more than the {room:,} blocks of {settings.block_size} "
            f"tokens that fit beside the model of cost_model {chosen.name}; leave it out for as "
            "many as fit, or choose a larger device"
        )
