"""The components that decide, made for one scheduler of vLLM, and how they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged_core.checked.calls import asking
from paged_core.engine.contexts import EvictorContext, OrderContext, VictimContext
from paged_core.errors import PluginError, SettingsError
from paged_core.interfaces.evictor import SupportsDemand
from paged_core.interfaces.queue_order import SupportsQuantum, SupportsService
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry

from paged_core_vllm.faults import Tally
from paged_core_vllm.free_list import FreeList
from paged_core_vllm.settings import CARRIED, Loaded
from paged_core_vllm.views import CacheView, GroupView
from paged_core_vllm.waiting import OwnOrder, PolicyQueue


def make(registry: Registry, slot: str, options: ComponentSettings, context: Any) -> Any:
    """Make a component that can decide inside vLLM.

    Raises:
        SettingsError, PluginError: it cannot; the message is the reason.
    """
    if reason := registry.get(slot, options.name).unavailable_reason(options):
        raise SettingsError(reason)
    made = make_component(registry, slot, options, context)
    if isinstance(made, SupportsQuantum):
        raise SettingsError("it has quanta, and vLLM preempts for blocks alone")
    if isinstance(made, SupportsDemand):
        raise SettingsError("it is to be told what waiting requests want, which vLLM does not say")
    return made


def refusal(slot: str, name: str, reason: str, where: str) -> str:
    """Say that a component cannot be carried over to vLLM."""
    return f"{slot} {name!r} cannot be carried over to vLLM: {reason}{where}"


class Policies:
    """Queue order, victim and evictor of one scheduler.

    Args:
        scheduler: vLLM's, when its own start has ended.
        view_of: returns the view of a request.
        clock: seconds, as in arrival times.

    Raises:
        SettingsError: a component cannot be carried over to vLLM; the message says why.
    """

    def __init__(
        self,
        loaded: Loaded,
        scheduler: Any,
        view_of: Callable[[Any], GroupView],
        clock: Callable[[], float],
    ) -> None:
        self._loaded, self._clock = loaded, clock
        self.tally = Tally(loaded.settings.strict)
        self.cache = CacheView(
            scheduler.kv_cache_manager,
            scheduler.block_size,
            caches_prefixes=bool(scheduler.cache_config.enable_prefix_caching),
        )
        self._max_model_len = scheduler.max_model_len
        own = scheduler.policy.value
        order = self._make("queue_order", OrderContext(kv_cache=self.cache))  # type: ignore[arg-type]
        self._order, self._own_rule = order, OwnOrder(own)
        self._service = order if isinstance(order, SupportsService) else None
        self.queue = PolicyQueue(order, self._own_rule, view_of, clock, self.tally)
        self._victim = self._make("victim", VictimContext(kv_cache=self.cache))  # type: ignore[arg-type]
        self._is_priority = own == "priority"
        self._make_evictor(scheduler)

    def _make_evictor(self, scheduler: Any) -> None:
        settings, pool = self._loaded.settings, scheduler.kv_cache_manager.block_pool
        name, is_caching = settings.evictor.name, scheduler.cache_config.enable_prefix_caching
        is_own = name == "lru" and len(settings.evictor.model_dump(exclude_defaults=True)) == 0
        if is_own and not (is_caching and settings.replace_lru):
            self.tally.evictor.name = name  # vLLM's own list decides so
            return
        if not is_caching:
            raise self._refusal("evictor", "without --enable-prefix-caching nothing is evicted")
        context = EvictorContext(
            num_blocks=pool.num_gpu_blocks,
            block_size=scheduler.block_size,
            seed=scheduler.vllm_config.model_config.seed or 0,
        )
        FreeList(pool, self._make("evictor", context), self.tally)

    def _make(self, slot: str, context: Any) -> Any:
        options = getattr(self._loaded.settings, slot)
        try:
            made = make(self._loaded.registry, slot, options, context)
        except (PluginError, SettingsError) as error:
            raise self._refusal(slot, str(error)) from error
        getattr(self.tally, slot).name = options.name
        return made

    def _refusal(self, slot: str, reason: str) -> SettingsError:
        name = getattr(self._loaded.settings, slot).name
        where = self._loaded.origins[f"{slot}.name"].suffix
        return SettingsError(refusal(slot, name, reason, where))

    def chosen(self) -> dict[str, Any]:
        """Return the components that decide, with their options, by slot."""
        settings = self._loaded.settings
        return {slot: getattr(settings, slot).model_dump(mode="json") for slot in CARRIED}

    def described(self) -> str:
        """Return the chosen components and where each was chosen, in a line."""
        settings, origins = self._loaded.settings, self._loaded.origins
        return ", ".join(
            f"{slot} {getattr(settings, slot).name}{origins[f'{slot}.name'].suffix}"
            for slot in CARRIED
        )

    # ------------------------------------------------------------------ requests

    def view(self, request: Any, number: int) -> GroupView:
        """Return the view of a new request."""
        return GroupView(request, number, self.cache, self._max_model_len)

    @property
    def serves(self) -> bool:
        """True if the order counts what each request is given."""
        return self._service is not None

    def served(self, views: Mapping[str, GroupView], tokens: Mapping[str, int]) -> None:
        """Tell the order what a step gives to each request."""
        assert self._service is not None
        now, served = self._clock(), self._service.served
        for name, count in tokens.items():
            try:
                served(views[name], count, now)
            except Exception as error:
                self.tally.fault("queue_order", self._order, error)

    def left(self, view: GroupView) -> None:
        """Tell the order that a request has ended."""
        if self._service is not None:
            try:
                self._service.left(view)
            except Exception as error:
                self.tally.fault("queue_order", self._order, error)

    # ------------------------------------------------------------------ victims

    def choose(self, running: Sequence[GroupView]) -> GroupView:
        """Return the request to be preempted; if a component raises, the one that vLLM would."""
        own = running[-1]
        if self._is_priority:
            own = max(running, key=lambda view: (view.inner.priority, view.arrival))
        try:
            victim = self._ask(running)
        except Exception as error:
            self.tally.fault("victim", self._victim, error)
            return own
        self.tally.victim.decided(len(running) > 1, victim is not own)
        return victim

    def _ask(self, running: Sequence[GroupView]) -> GroupView:
        now = self._clock()
        with asking(self._order):
            ranked = sorted(running, key=lambda view: self._order.key(view, now))
        candidates = tuple(ranked[1:] or ranked)  # the first is to end in any case
        victim = self._victim.choose(candidates, now)
        if not any(victim is each for each in candidates):
            raise PluginError(f"choose() returned {victim!r}, which is none of its candidates")
        assert isinstance(victim, GroupView)
        return victim
