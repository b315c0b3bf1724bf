"""Settings that change nothing in the runs of a study: who asks what they do must not be told that
they do nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from paged_core.errors import SettingsError
from paged_core.interfaces.allocator import SupportsPrefixCache
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.lab.tasks.sources import Sources
from paged_plugins.lab.tasks.task import Task, run
from paged_plugins.workloads.spec import WorkloadSpec

OF_MODELS = frozenset(
    {
        *("model", "tokenizer", "device", "threads", "deterministic", "enforce_eager"),
        *("trust_remote_code", "allow_pickle", "attention", "runner", "generation_config"),
    }
)
"""Settings that a simulated engine does not read."""
OF_ROOFLINES = frozenset({"dtype", "kv_cache_dtype", "kv_cache_memory"})
"""Settings that it reads for the cost model ``roofline``, and not for ``linear``."""


_SEEDED = frozenset({"admission", "evictor", "length_predictor", "router"})
"""Slots of ours whose contexts have a seed."""
_ONE_REQUEST = WorkloadSpec.model_validate(
    {"name": "one", "requests": 1, "lengths": {"prompt": 4, "output": 2}}
)


def refuse_unused(
    keys: Iterable[str],
    arms: Sequence[EngineSettings],
    registry: Registry,
    num_replicas: int | None,
) -> None:
    """Refuse settings that no arm reads.

    Whether a simulated arm makes a component of a slot is seen where it serves one request. Of arms
    that run a model this is not asked: that takes time, and processes of theirs may make some.

    Args:
        keys: of those that were given for these runs, dotted.
        arms: the settings of each.
        num_replicas: engines behind a router; ``None``: one alone.

    Raises:
        SettingsError: one is of no use; the message names it, and what to give instead.
    """
    given = dict.fromkeys(key.partition(".")[0] for key in keys)
    if any(dict(settings).get("router") is not None for settings in arms):
        given["router"] = None
    for key in given:
        reasons = [_unused(key, settings, registry, num_replicas) for settings in arms]
        if all(reasons):
            raise SettingsError(f"{key} has no effect here: {reasons[0]}")
    is_simulated = all(settings.executor.name == SIMULATED for settings in arms)
    if (
        "seed" in given
        and is_simulated
        and not any(draws(settings, registry, num_replicas) for settings in arms)
    ):
        raise SettingsError(
            "seed has no effect here: no component of these runs draws; leave it out, or give "
            "--seeds for other requests (in a file: `seeds`)"
        )
    slots = registry.slots.keys() & given.keys() - {"router", "observers"}
    for settings in arms:
        if slots and settings.executor.name == SIMULATED:
            slots -= _made(settings, registry, slots)
        else:
            return
    if slots:
        key = min(slots)
        raise SettingsError(
            f"{key} has no effect here: nothing in these runs makes a component of this slot; "
            "leave it out, or choose a component that asks for it"
        )


def _made(settings: EngineSettings, registry: Registry, slots: set[str]) -> set[str]:
    """Return the slots of which an engine makes components; ``slots`` if it cannot be run."""
    made = _asked_for(settings, registry)
    return slots if made is None else {component.slot for component in made}


def draws(settings: EngineSettings, registry: Registry, num_replicas: int | None) -> bool:
    """Return whether a simulated run may depend on its seed.

    A policy may draw only from a seed that its context gives: that of an evictor or a router, and
    by the settings that of any slot which a package brings. Of our own, the module says whether it
    does; of others, all files of its distribution and of plugins that these import.
    """
    made = _asked_for(settings, registry)
    if made is None:
        return True
    router = dict(settings).get("router")
    if num_replicas is not None and router is not None:
        made.append(registry.get("router", router.name))
    ours = next(plugin.distribution for plugin in registry.plugins if plugin.name == "core")
    own = [plugin for plugin in registry.plugins if plugin.distribution == ours]
    without = {slot.key for plugin in own for slot in plugin.slots} - _SEEDED
    known = {(each.slot, each.name) for plugin in own for each in plugin.components}
    seeded = [component for component in made if component.slot not in without]
    sources = Sources(registry)
    return any(
        _says_seed(each) if (each.slot, each.name) in known else sources.speaks_of("seed", each)
        for each in seeded
    )


def _says_seed(component: Component) -> bool:
    module = inspect.getmodule(component.load())
    return module is None or "seed" in inspect.getsource(module)


def _asked_for(settings: EngineSettings, registry: Registry) -> list[Component] | None:
    """Return the components that an engine asks for to serve a request, without observers, which
    may write files; ``None``: it cannot.
    """
    watched = _WatchedRegistry(registry.plugins)
    settings = settings.model_copy(update={"observers": ()})
    task = Task(arm="", settings=settings, workload=_ONE_REQUEST, seed=0)
    return None if run(task, watched).record is None else watched.asked


class _WatchedRegistry(Registry):
    """Knows which components were asked for."""

    @property
    def asked(self) -> list[Component]:
        return self.memo.setdefault("asked", [])  # type: ignore[no-any-return]

    def get(self, slot: str, name: str, /) -> Component:
        component = super().get(slot, name)
        self.asked.append(component)
        return component


def _unused(
    key: str, settings: EngineSettings, registry: Registry, num_replicas: int | None
) -> str | None:
    """Return why a setting has no effect, and what to do; ``None``: it has one."""
    if key == "router" and (num_replicas or 1) < 2:
        return "one engine serves all requests; give --replicas 2 or more (in a file: `replicas`)"
    if key == "evictor":
        allocator = registry.get("block_allocator", settings.block_allocator.name)
        made = allocator.load()
        if isinstance(made, type) and not issubclass(made, SupportsPrefixCache):
            return f"block_allocator {allocator.name} evicts nothing; leave it out, or vary that"
    if settings.executor.name != SIMULATED:
        if key != "cost_model":
            return None
        memory = registry.get("executor", "memory").settings.model_validate({})
        policies = settings.model_copy(update={"executor": memory})
        asked = _made(policies, registry, {key})
        return None if key in asked else "a model runs, in real time; leave it out"
    cost_model = dict(settings)["cost_model"].name
    if key == "model":
        return "a simulation runs no model; its times are those of cost_model.model"
    if key in OF_MODELS:
        return "a simulation runs no model; leave it out, or run one (--real)"
    if key in OF_ROOFLINES and cost_model == "linear":
        return "cost_model linear does not ask for it; leave it out, or give --cost-model roofline"
    return None
