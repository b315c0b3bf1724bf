"""The conformance kit: what the tests of a component need (extra: ``paged-core[testing]``).

Subclass the class of your component's slot, name the component, and inherit its tests::

    from paged_core.testing import EvictorConformance

    class TestMyEvictor(EvictorConformance):
        component = "my_evictor"

It needs pytest and hypothesis, and no model: engines run on the ``memory`` executor, whose cache
holds token ids and which reads every scheduled sequence back through its block table.
"""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_core.testing.allocator_conformance import BlockAllocatorConformance
from paged_core.testing.attention_conformance import AttentionConformance
from paged_core.testing.component_conformance import ComponentConformance, ServesEveryWorkload
from paged_core.testing.engine_settings import POLICY_SLOTS, component_options, engine_settings
from paged_core.testing.evictor_conformance import EvictorConformance, IdleBlock
from paged_core.testing.executor_conformance import ExecutorConformance
from paged_core.testing.failing_executor import FailingExecutor, StepFailure
from paged_core.testing.memory_engine import build_memory_engine, serve
from paged_core.testing.observer_conformance import ObserverConformance
from paged_core.testing.preemption_conformance import PreemptionConformance
from paged_core.testing.queue_order_conformance import QueueOrderConformance
from paged_core.testing.registry import registry_with
from paged_core.testing.round_trip import settings_round_trip
from paged_core.testing.runner_conformance import RunnerConformance
from paged_core.testing.scheduler_conformance import SchedulerConformance
from paged_core.testing.text_alone import check_nothing_leaked, check_served, text_alone
from paged_core.testing.victim_conformance import VictimConformance
from paged_core.testing.watched_scheduler import WatchedScheduler
from paged_core.testing.workload import Workload, requests, simple_request, workloads

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
