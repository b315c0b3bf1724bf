"""What an executor must do, driven by an engine and step by step."""

from __future__ import annotations

from typing import ClassVar

from paged_core.engine import Engine
from paged_testing.executor_cases import TIGHT, ExecutorCases
from paged_testing.workload import Workload, workloads


class ExecutorConformance(ExecutorCases):
    """Subclass it for an executor. One with a model names the model and takes few examples::

        class TestMyExecutor(ExecutorConformance):
            component = "my_executor"
            settings = {"model": "demo", "dtype": "float32"}
            max_examples = 8

    Greedy output must be the same alone and in a batch. That needs a model with a clear argmax: in
    16-bit dtypes, ties can be broken differently in another batch.
    """

    max_examples: ClassVar[int] = 40

    def test_output_is_the_same_alone_and_in_a_batch(self) -> None:
        """With blocks shared, copied, merged, swapped and recomputed."""
        with self.engine(block_allocator="uncached") as single:
            for tight in TIGHT:
                with self.engine(**{"num_blocks": 20, "block_size": 2, **tight}) as batched:
                    self._check_many(single, batched)

    def _check_many(self, single: Engine, batched: Engine) -> None:
        def generates_the_same(workload: Workload) -> None:
            self.check_same_output(single, batched, workload)

        self.check(generates_the_same, workloads(max_aborts=0), share=1 / len(TIGHT))
