"""A cache that is written once before anything is measured."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.llm import LLM
from paged_core.step import StepInput
from paged_plugins.bench.measurement import Bench

pytestmark = pytest.mark.heavy


def test_every_block_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(executor="memory", num_blocks=600) as llm:
        executor = llm.engine.executor
        written: list[int] = []
        submit = executor.submit

        def note(step: StepInput, /) -> Any:
            written.extend(step.copy_targets)
            return submit(step)

        monkeypatch.setattr(executor, "submit", note)
        Bench(llm).write_cache()
    assert written == list(range(600))
