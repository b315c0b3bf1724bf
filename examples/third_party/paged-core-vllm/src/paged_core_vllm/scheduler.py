"""vLLM's scheduler with components of paged-core in it; ``schedule()`` itself stays vLLM's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler

from paged_core_vllm import surface
from paged_core_vllm.counts import CountsWriter, counts_file
from paged_core_vllm.policies import Policies
from paged_core_vllm.recorder import Recorded, Recorder
from paged_core_vllm.settings import ARGUMENT, load_settings
from paged_core_vllm.views import GroupView
from paged_core_vllm.waiting import PolicyQueue

_log = init_logger("vllm.paged_core")

RequestQueue.register(PolicyQueue)


class _Deciding:
    """Goes before a scheduler of vLLM, and asks the components where that one would decide.

    * The waiting queue is a :class:`~paged_core_vllm.waiting.PolicyQueue`.
    * vLLM's branch for ``priority`` preempts whichever running request has the highest number, and
      takes back what was planned for it. Reading :attr:`policy` leads into that branch, has the
      component choose, and gives its choice an infinite number until it is preempted.
    * The free list is a :class:`~paged_core_vllm.free_list.FreeList`, unless it is ``lru``.
    """

    clock = staticmethod(time.time)
    """Seconds, as vLLM stamps arrivals."""
    _policy: SchedulingPolicy
    _policies: Policies | None = None
    recorder: Recorder | None
    _is_planning = False
    _marked: tuple[Any, int] | None = None
    """The victim, and the priority that its user gave it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        release = surface.refuse_unknown().release or ""
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        extra = scheduler.vllm_config.additional_config
        argument = extra.get(ARGUMENT) if isinstance(extra, Mapping) else None
        loaded = load_settings(argument, policy=self._policy.value)
        self._views: dict[str, GroupView] = {}
        self._silent: dict[str, GroupView] = {}
        """Requests that have no token yet."""
        self._numbers = 0
        self._policies = Policies(loaded, scheduler, self._view, lambda: scheduler.clock())
        scheduler.waiting = self._policies.queue
        rank = getattr(scheduler.parallel_config, "data_parallel_index", 0)
        path = counts_file(scheduler.vllm_config.instance_id, rank)
        self._counts = CountsWriter(path, self._policies.tally)
        if loaded.settings.record is not None:
            chosen = self._policies.chosen()
            self.recorder = Recorder(loaded.settings.record, scheduler, chosen)
        _log.info("vLLM %s decides by %s", release, self._policies.described())
        if not surface.is_tested(release):
            _log.warning(
                "vLLM %s has the surface that is needed, but decisions were compared on %s only",
                release,
                ", ".join(each + "x" for each in surface.TESTED),
            )

    # ------------------------------------------------------------------ requests

    def _view(self, request: Any) -> GroupView:
        view = self._views.get(request.request_id)
        if view is None:
            assert self._policies is not None
            self._numbers += 1
            view = self._policies.view(request, self._numbers)
            self._views[request.request_id] = self._silent[request.request_id] = view
        return view

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        policies: Any = self._policies
        policies.queue.begin()
        self._is_planning = True
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._is_planning = False
            self._unmark()
        if policies.serves:
            policies.served(self._views, output.num_scheduled_tokens)
        self._counts.write(time.monotonic())
        return output

    def shutdown(self) -> None:
        self._counts.close()
        super().shutdown()  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply a result, and note when requests have their first token."""
        update = super().update_from_output  # type: ignore[misc]
        result = update(scheduler_output, *args, **kwargs)
        scheduled = scheduler_output.num_scheduled_tokens.keys()
        for name in self._silent.keys() & scheduled:
            view = self._silent[name]
            if view.inner.num_output_tokens:
                view.first_token_at = self.clock()
                del self._silent[name]
        return result

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        view = self._views.pop(request.request_id, None)
        self._silent.pop(request.request_id, None)
        if view is not None and self._policies is not None:
            self._policies.left(view)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    # ------------------------------------------------------------------ victims

    @property
    def policy(self) -> SchedulingPolicy:
        """The policy of vLLM's configuration; while a step is planned, one that lets any victim be
        chosen: vLLM asks for it where it preempts."""
        if not self._is_planning:
            return self._policy
        if self._marked is None:
            self._mark()
        return SchedulingPolicy.PRIORITY

    @policy.setter
    def policy(self, value: SchedulingPolicy) -> None:
        self._policy = value

    def _mark(self) -> None:
        policies: Any = self._policies
        running: list[Any] = self.running  # type: ignore[attr-defined]
        if running:
            victim = policies.choose([self._view(request) for request in running]).inner
            self._marked = victim, victim.priority
            victim.priority = float("inf")

    def _unmark(self) -> None:
        if self._marked is not None:
            victim, priority = self._marked
            victim.priority, self._marked = priority, None

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self._unmark()
        self._view(request).num_lost = request.num_computed_tokens
        self._hide_uncomputed(request)
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def _hide_uncomputed(self, request: Any) -> None:
        """Make blocks unfindable that this step was to compute for a request that is preempted.

        vLLM publishes blocks when it plans them, so that others would find in them what nothing
        has computed (its issues #43569 and #57580). A victim that comes before the request it makes
        room for was planned in this step.
        """
        manager = self.kv_cache_manager  # type: ignore[attr-defined]
        groups = manager.kv_cache_config.kv_cache_groups
        for ids, group in zip(manager.get_block_ids(request.request_id), groups, strict=True):
            first = request.num_computed_tokens // group.kv_cache_spec.block_size
            if late := set(ids[first:]):
                manager.evict_blocks(late)


class PolicyScheduler(Recorded, _Deciding, Scheduler):  # type: ignore[misc]
    """The scheduler to be named to vLLM; asynchronous where vLLM's configuration is."""

    def __new__(cls, *args: Any, **kwargs: Any) -> PolicyScheduler:
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        is_async = cls is PolicyScheduler and config.scheduler_config.async_scheduling
        return object.__new__(AsyncPolicyScheduler if is_async else cls)


class AsyncPolicyScheduler(PolicyScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same, over vLLM's asynchronous scheduler."""
