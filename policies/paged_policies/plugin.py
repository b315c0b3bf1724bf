"""The plugin ``policies``: who runs, who waits, which blocks; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from paged_core.component import Component, Profile
from paged_core.hookspecs import hookimpl
from paged_policies.allocators.contiguous import ContiguousSettings
from paged_policies.allocators.hash_cached import HashCachedSettings
from paged_policies.allocators.uncached import UncachedSettings
from paged_policies.evictors.arc import ArcSettings
from paged_policies.evictors.belady import BeladySettings
from paged_policies.evictors.fifo import FifoSettings
from paged_policies.evictors.lfu import LfuSettings
from paged_policies.evictors.lru import LruSettings
from paged_policies.evictors.mru import MruSettings
from paged_policies.evictors.random import RandomSettings
from paged_policies.evictors.slru import SlruSettings
from paged_policies.evictors.two_q import TwoQSettings
from paged_policies.orders.edf import EdfSettings
from paged_policies.orders.fair import FairSettings
from paged_policies.orders.fcfs import FcfsSettings
from paged_policies.orders.hrrn import HrrnSettings
from paged_policies.orders.longest_prefix import LongestPrefixSettings
from paged_policies.orders.mlfq import MlfqSettings
from paged_policies.orders.priority import PrioritySettings
from paged_policies.orders.sjf import SjfSettings
from paged_policies.preemption.auto import AutoSettings
from paged_policies.preemption.never import NeverSettings
from paged_policies.preemption.recompute import RecomputeSettings
from paged_policies.preemption.swap import SwapSettings
from paged_policies.schedulers.iteration_level import IterationLevelSettings
from paged_policies.schedulers.prefill_or_decode import PrefillOrDecodeSettings
from paged_policies.schedulers.static_batch import StaticBatchSettings
from paged_policies.schedulers.token_budget import TokenBudgetSettings
from paged_policies.victims.fewest_computed import FewestComputedSettings
from paged_policies.victims.lowest_priority import LowestPrioritySettings
from paged_policies.victims.most_blocks import MostBlocksSettings
from paged_policies.victims.newest import NewestSettings


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "block_allocator",
        UncachedSettings,
        "paged_policies.allocators.uncached:UncachedAllocator",
        summary="a free list; blocks are forgotten when their last user leaves",
    )
    yield Component(
        "block_allocator",
        HashCachedSettings,
        "paged_policies.allocators.hash_cached:HashCachedAllocator",
        summary="finds full blocks by their content until they are needed for something else",
    )
    yield Component(
        "block_allocator",
        ContiguousSettings,
        "paged_policies.allocators.contiguous:ContiguousAllocator",
        summary="one run of adjacent blocks per sequence (FasterTransformer, Orca)",
    )
    yield Component(
        "evictor",
        LruSettings,
        "paged_policies.evictors.lru:make_lru",
        summary="gives up the block whose last user left earliest",
    )
    yield Component(
        "evictor",
        FifoSettings,
        "paged_policies.evictors.fifo:FifoEvictor",
        summary="gives up the block that has been cached longest",
    )
    yield Component(
        "evictor",
        LfuSettings,
        "paged_policies.evictors.lfu:LfuEvictor",
        summary="gives up the block that was found least often",
    )
    yield Component(
        "evictor",
        SlruSettings,
        "paged_policies.evictors.slru:SlruEvictor",
        summary="gives up blocks that were used once before those used again",
    )
    yield Component(
        "evictor",
        ArcSettings,
        "paged_policies.evictors.arc:ArcEvictor",
        summary="balances what was used once and what came back by which is missed more",
    )
    yield Component(
        "evictor",
        TwoQSettings,
        "paged_policies.evictors.two_q:TwoQEvictor",
        summary="gives up new content before what has proved that it comes back",
    )
    yield Component(
        "evictor",
        MruSettings,
        "paged_policies.evictors.mru:MruEvictor",
        summary="gives up the block whose last user left latest",
    )
    yield Component(
        "evictor",
        RandomSettings,
        "paged_policies.evictors.random:RandomEvictor",
        summary="gives up any block",
    )
    yield Component(
        "evictor",
        BeladySettings,
        "paged_policies.evictors.belady:BeladyEvictor",
        summary="gives up the block that is needed again last; for replays only",
    )
    yield Component(
        "queue_order",
        FcfsSettings,
        "paged_policies.orders.fcfs:FcfsOrder",
        summary="first come, first served",
    )
    yield Component(
        "queue_order",
        PrioritySettings,
        "paged_policies.orders.priority:PriorityOrder",
        summary="lowest priority number first, then first come",
    )
    yield Component(
        "queue_order",
        SjfSettings,
        "paged_policies.orders.sjf:SjfOrder",
        summary="fewest tokens left to compute and generate first",
    )
    yield Component(
        "queue_order",
        HrrnSettings,
        "paged_policies.orders.hrrn:HrrnOrder",
        summary="highest ratio of waiting time to service time first",
    )
    yield Component(
        "queue_order",
        LongestPrefixSettings,
        "paged_policies.orders.longest_prefix:LongestPrefixOrder",
        summary="most tokens in the prefix cache first",
    )
    yield Component(
        "queue_order",
        FairSettings,
        "paged_policies.orders.fair:FairOrder",
        summary="whoever has been served least, by tenant",
    )
    yield Component(
        "queue_order",
        EdfSettings,
        "paged_policies.orders.edf:EdfOrder",
        summary="earliest deadline first",
    )
    yield Component(
        "queue_order",
        MlfqSettings,
        "paged_policies.orders.mlfq:MlfqOrder",
        summary="levels that a request sinks through as it is served (FastServe)",
    )
    yield Component(
        "scheduler",
        PrefillOrDecodeSettings,
        "paged_policies.schedulers.prefill_or_decode:PrefillOrDecodeScheduler",
        summary="a step computes prompts or decodes, prompts first (vLLM V0)",
    )
    yield Component(
        "scheduler",
        TokenBudgetSettings,
        "paged_policies.schedulers.token_budget:TokenBudgetScheduler",
        summary="one token budget a step for decodes and prompt chunks (vLLM V1)",
    )
    yield Component(
        "scheduler",
        StaticBatchSettings,
        "paged_policies.schedulers.static_batch:StaticBatchScheduler",
        summary="a batch runs until the last of it has ended (FasterTransformer)",
    )
    yield Component(
        "scheduler",
        IterationLevelSettings,
        "paged_policies.schedulers.iteration_level:IterationLevelScheduler",
        summary="requests come and go between steps, prompts in one piece (Orca)",
    )
    yield Component(
        "victim",
        NewestSettings,
        "paged_policies.victims.newest:NewestVictim",
        summary="the group that comes last",
    )
    yield Component(
        "victim",
        LowestPrioritySettings,
        "paged_policies.victims.lowest_priority:LowestPriorityVictim",
        summary="the least urgent group",
    )
    yield Component(
        "victim",
        FewestComputedSettings,
        "paged_policies.victims.fewest_computed:FewestComputedVictim",
        summary="the group with the fewest computed tokens",
    )
    yield Component(
        "victim",
        MostBlocksSettings,
        "paged_policies.victims.most_blocks:MostBlocksVictim",
        summary="the group that frees the most blocks",
    )
    yield Component(
        "preemption",
        RecomputeSettings,
        "paged_policies.preemption.recompute:RecomputePreemption",
        summary="drops a victim's blocks and computes its tokens again",
    )
    yield Component(
        "preemption",
        SwapSettings,
        "paged_policies.preemption.swap:SwapPreemption",
        summary="moves a victim's blocks to host memory and back",
    )
    yield Component(
        "preemption",
        AutoSettings,
        "paged_policies.preemption.auto:AutoPreemption",
        summary="recomputes a single sequence, swaps a group (vLLM V0)",
    )
    yield Component(
        "preemption",
        NeverSettings,
        "paged_policies.preemption.never:NeverPreemption",
        summary="admits only what fits to its end",
    )


@hookimpl
def paged_core_profiles() -> Iterator[Profile]:
    folder = files("paged_policies") / "profiles"
    yield Profile("vllm-v0", folder / "vllm-v0.yaml", "vLLM 0.6.3, the V0 engine")
    yield Profile("vllm-v1", folder / "vllm-v1.yaml", "vLLM 0.32, the V1 engine")
    yield Profile("nano-vllm", folder / "nano-vllm.yaml", "nano-vLLM, small and prefill first")
    yield Profile("orca", folder / "orca.yaml", "Orca: iterations over contiguous reservations")
    yield Profile(
        "fastertransformer", folder / "fastertransformer.yaml", "static batches, contiguous"
    )
