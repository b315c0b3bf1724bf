"""The plugin ``policies``: admission, batching, preemption and eviction, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from paged_core.plugins.component import Component, ComponentSettings, Profile
from paged_core.plugins.hooks import hookimpl
from paged_policies.admission.always import AlwaysSettings
from paged_policies.admission.bounded import BoundedSettings
from paged_policies.admission.deadline import DeadlineSettings
from paged_policies.admission.token_bucket import TokenBucketSettings
from paged_policies.allocators.contiguous import ContiguousSettings
from paged_policies.allocators.hash_cached import HashCachedSettings
from paged_policies.allocators.uncached import UncachedSettings
from paged_policies.evictors.arc import ArcSettings
from paged_policies.evictors.belady import BeladySettings
from paged_policies.evictors.cost_aware import GdsfSettings, RecomputeCostSettings
from paged_policies.evictors.leaf_first import LeafFirstSettings
from paged_policies.evictors.lecar import LecarSettings
from paged_policies.evictors.lru import LruSettings
from paged_policies.evictors.queue_informed_lru import QueueInformedLruSettings
from paged_policies.evictors.random import RandomSettings
from paged_policies.evictors.ranked import FifoSettings, LfuSettings, MruSettings
from paged_policies.evictors.s3_fifo import S3FifoSettings
from paged_policies.evictors.sieve import SieveSettings
from paged_policies.evictors.slru import SlruSettings
from paged_policies.evictors.two_q import TwoQSettings
from paged_policies.length_predictors.history import HistorySettings
from paged_policies.length_predictors.none import NoneSettings
from paged_policies.length_predictors.oracle import OracleSettings
from paged_policies.orders.edf import EdfSettings
from paged_policies.orders.fair import FairSettings
from paged_policies.orders.fcfs import FcfsSettings
from paged_policies.orders.hrrn import HrrnSettings
from paged_policies.orders.least_laxity import LeastLaxitySettings
from paged_policies.orders.longest_prefix import LongestPrefixSettings
from paged_policies.orders.mlfq import MlfqSettings
from paged_policies.orders.priority import PrioritySettings
from paged_policies.orders.qoe import QoeSettings
from paged_policies.orders.sjf import SjfSettings
from paged_policies.preemption.modes import (
    AutoSettings,
    NeverSettings,
    RecomputeSettings,
    SwapSettings,
)
from paged_policies.schedulers.iteration_level import IterationLevelSettings
from paged_policies.schedulers.past_future import PastFutureSettings
from paged_policies.schedulers.prefill_or_decode import PrefillOrDecodeSettings
from paged_policies.schedulers.static_batch import StaticBatchSettings
from paged_policies.schedulers.time_budget import TimeBudgetSettings
from paged_policies.schedulers.token_budget import TokenBudgetSettings
from paged_policies.victims.fewest_computed import FewestComputedSettings
from paged_policies.victims.lowest_priority import LowestPrioritySettings
from paged_policies.victims.most_blocks import MostBlocksSettings
from paged_policies.victims.most_remaining import MostRemainingSettings
from paged_policies.victims.newest import NewestSettings
from paged_policies.victims.recompute_cost import (
    RecomputeCostSettings as VictimCostSettings,
)

Row = tuple[type[ComponentSettings], str, str]
"""Options of a component, the name of its factory in the module of the options, its summary."""

_COMPONENTS: dict[str, tuple[Row, ...]] = {
    "block_allocator": (
        (UncachedSettings, "UncachedAllocator", "a free list; freed blocks are not found again"),
        (HashCachedSettings, "HashCachedAllocator", "finds full blocks by content until evicted"),
        (
            ContiguousSettings,
            "ContiguousAllocator",
            "one run of adjacent blocks per sequence (FasterTransformer, Orca)",
        ),
    ),
    "evictor": (
        (LruSettings, "make_lru", "evicts the block whose last user left earliest"),
        (FifoSettings, "make_fifo", "evicts the block that has been cached longest"),
        (LfuSettings, "LfuEvictor", "evicts the block that was found least often"),
        (SlruSettings, "SlruEvictor", "evicts blocks used once before those used again"),
        (ArcSettings, "ArcEvictor", "balances blocks used once and again by which is missed more"),
        (TwoQSettings, "TwoQEvictor", "evicts new content before content that came back"),
        (SieveSettings, "make_sieve", "evicts the oldest block not hit since it was passed"),
        (S3FifoSettings, "make_s3_fifo", "evicts new content before content that was hit twice"),
        (GdsfSettings, "make_gdsf", "evicts the fewest uses times cost, with aging"),
        (LecarSettings, "LecarEvictor", "evicts as LRU or LFU, by which was regretted less"),
        (RecomputeCostSettings, "make_recompute_cost", "evicts old blocks, cheap ones earlier"),
        (LeafFirstSettings, "make_leaf_first", "evicts leaves of the prefix tree (SGLang)"),
        (
            QueueInformedLruSettings,
            "QueueInformedLruEvictor",
            "evicts as lru, what waiting requests want last",
        ),
        (MruSettings, "MruEvictor", "evicts the block whose last user left latest"),
        (RandomSettings, "make_random", "evicts any block"),
        (BeladySettings, "BeladyEvictor", "evicts what is needed again last; for replays only"),
    ),
    "queue_order": (
        (FcfsSettings, "FcfsOrder", "first come, first served"),
        (PrioritySettings, "PriorityOrder", "lowest priority number first, then first come"),
        (SjfSettings, "SjfOrder", "fewest tokens left to compute and generate first"),
        (HrrnSettings, "HrrnOrder", "highest ratio of waiting time to service time first"),
        (LongestPrefixSettings, "LongestPrefixOrder", "most tokens in the prefix cache first"),
        (FairSettings, "FairOrder", "the tenant that was served least first"),
        (EdfSettings, "EdfOrder", "earliest deadline first"),
        (LeastLaxitySettings, "LeastLaxityOrder", "least time to spare before its deadline first"),
        (QoeSettings, "QoeOrder", "most gain for its reader per token of context first (Andes)"),
        (MlfqSettings, "MlfqOrder", "levels that a request sinks through when served (FastServe)"),
    ),
    "admission": (
        (AlwaysSettings, "AlwaysAdmission", "accepts every request that can be served"),
        (BoundedSettings, "BoundedAdmission", "refuses what would wait behind too much"),
        (DeadlineSettings, "DeadlineAdmission", "refuses what would miss its deadline"),
        (TokenBucketSettings, "TokenBucketAdmission", "a rate and a burst for each tenant"),
    ),
    "length_predictor": (
        (NoneSettings, "NoPredictor", "no prediction: policies go by max_tokens"),
        (OracleSettings, "OraclePredictor", "the true length with a given error; simulations only"),
        (HistorySettings, "HistoryPredictor", "earlier answers to like prompts and to the tenant"),
    ),
    "scheduler": (
        (
            PrefillOrDecodeSettings,
            "PrefillOrDecodeScheduler",
            "a step computes prompts or decodes, prompts first (vLLM V0)",
        ),
        (
            TokenBudgetSettings,
            "TokenBudgetScheduler",
            "one token budget a step for decodes and prompt chunks (vLLM V1)",
        ),
        (
            TimeBudgetSettings,
            "TimeBudgetScheduler",
            "decodes, and prompts up to a limit on the step's predicted time (Sarathi-Serve)",
        ),
        (
            PastFutureSettings,
            "PastFutureScheduler",
            "token_budget that admits what is expected to fit until it ends (LightLLM)",
        ),
        (
            StaticBatchSettings,
            "StaticBatchScheduler",
            "a batch runs until the last of it has ended (FasterTransformer)",
        ),
        (
            IterationLevelSettings,
            "IterationLevelScheduler",
            "requests come and go between steps, prompts in one piece (Orca)",
        ),
    ),
    "victim": (
        (NewestSettings, "NewestVictim", "the group that comes last"),
        (LowestPrioritySettings, "LowestPriorityVictim", "the least urgent group"),
        (
            FewestComputedSettings,
            "FewestComputedVictim",
            "the group with the fewest computed tokens",
        ),
        (MostBlocksSettings, "MostBlocksVictim", "the group that frees the most blocks"),
        (VictimCostSettings, "RecomputeCostVictim", "the most blocks for the work that is lost"),
        (MostRemainingSettings, "MostRemainingVictim", "the group with the most left to generate"),
    ),
    "preemption": (
        (
            RecomputeSettings,
            "RecomputePreemption",
            "drops a victim's blocks and recomputes its tokens",
        ),
        (SwapSettings, "SwapPreemption", "moves a victim's blocks to host memory and back"),
        (AutoSettings, "AutoPreemption", "recomputes a single sequence, swaps a group (vLLM V0)"),
        (NeverSettings, "NeverPreemption", "admits only what fits to its end"),
    ),
}
_PROFILES = (
    ("vllm-v0", "vLLM 0.6.3, the V0 engine"),
    ("vllm-v1", "vLLM 0.32, the V1 engine"),
    ("nano-vllm", "nano-vLLM, small and prefill first"),
    ("orca", "Orca: iterations over contiguous reservations"),
    ("fastertransformer", "static batches, contiguous"),
)


@hookimpl
def paged_core_components() -> Iterator[Component]:
    for slot, rows in _COMPONENTS.items():
        for settings, factory, summary in rows:
            yield Component(slot, settings, f"{settings.__module__}:{factory}", summary=summary)


@hookimpl
def paged_core_profiles() -> Iterator[Profile]:
    folder = files("paged_policies") / "profiles"
    for name, summary in _PROFILES:
        yield Profile(name, folder / f"{name}.yaml", summary)
