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

from paged_testing.admission import AdmissionConformance
from paged_testing.allocator import BlockAllocatorConformance
from paged_testing.attention import AttentionConformance
from paged_testing.communicator import CommunicatorConformance
from paged_testing.component import ComponentConformance, settings_round_trip
from paged_testing.doubles import FailingExecutor, StepFailure, WatchedScheduler
from paged_testing.engines import (
    POLICY_SLOTS,
    build_memory_engine,
    engine_settings,
    registry_with,
    serve,
)
from paged_testing.evictor import EvictorConformance
from paged_testing.evictor_model import IdleBlock
from paged_testing.executor import ExecutorConformance
from paged_testing.grammar import GrammarConformance
from paged_testing.length_predictor import LengthPredictorConformance
from paged_testing.observer import ObserverConformance
from paged_testing.options import component_options
from paged_testing.preemption import PreemptionConformance, VictimConformance
from paged_testing.queue_order import QueueOrderConformance
from paged_testing.repeats import ServesEveryWorkload
from paged_testing.runner import RunnerConformance
from paged_testing.scheduler import SchedulerConformance
from paged_testing.served import check_nothing_leaked, check_served, text_alone
from paged_testing.workloads import Workload, requests, simple_request, workloads

__all__ = [
    "POLICY_SLOTS",
    "AdmissionConformance",
    "AttentionConformance",
    "BlockAllocatorConformance",
    "CommunicatorConformance",
    "ComponentConformance",
    "EvictorConformance",
    "ExecutorConformance",
    "FailingExecutor",
    "GrammarConformance",
    "IdleBlock",
    "LengthPredictorConformance",
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
