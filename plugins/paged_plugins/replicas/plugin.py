"""The plugin ``replicas``: several engines behind a router, simulated or real."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.plugins.component import Component, Slot
from paged_core.plugins.hooks import hookimpl
from paged_plugins.replicas.settings import RoutedSettings
from paged_plugins.routing.block_events import BlockEventsSettings
from paged_plugins.routing.prefix_affinity import PrefixAffinitySettings
from paged_plugins.routing.router import VERSION
from paged_plugins.routing.routers import (
    LeastLoadedSettings,
    PowerOfTwoSettings,
    RoundRobinSettings,
    SessionSettings,
)
from paged_plugins.routing.weighing import (
    FreenessSettings,
    PrebleSettings,
    WeightedSettings,
)

_ROUTERS = (
    (RoundRobinSettings, "RoundRobinRouter", "each replica in turn"),
    (LeastLoadedSettings, "LeastLoadedRouter", "the replica with the fewest requests"),
    (PowerOfTwoSettings, "PowerOfTwoRouter", "the less loaded of two replicas drawn at random"),
    (
        PrefixAffinitySettings,
        "make_router",
        "the replica that knows most of the prompt, unless it is overloaded (SGLang)",
    ),
    (SessionSettings, "SessionRouter", "a conversation always to the same replica, by hashing"),
    (
        PrebleSettings,
        "PrebleRouter",
        "the least to compute: queued, and new in the prompt (Preble)",
    ),
    (WeightedSettings, "WeightedRouter", "the highest weighted sum of scores (llm-d)"),
    (FreenessSettings, "FreenessRouter", "the most free memory for each request (Llumnix)"),
)


@hookimpl
def paged_core_slots() -> Iterator[Slot]:
    yield Slot(
        "router",
        "paged_plugins.routing.router:Router",
        summary="which of several replicas serves a request",
        version=VERSION,
        makeable=False,
    )
    yield Slot(
        "replicas",
        "paged_plugins.replicas.replicas:Replicas",
        "routed",
        summary="how many engines AsyncLLM and serve start, and what chooses between them",
        makeable=False,
    )


@hookimpl
def paged_core_components() -> Iterator[Component]:
    for settings, factory, summary in _ROUTERS:
        path = f"{settings.__module__}:{factory}"
        yield Component("router", settings, path, summary=summary, interface_version=VERSION)
    yield Component(
        "replicas",
        RoutedSettings,
        "paged_plugins.replicas.routed_client:make_replicas",
        check="paged_plugins.replicas.engine_settings:unavailable_reason",
        summary="engines in processes or on Ray; each request goes where a router sends it",
    )
    yield Component(
        "observers",
        BlockEventsSettings,
        "paged_plugins.routing.block_events:BlockEvents",
        summary="reports what the prefix cache holds, as numbered events, for a router",
    )
