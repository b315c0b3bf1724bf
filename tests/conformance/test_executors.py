"""First-party executors pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from marks import long
from paged_testing import ExecutorConformance

pytestmark = pytest.mark.usefixtures("compiled_kernels")
CONTENT = ("test_samples_when_the_last_token_is_computed_however_many_at_a_time",)
"""Cases about the inner executor, as in `TestMemory`."""


class TestSimulated(ExecutorConformance):
    component = "simulated"


class TestMemory(ExecutorConformance):
    component = "memory"


class TestLocal(ExecutorConformance):
    component = "local"
    settings: ClassVar[Mapping[str, Any]] = {"model": "demo", "dtype": "float32"}


@pytest.mark.heavy
@long("test_holds_with_other_options", *CONTENT)
class TestWorkers(ExecutorConformance):
    """Every field of a step and of a result gets to another process and back."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "workers", "inner": "memory"}


@pytest.mark.long
class TestProcess(TestWorkers):
    """The same component by another name."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "process", "inner": "memory"}


@pytest.mark.heavy
@long(
    "test_holds_with_other_options",
    "test_two_executors_in_turns_sample_as_each_alone",
    "test_a_step_may_be_submitted_before_the_last_one_is_collected",
    *CONTENT,
    "test_has_the_capacity_that_the_settings_give",
    "test_ranks_the_candidates_of_a_beam_and_samples_nothing",
    "test_returns_results_in_the_order_of_the_batch",
    "test_moves_blocks_in_the_order_swap_out_swap_in_copy",
    "test_written_requests_have_the_same_output_alone_and_in_a_batch",
)
class TestTensorParallel(ExecutorConformance):
    """Two ranks get every step, and all of them answer it; its content is as in `TestWorkers`."""

    component: ClassVar[str | Mapping[str, Any]] = {
        "name": "tensor_parallel",
        "ranks": 2,
        "inner": "memory",
    }


@pytest.mark.long
class TestTensorParallelModel(ExecutorConformance):
    """Each of two ranks has its share of a model."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "tensor_parallel", "ranks": 2}
    settings: ClassVar[Mapping[str, Any]] = {"model": "demo", "dtype": "float32", "threads": 1}
    max_seconds = 60
