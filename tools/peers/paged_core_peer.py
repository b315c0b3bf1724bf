"""Our own engine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from peer import Item, PeerEngine, Task, main


class PagedCore(PeerEngine):
    """An ``LLM`` with the settings of the task."""

    package = "paged_core"
    samples = True

    def __init__(self, task: Task) -> None:
        from paged_core import LLM, __version__
        from paged_core.cli.logs import configure_logs

        configure_logs(None, os.environ)
        self.version = __version__
        self._temperature = task.temperature
        self._llm = LLM(**task.settings)
        capacity = self._llm.engine.capacity
        if task.longest_request > capacity.max_model_len:
            raise ValueError(
                f"the engine serves requests of {capacity.max_model_len} tokens, and the longest "
                f"of the workloads has {task.longest_request}; choose others with --workload"
            )
        self.vocab_size = capacity.vocab_size
        self.cache_written = task.write_cache or task.device != "cpu"
        if task.write_cache:
            from paged_plugins.bench.measurement import Bench

            Bench(self._llm).write_cache()

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Submit all items at once; the engine batches them."""
        from paged_core import SamplingParams

        outputs = self._llm.generate(
            [item.prompt for item in items],
            [
                SamplingParams(
                    temperature=self._temperature, max_tokens=item.num_output, ignore_eos=True
                )
                for item in items
            ],
        )
        begun = min(output.metrics.arrival for output in outputs)
        self.times = [
            (output.metrics.first_token - begun, output.metrics.finished - begun)
            for output in outputs
        ]
        return [output.outputs[0].token_ids for output in outputs]


if __name__ == "__main__":
    main(PagedCore)
