"""Whole numbers of settings, however large, are served or refused in one line."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paged_core import LLM, SamplingParams
from paged_core.errors import PagedCoreError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import choices, settings_class

pytestmark = pytest.mark.heavy


NUMBERS = (2**31, 2**62)
SLOTS = ("evictor", "queue_order", "scheduler", "victim", "executor")
_MEMORY = 3 << 30
_SECONDS = 120


def given(numbers: Sequence[int] = NUMBERS) -> Iterator[dict[str, Any]]:
    """Every whole number that an engine can be given."""
    registry = Registry.discover()
    for name, field in settings_class(registry).model_fields.items():
        if "int" in str(field.annotation) and name not in registry.slots:
            yield from ({name: number} for number in numbers)
    for slot in SLOTS:
        for component, options in choices(registry, registry.slots[slot]).items():
            for name, field in options.model_fields.items():
                if "int" in str(field.annotation) and component != "simulated":
                    yield {slot: {"name": component, name: NUMBERS[-1]}}


def outcome(settings: dict[str, Any]) -> str:
    """Return the outcome of an engine with such settings: its answers, or its refusal."""
    try:
        with LLM("demo", **settings) as llm:
            llm.generate([1, 2], SamplingParams(max_tokens=2))
    except PagedCoreError as error:
        return "refused" if "\n" not in str(error) else str(error)
    except BaseException as error:  # noqa: BLE001 - what must not happen
        return repr(error)
    return "served"


@pytest.mark.parametrize("count", [1, pytest.param(len(NUMBERS), marks=pytest.mark.long)])
def test_whole_numbers_of_any_size(count: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    script = f"""
import json
from integration.test_large_settings import NUMBERS, given, outcome
for settings in given(NUMBERS[-{count}:]):
    print(json.dumps([settings, outcome(settings)]), flush=True)
print("null")
"""
    process = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        preexec_fn=limit,
        check=False,
    )
    *answers, end = map(json.loads, process.stdout.splitlines())
    assert end is None, f"the process has died after {end}"
    assert len(answers) > 20
    assert not [answer for answer in answers if answer[1] not in ("served", "refused")]
