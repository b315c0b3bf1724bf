"""From settings to an engine: the one place that knows which part gets what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from paged_core.checked_victim import CheckedVictim
from paged_core.component import ComponentSettings
from paged_core.engine import Engine
from paged_core.errors import PagedCoreError, PluginError, SettingsError, UnsupportedModel
from paged_core.interfaces.allocator import AllocatorParts, SupportsReservation
from paged_core.interfaces.attention import AttentionBackend, AttentionParts
from paged_core.interfaces.evictor import Evictor, EvictorParts
from paged_core.interfaces.executor import Capacity, Executor, ExecutorParts
from paged_core.interfaces.future import Future
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.observer import Observer, ObserverParts
from paged_core.interfaces.preemption import Preemption, PreemptionParts
from paged_core.interfaces.queue_order import OrderParts, QueueOrder
from paged_core.interfaces.runner import Runner, RunnerParts
from paged_core.interfaces.scheduler import Scheduler, SchedulerParts
from paged_core.interfaces.victim import VictimParts
from paged_core.kv_cache import KVCache
from paged_core.log import get_logger
from paged_core.preemptor import Preemptor
from paged_core.registry import Registry
from paged_core.service import service_of
from paged_core.settings import EngineSettings

_log = get_logger()

Part = TypeVar("Part")


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
        clock: seconds; what the engine measures arrivals and deadlines on.
        observers: told of everything, besides those that the settings name.
        future: what requests will ask the prefix cache for, where the caller knows it: in a replay.

    Raises:
        SettingsError: the settings contradict each other or what the machine offers.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
        PluginError: a chosen component cannot be imported.
    """
    wiring = _Wiring(settings, registry, future)
    preemption: Preemption = wiring.make(
        "preemption", PreemptionParts(block_size=settings.block_size)
    )
    executor: Executor = wiring.make(
        "executor",
        ExecutorParts(
            settings=settings,
            needs_host_blocks=preemption.may_swap,
            make_runner=wiring.make_runner,
            make_attention=wiring.make_attention,
        ),
    )
    with _closing_on_error(executor):
        capacity = executor.start()
        kv_cache = wiring.make_kv_cache(capacity, preemption)
        queue_order: QueueOrder = wiring.make("queue_order", OrderParts(kv_cache=kv_cache))
        parts = SchedulerParts(
            kv_cache=kv_cache,
            queue_order=queue_order,
            victim=CheckedVictim(wiring.make("victim", VictimParts(kv_cache=kv_cache))),
            preemption=preemption,
            preemptor=Preemptor(kv_cache, preemption),
            max_model_len=capacity.max_model_len,
        )
        scheduler: Scheduler = wiring.make("scheduler", parts)
        observer_parts = ObserverParts(settings=settings, num_blocks=capacity.num_blocks)
        return Engine(
            scheduler=scheduler,
            kv_cache=kv_cache,
            executor=executor,
            capacity=capacity,
            service=service_of(queue_order),
            observers=[
                *observers,
                *(
                    wiring.build("observers", chosen, observer_parts)
                    for chosen in settings.observers
                ),
            ],
            clock=clock,
            async_scheduling=(
                executor.runs_in_background
                if settings.async_scheduling == "auto"
                else settings.async_scheduling
            ),
        )


class _Wiring:
    """Builds components, each from its options and the parts of its slot."""

    def __init__(self, settings: EngineSettings, registry: Registry, future: Future | None) -> None:
        self._settings = settings
        self._registry = registry
        self._future = future

    def make(self, slot: str, parts: Any) -> Any:
        """Build the component that the settings choose for ``slot``."""
        return self.build(slot, getattr(self._settings, slot), parts)

    def build(self, slot: str, options: ComponentSettings, parts: Any) -> Any:
        """Build the component that ``options`` name.

        Raises:
            PluginError: its own code raised something that is no error of ours.
        """
        factory = self._registry.get(slot, options.name).load()
        try:
            return factory(options, parts)
        except (PagedCoreError, OSError, MemoryError):
            raise
        except Exception as error:
            owner = self._registry.provider(slot, options.name)
            raise PluginError(
                f"{slot} {options.name!r}, of {owner}, could not be made: "
                f"{type(error).__name__}: {error}"
            ) from error

    def make_kv_cache(self, capacity: Capacity, preemption: Preemption) -> KVCache:
        settings = self._settings
        evictor: Evictor = self.make(
            "evictor",
            EvictorParts(
                num_blocks=capacity.num_blocks,
                block_size=settings.block_size,
                seed=settings.seed,
                future=self._future,
            ),
        )
        allocator = self.make(
            "block_allocator",
            AllocatorParts(
                num_blocks=capacity.num_blocks,
                block_size=settings.block_size,
                max_model_len=capacity.max_model_len,
                evictor=evictor,
            ),
        )
        if isinstance(allocator, SupportsReservation) and preemption.may_swap:
            raise SettingsError(
                f"preemption {settings.preemption.name!r} may swap, but block_allocator "
                f"{settings.block_allocator.name!r} sets blocks aside for a sequence's whole life, "
                "to which nothing could be swapped back; set preemption to recompute or never"
            )
        return KVCache(
            allocator,
            num_blocks=capacity.num_blocks,
            block_size=settings.block_size,
            num_host_blocks=capacity.num_host_blocks,
            watermark=settings.watermark,
            notes_steps=evictor.wants_last_step,
        )

    def make_runner(self) -> Runner:
        """Build and load the chosen runner, or the best one that can run the model."""

        def load(options: ComponentSettings) -> Runner:
            runner: Runner = self.build("runner", options, RunnerParts(settings=self._settings))
            runner.load()
            return runner

        return self._choose("runner", load)

    def make_attention(self, layers: Sequence[LayerSpec]) -> AttentionBackend:
        """Build the chosen attention, or the best one that serves all of ``layers``."""

        def check(options: ComponentSettings) -> AttentionBackend:
            backend: AttentionBackend = self.build(
                "attention", options, AttentionParts(settings=self._settings)
            )
            for layer in dict.fromkeys(layers):
                reason = backend.check(layer)
                if reason:
                    raise UnsupportedModel(f"attention {options.name!r} cannot serve it: {reason}")
            return backend

        return self._choose("attention", check)

    def _choose(self, slot: str, build: Callable[[ComponentSettings], Part]) -> Part:
        """Build what the settings name; for ``auto`` the candidate of highest rank that serves."""
        options: ComponentSettings = getattr(self._settings, slot)
        if options.name != "auto":
            reason = self._registry.get(slot, options.name).obstacle()
            if reason:
                raise SettingsError(f"{slot} {options.name!r} cannot be used here: {reason}")
            return build(options)
        refusals: dict[str, str] = {}
        for component in self._registry.candidates(slot):
            reason = component.obstacle()
            if reason is None:
                try:
                    part = build(component.settings.model_validate({}))
                except UnsupportedModel as error:
                    reason = str(error)
                else:
                    _log.info("component_chosen", slot=slot, name=component.name, refused=refusals)
                    return part
            refusals[component.name] = reason
        listed = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UnsupportedModel(f"no {slot} can serve this model here: {listed or 'none installed'}")


@contextmanager
def _closing_on_error(executor: Executor) -> Iterator[None]:
    try:
        yield
    except BaseException:
        executor.close()
        raise
