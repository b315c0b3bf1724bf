"""The conformance kit: what the tests of a component need (extra: ``paged-core[testing]``).

Subclass the class of your component's slot, name the component, and inherit its tests::

    from paged_testing import EvictorConformance

    class TestMyEvictor(EvictorConformance):
        component = "my_evictor"

It needs pytest and hypothesis, and no model: engines run on the ``memory`` executor, whose cache
holds token ids and which reads every scheduled sequence back through its block table.
"""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_testing.allocator_conformance import BlockAllocatorConformance
from paged_testing.attention_conformance import AttentionConformance
from paged_testing.component_conformance import ComponentConformance, ServesEveryWorkload
from paged_testing.engine_settings import POLICY_SLOTS, component_options, engine_settings
from paged_testing.evictor_conformance import EvictorConformance, IdleBlock
from paged_testing.executor_conformance import ExecutorConformance
from paged_testing.failing_executor import FailingExecutor, StepFailure
from paged_testing.memory_engine import build_memory_engine, serve
from paged_testing.observer_conformance import ObserverConformance
from paged_testing.preemption_conformance import PreemptionConformance
from paged_testing.queue_order_conformance import QueueOrderConformance
from paged_testing.registry import registry_with
from paged_testing.round_trip import settings_round_trip
from paged_testing.runner_conformance import RunnerConformance
from paged_testing.scheduler_conformance import SchedulerConformance
from paged_testing.text_alone import check_nothing_leaked, check_served, text_alone
from paged_testing.victim_conformance import VictimConformance
from paged_testing.watched_scheduler import WatchedScheduler
from paged_testing.workload import Workload, requests, simple_request, workloads

__all__ = [
    "POLICY_SLOTS",
    "AttentionConformance",
    "BlockAllocatorConformance",
    "ComponentConformance",
    "EvictorConformance",
    "ExecutorConformance",
    "FailingExecutor",
    "IdleBlock",
    "ObserverConformance",
    "PreemptionConformance",
    "QueueOrderConformance",
    "RunnerConformance",
    "SchedulerConformance",
    "ServesEveryWorkload",
    "StepFailure",
    "VictimConformance",
    "WatchedScheduler",
    "Workload",
    "build_memory_engine",
    "check_nothing_leaked",
    "check_served",
    "component_options",
    "engine_settings",
    "registry_with",
    "requests",
    "serve",
    "settings_round_trip",
    "simple_request",
    "text_alone",
    "workloads",
]
