"""The components that decide, made from settings; made anew if one of them fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paged_core.cache.kv_cache import KVCache
from paged_core.checked.answers import (
    AdmissionAnswers,
    AllocatorAnswers,
    LengthAnswers,
    PreemptionAnswers,
    VictimAnswers,
)
from paged_core.checked.calls import guarded
from paged_core.engine.contexts import (
    AdmissionContext,
    AllocatorContext,
    Context,
    EvictorContext,
    Maker,
    OrderContext,
    PreemptionContext,
    SchedulerContext,
    SlotContext,
    VictimContext,
)
from paged_core.engine.preemptor import Preemptor
from paged_core.errors import SettingsError
from paged_core.interfaces.admission import Admission
from paged_core.interfaces.allocator import BlockAllocator, SupportsReservation
from paged_core.interfaces.evictor import Evictor
from paged_core.interfaces.executor import Capacity
from paged_core.interfaces.length_predictor import LengthPredictor
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.preemption import Preemption
from paged_core.interfaces.queue_order import QueueOrder, SupportsService
from paged_core.interfaces.scheduler import Scheduler
from paged_core.interfaces.victim import Victim
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.requests.waiting import Demand
from paged_core.settings.schema import EngineSettings


class Policies:
    """Makes the policies of an engine. Methods raise ``PluginError`` if one cannot be made."""

    def __init__(
        self, settings: EngineSettings, registry: Registry, future: LookupOracle | None
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._future = future
        self._maker = Maker(settings, registry)
        self.demand = Demand()
        lengths: LengthPredictor = self._make("length_predictor", SlotContext(settings=settings))
        self._lengths = guarded(lengths, "length_predictor", LengthPredictor, LengthAnswers())
        parts = AdmissionContext(settings=settings, length_predictor=self._lengths)
        admission: Admission = self._make("admission", parts)
        self.admission = guarded(admission, "admission", Admission, AdmissionAnswers())
        self.observers = [each for each in (lengths, admission) if isinstance(each, Observer)]
        """Components that are told of steps and requests, too."""

    def make_kv_cache(self, capacity: Capacity) -> KVCache:
        """Return an empty cache.

        Raises:
            SettingsError: the chosen allocator and the preemption do not work together.
        """
        settings = self._settings
        allocator = self.make_allocator(capacity)
        if isinstance(allocator, SupportsReservation) and self.make_preemption().may_swap:
            raise SettingsError(
                f"preemption {settings.preemption.name!r} may swap, but block_allocator "
                f"{settings.block_allocator.name!r} reserves blocks for a sequence's whole life, "
                "to which nothing could be swapped in; set preemption to recompute or never"
            )
        return KVCache(
            allocator,
            num_blocks=capacity.num_blocks,
            block_size=settings.block_size,
            num_host_blocks=capacity.num_host_blocks,
            watermark=settings.watermark,
        )

    def make_preemption(self) -> Preemption:
        context = PreemptionContext(block_size=self._settings.block_size)
        made: Preemption = self._make("preemption", context)
        return guarded(made, "preemption", Preemption, PreemptionAnswers())

    def make_scheduler(
        self, kv_cache: KVCache, max_model_len: int
    ) -> tuple[Scheduler, SupportsService | None]:
        """Return a scheduler that holds nothing, and its queue order if that counts service."""
        parts = OrderContext(kv_cache=kv_cache, length_predictor=self._lengths)
        order: QueueOrder = self._make("queue_order", parts)
        choosing = VictimContext(kv_cache=kv_cache, length_predictor=self._lengths)
        victim = self._make("victim", choosing)
        preemption = self.make_preemption()
        context = SchedulerContext(
            kv_cache=kv_cache,
            queue_order=order,
            victim=guarded(victim, "victim", Victim, VictimAnswers()),
            preemption=preemption,
            preemptor=Preemptor(kv_cache, preemption),
            max_model_len=max_model_len,
        )
        service = order if isinstance(order, SupportsService) else None
        return self._make("scheduler", context), service

    def make_allocator(self, capacity: Capacity) -> BlockAllocator:
        """Return an allocator of which all blocks are free."""
        settings = self._settings
        parts = EvictorContext(
            num_blocks=capacity.num_blocks,
            block_size=settings.block_size,
            seed=settings.seed,
            future=self._future,
        )
        evictor = guarded(self._make("evictor", parts), "evictor", Evictor)
        self.demand.begin(evictor)
        context = AllocatorContext(
            num_blocks=capacity.num_blocks,
            block_size=settings.block_size,
            max_model_len=capacity.max_model_len,
            evictor=evictor,
        )
        made: BlockAllocator = self._make("block_allocator", context)
        answers = AllocatorAnswers(capacity.num_blocks) if settings.checks == "full" else None
        return guarded(made, "block_allocator", BlockAllocator, answers)

    def _make(self, slot: str, context: Context) -> Any:
        context = replace(context, maker=self._maker)
        return make_component(self._registry, slot, getattr(self._settings, slot), context)
