"""Sizes of the cache of a device whose memory is profiled."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulation.accelerator import EmulatedAccelerator
from paged_backends.executors.accelerator import DeviceMemory
from paged_backends.executors.cache_size import (
    MemoryProfile,
    decide_cache_size,
    needs_profile,
    profile_pass,
    sequence_lengths,
)
from paged_core.errors import SettingsError
from paged_core.interfaces.scheduler import SupportsStepLimits
from paged_core.plugins.registry import Registry
from unit.test_attention_plans import LAYER, make

MIB = 1 << 20
BLOCK = 2 * 2 * 16 * 8 * 4  # key and value, heads, tokens, dimensions, bytes
LARGE = replace(LAYER, block_size=16)


def profile(total: int, free: int, activations: int) -> MemoryProfile:
    return MemoryProfile(memory=DeviceMemory(total=total, free=free), activations=activations)


def num_blocks(found: MemoryProfile | None, **changes: Any) -> int:
    values = {
        "max_model_len": 1 << 20,
        "block_size": 16,
        "num_blocks": None,
        "kv_cache_memory": None,
        "num_host_blocks": None,
    }
    settings: Any = SimpleNamespace(**{**values, **changes})
    size = decide_cache_size(
        settings,
        [LARGE],
        make("torch"),
        model_length=None,
        max_num_seqs=4,
        needs_host_blocks=False,
        profile=found,
    )
    return size.num_blocks


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (90 - 20 - 15) * MIB // BLOCK),  # of nine tenths
        ({"kv_cache_memory": 0.5}, 65 * MIB // 2 // BLOCK),  # of what is free in the largest step
        ({"kv_cache_memory": 1.0}, 65 * MIB // BLOCK),
        ({"max_model_len": 160}, 4 * 10),  # as many as four sequences could fill
    ],
)
def test_the_memory_less_what_is_used_and_what_a_step_takes(
    values: dict[str, Any], expected: int
) -> None:
    found = profile(total=100 * MIB, free=80 * MIB, activations=15 * MIB)
    assert num_blocks(found, **values) == expected


def test_too_little_memory_is_an_error_that_says_so() -> None:
    with pytest.raises(SettingsError, match=r"may take 0 bytes on cpu.*lower block_size"):
        num_blocks(profile(total=100 * MIB, free=20 * MIB, activations=15 * MIB))
    with pytest.raises(SettingsError, match=r"num_blocks: 9000 blocks.*5\.0 MiB are free"):
        num_blocks(profile(total=100 * MIB, free=20 * MIB, activations=15 * MIB), num_blocks=9000)


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        ({}, True),
        ({"kv_cache_memory": 0.5}, True),
        ({"kv_cache_memory": MIB}, False),
        ({"num_blocks": 9}, False),
    ],
)
def test_a_step_is_run_only_where_its_memory_matters(values: dict[str, Any], needed: bool) -> None:
    settings: Any = SimpleNamespace(**({"num_blocks": None, "kv_cache_memory": None} | values))
    assert needs_profile(settings) is needed


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 700))
def test_the_largest_step_has_as_many_tokens_and_sequences_as_may_be(
    budget: int, max_num_seqs: int, longest: int
) -> None:
    lengths = sequence_lengths(budget, max_num_seqs, longest)
    assert len(lengths) == min(budget, max_num_seqs)
    assert lengths.min() >= 1 and lengths.max() <= longest
    assert lengths.sum() == min(budget, longest * len(lengths))


class _Watched:
    """The parts of a runner that a step uses; one attention layer is all that it computes."""

    layers = (LARGE, LARGE)
    vocab_size = 11

    def __init__(self) -> None:
        self.num_tokens = self.num_rows = 0

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Any) -> torch.Tensor:
        self.num_tokens = len(tokens)
        assert positions.max() < 24
        query, key = (torch.ones(len(tokens), heads, 8) for heads in (4, 2))
        for layer in range(2):
            out: torch.Tensor = attend(layer, query, key, key)
        return out.flatten(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.num_rows = len(hidden)
        return hidden[:, : self.vocab_size]


def test_the_largest_step_is_run_and_measured() -> None:
    runner: Any = _Watched()
    memory = DeviceMemory(total=100, free=70)
    accelerator = EmulatedAccelerator(memory=memory, peak=13)
    found = profile_pass(
        accelerator,
        runner,
        make("torch"),
        max_num_batched_tokens=50,
        max_num_seqs=5,
        max_model_len=24,
    )
    assert found == MemoryProfile(memory=memory, activations=13)
    assert (runner.num_tokens, runner.num_rows) == (50, 5)


def test_a_step_that_does_not_fit_is_refused_by_name() -> None:
    class TooLarge(_Watched):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    runner: Any = TooLarge()
    with pytest.raises(SettingsError, match=r"a step of 50 tokens does not fit.*max_num_seqs"):
        profile_pass(
            EmulatedAccelerator(memory=DeviceMemory(total=1, free=1)),
            runner,
            make("torch"),
            max_num_batched_tokens=50,
            max_num_seqs=5,
            max_model_len=24,
        )


@pytest.mark.parametrize("name", [one.name for one in Registry.discover().candidates("scheduler")])
def test_a_scheduler_states_its_limits_whatever_its_options_are_called(name: str) -> None:
    options = Registry.discover().get("scheduler", name).settings(max_num_seqs=7)
    assert isinstance(options, SupportsStepLimits)
    assert options.step_limits.num_seqs == 7
