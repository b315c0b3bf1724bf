"""vLLM's scheduler over a scenario of paged-core's format, without a model."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from paged_core.plugins.registry import Registry
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from paged_core_vllm import PolicyScheduler, scheduler
from paged_core_vllm.settings import load_settings

try:
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
except ImportError:  # before 0.32

    def register_all_kvcache_specs(config: Any) -> None:
        pass


logging.disable(logging.CRITICAL)
init_none_hash(sha256)
REGISTRY = Registry.discover()
scheduler.load_settings = partial(load_settings, registry=REGISTRY)
TIE = 1e-6
"""Seconds between arrivals before one step."""


@cache
def _model(max_model_len: int) -> ModelConfig:
    return ModelConfig(
        model=str(Path(__file__).parent / "model"),
        dtype="float32",
        seed=0,
        skip_tokenizer_init=True,
        max_model_len=max_model_len,
        enforce_eager=True,
    )


def prompt_ids(prompt: int | str, number: int) -> list[int]:
    """Return the tokens of a scenario's prompt."""
    if isinstance(prompt, int):
        first = 10_000_000 + number * 100_000
        return list(range(first, first + prompt))
    parts = (part.split(":") for part in prompt.split())
    return [token for begin, end in parts for token in range(int(begin), int(end))]


class Driver:
    """One scheduler, and the requests that it was given.

    Args:
        policies: settings of this package; ``None``: vLLM's own scheduler.
        is_async: AsyncScheduler, and two batches in flight.
    """

    def __init__(
        self,
        scenario: Mapping[str, Any],
        policies: Mapping[str, Any] | None,
        is_async: bool = False,
    ) -> None:
        settings = scenario["settings"]
        self.settings, self.now = settings, 0.0
        own = settings["scheduler"]
        newer = {
            "scheduler_reserve_full_isl",
            "watermark",
        } & SchedulerConfig.__dataclass_fields__.keys()
        more = {
            "scheduler_reserve_full_isl": own["reserve_full_sequence"],
            "watermark": settings["watermark"],
        }
        scheduling = SchedulerConfig(
            max_num_seqs=own["max_num_seqs"],
            max_num_batched_tokens=own["max_num_batched_tokens"],
            max_model_len=settings["max_model_len"],
            is_encoder_decoder=False,
            enable_chunked_prefill=own["chunked_prefill"],
            long_prefill_token_threshold=own["long_prefill_token_threshold"],
            policy=settings["queue_order"],
            async_scheduling=is_async,
            **{key: more[key] for key in newer},
        )
        is_caching = settings["block_allocator"] == "hash_cached"
        cache_config = CacheConfig(
            block_size=settings["block_size"],
            gpu_memory_utilization=0.9,
            cache_dtype="auto",
            enable_prefix_caching=is_caching,
        )
        config = VllmConfig(
            scheduler_config=scheduling,
            model_config=_model(settings["max_model_len"]),
            cache_config=cache_config,
        )
        scheduling.async_scheduling = is_async  # vLLM turns it off on a CPU
        if policies is not None:
            config.additional_config = {"paged_core": dict(policies)}
        spec = FullAttentionSpec(
            block_size=settings["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        num_blocks = cache_config.num_gpu_blocks = settings["num_blocks"] + 1  # the null block
        blocks = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        register_all_kvcache_specs(config)
        base: Any = AsyncScheduler if is_async else Scheduler
        driver = self

        class Watched(PolicyScheduler if policies is not None else base):  # type: ignore[misc]
            clock = staticmethod(lambda: driver.now)

            def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
                driver.preempted.append(request.request_id)
                super()._preempt_request(request, *args, **kwargs)

        if policies is not None and is_async:
            from paged_core_vllm import AsyncPolicyScheduler

            class Watched(Watched, AsyncPolicyScheduler):  # type: ignore[no-redef,misc]
                pass

        self.scheduler = Watched(
            vllm_config=config,
            kv_cache_config=blocks,
            block_size=settings["block_size"],
            log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )
        self._hasher = get_request_block_hasher(settings["block_size"], sha256)
        self.requests: dict[str, Request] = {}
        self.numbers: dict[str, int] = {}
        self.preempted: list[str] = []
        self._refused: list[str] = []

    def add(self, number: int, asked: Mapping[str, Any], arrival: float) -> None:
        """Add a request; what vLLM's front end would refuse is noted."""
        name, ids = asked["id"], prompt_ids(asked["prompt"], number)
        if len(ids) >= self.settings["max_model_len"]:
            self._refused.append(name)
            return
        extra = {key: asked[key] for key in ("tenant", "deadline") if key in asked}
        sampling = SamplingParams(
            max_tokens=asked["output"], ignore_eos=True, temperature=1.0, extra_args=extra or None
        )
        request = Request(
            request_id=name,
            prompt_token_ids=ids,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=arrival,
            priority=asked.get("priority", 0),
            cache_salt=asked.get("cache_salt"),
            block_hasher=self._hasher,
        )
        self.requests[name], self.numbers[name] = request, number
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def token(self, name: str, index: int) -> int:
        """Return a token that nothing else generates."""
        return 1_000_000_000 + self.numbers[name] * 10_000_000 + index

    def apply(self, output: Any, tokens: Mapping[str, int | None]) -> None:
        """Give the scheduler the result of a step; ``None``: no token of that request."""
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: place for place, name in enumerate(names)},
                sampled_token_ids=[[] if tokens[n] is None else [tokens[n]] for n in names],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )

    def step(self, number: int) -> dict[str, Any]:
        """Plan a step and apply it; return its line of a trace."""
        scheduler, refused = self.scheduler, self._refused
        self.preempted, self._refused = [], []
        before = {request.request_id for request in scheduler.running}
        output = scheduler.schedule()
        scheduled = dict(output.num_scheduled_tokens)
        cached, tokens = {}, {}
        for name, count in scheduled.items():
            request = self.requests[name]
            if name not in before or name in self.preempted:
                cached[name] = request.num_computed_tokens - count
            is_whole = request.num_computed_tokens == request.num_tokens
            tokens[name] = self.token(name, request.num_output_tokens) if is_whole else None
        self.apply(output, tokens)
        return {
            "step": number,
            "scheduled": scheduled,
            "cached": cached,
            "preempted": self.preempted,
            "swapped_out": [],
            "swapped_in": [],
            "ignored": refused,
            "finished": [name for name in scheduled if self.requests[name].is_finished()],
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "swapped": [],
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }

    def run(self, scenario: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the trace of a scenario."""
        asked, trace = list(enumerate(scenario["requests"])), []
        last = max(each.get("step", 0) for _, each in asked)
        for number in range(scenario.get("max_steps", 200)):
            self.now = float(number)
            for place, each in asked:
                if each.get("step", 0) == number:
                    self.add(place, each, number + place * TIE)
            for each in scenario.get("aborts", ()):
                if each["step"] == number:
                    self.abort(each["id"])
            if self._refused or self.scheduler.has_unfinished_requests():
                trace.append(self.step(number))
            elif number >= last:
                break
        return trace
