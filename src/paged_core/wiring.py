"""From settings to an engine: the one place that knows which component gets what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any

from paged_core.engine import Engine
from paged_core.errors import SettingsError
from paged_core.interfaces.allocator import AllocatorParts, SupportsReservation
from paged_core.interfaces.checked_victim import CheckedVictim
from paged_core.interfaces.component_factory import make_component
from paged_core.interfaces.evictor import Evictor, EvictorParts
from paged_core.interfaces.executor import Capacity, Executor, ExecutorParts
from paged_core.interfaces.future import Future
from paged_core.interfaces.observer import Observer, ObserverParts
from paged_core.interfaces.preemption import Preemption, PreemptionParts
from paged_core.interfaces.queue_order import OrderParts, QueueOrder
from paged_core.interfaces.scheduler import Scheduler, SchedulerParts
from paged_core.interfaces.service import service_of
from paged_core.interfaces.victim import VictimParts
from paged_core.kv_cache import KVCache
from paged_core.preemptor import Preemptor
from paged_core.registry import Registry
from paged_core.settings import EngineSettings


def build_engine(
    settings: EngineSettings,
    registry: Registry,
    *,
    clock: Callable[[], float] = monotonic,
    observers: Sequence[Observer] = (),
    future: Future | None = None,
) -> Engine:
    """Build and start an engine.

    Args:
        clock: in seconds; measures arrivals and deadlines.
        observers: notified of every event, besides those that the settings name.
        future: what requests will ask the prefix cache for, which is known in a replay.

    Raises:
        SettingsError: the settings contradict each other or what the machine offers.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
        PluginError: a chosen component cannot be imported.
    """

    def make(slot: str, parts: Any) -> Any:
        return make_component(registry, slot, getattr(settings, slot), parts)

    preemption: Preemption = make("preemption", PreemptionParts(block_size=settings.block_size))
    executor_parts = ExecutorParts(
        settings=settings, registry=registry, needs_host_blocks=preemption.may_swap
    )
    executor: Executor = make("executor", executor_parts)
    with ExitStack() as on_error:
        on_error.callback(executor.close)
        capacity = executor.start()
        kv_cache = _make_kv_cache(settings, make, capacity, preemption, future)
        queue_order: QueueOrder = make("queue_order", OrderParts(kv_cache=kv_cache))
        scheduler_parts = SchedulerParts(
            kv_cache=kv_cache,
            queue_order=queue_order,
            victim=CheckedVictim(make("victim", VictimParts(kv_cache=kv_cache))),
            preemption=preemption,
            preemptor=Preemptor(kv_cache, preemption),
            max_model_len=capacity.max_model_len,
        )
        scheduler: Scheduler = make("scheduler", scheduler_parts)
        parts = ObserverParts(settings=settings, num_blocks=capacity.num_blocks)
        named = [make_component(registry, "observers", one, parts) for one in settings.observers]
        mode = settings.async_scheduling
        engine = Engine(
            scheduler=scheduler,
            kv_cache=kv_cache,
            executor=executor,
            capacity=capacity,
            service=service_of(queue_order),
            observers=[*observers, *named],
            clock=clock,
            async_scheduling=executor.runs_in_background if mode == "auto" else mode,
        )
        on_error.pop_all()
        return engine


def _make_kv_cache(
    settings: EngineSettings,
    make: Callable[[str, Any], Any],
    capacity: Capacity,
    preemption: Preemption,
    future: Future | None,
) -> KVCache:
    num_blocks, block_size = capacity.num_blocks, settings.block_size
    evictor_parts = EvictorParts(
        num_blocks=num_blocks, block_size=block_size, seed=settings.seed, future=future
    )
    evictor: Evictor = make("evictor", evictor_parts)
    allocator_parts = AllocatorParts(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=capacity.max_model_len,
        evictor=evictor,
    )
    allocator = make("block_allocator", allocator_parts)
    if isinstance(allocator, SupportsReservation) and preemption.may_swap:
        raise SettingsError(
            f"preemption {settings.preemption.name!r} may swap, but block_allocator "
            f"{settings.block_allocator.name!r} reserves blocks for a sequence's whole life, "
            "to which nothing could be swapped in; set preemption to recompute or never"
        )
    return KVCache(
        allocator,
        num_blocks=num_blocks,
        block_size=block_size,
        num_host_blocks=capacity.num_host_blocks,
        watermark=settings.watermark,
        notes_steps=evictor.wants_last_step,
    )
