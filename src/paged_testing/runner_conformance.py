"""The contract of runners, tested with attention that has no paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import strategies as st

from paged_testing.runner_cases import PROMPTS, RunnerCases


class RunnerConformance(RunnerCases):
    """Subclass it for a runner, and name the model to test it with::

        class TestMyRunner(RunnerConformance):
            component = "my_runner"
            settings = {"model": "demo", "dtype": "float32"}

    The model needs a vocabulary of at least ten tokens. Whether the logits are right is left to
    other tests; here they must not depend on chunks and on the batch.
    """

    max_examples: ClassVar[int] = 15

    def test_logits_do_not_depend_on_chunks_or_batch(self) -> None:
        runner = self.make()
        alone = self.logits_alone(runner)

        def computes_the_same(cuts: list[int], order: Sequence[int]) -> None:
            self.check_chunks(runner, alone, cuts, order)

        cuts = st.lists(st.integers(1, 4), max_size=4)
        self.check(computes_the_same, cuts, st.permutations(range(len(PROMPTS))))
