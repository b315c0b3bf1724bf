"""Builds the engines of a shard."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from paged_core.errors import SettingsError
from paged_core.interfaces.executor import SupportsClock
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_core.wiring import build_engine
from paged_plugins.lab.cluster.replica import Replica
from paged_plugins.lab.cluster.shard import Shard
from paged_plugins.lab.runs.work_count import CountsWork


def build_shard(numbers: Iterable[int], settings: EngineSettings, registry: Registry) -> Shard:
    """Return a shard with an engine for each of ``numbers``.

    Raises:
        SettingsError: the engines cannot be simulated.
    """
    token_gaps: dict[int, int] = {}
    replicas: dict[int, Replica] = {}
    with ExitStack() as closing:
        for number in numbers:
            replicas[number] = _build_replica(number, settings, registry, token_gaps)
            closing.callback(replicas[number].close)
        closing.pop_all()  # they are closed with the shard
    return Shard(replicas, token_gaps)


def _build_replica(
    number: int, settings: EngineSettings, registry: Registry, token_gaps: dict[int, int]
) -> Replica:
    engine = build_engine(settings, registry)
    executor = engine.executor
    if not (isinstance(executor, SupportsClock) and isinstance(executor, CountsWork)):
        engine.close()
        raise SettingsError(
            f"executor {settings.executor.name!r} runs in real time, and a cluster is simulated; "
            "set executor to simulated"
        )
    return Replica(number, engine, executor, executor.clock, token_gaps)
