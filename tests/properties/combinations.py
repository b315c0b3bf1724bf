"""The combinations to test: all installed policies, with their options and engine settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, get_args, get_origin

from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_testing.engines import POLICY_SLOTS

Table = dict[str, Any]

TURNED: dict[str, tuple[Any, ...]] = {
    "aging": (0.0, 2.0),
    "default_slo": (None, 4.0),
    "delay_factor": (0.0, 0.5),
    "first_quantum": (2,),
    "long_prefill_token_threshold": (0, 3),
    "max_preemptions": (None, 1),
    "promote_after": (None, 4.0),
}
"""Values to test of options that are neither booleans nor choices, by name."""

LIMITS: dict[str, tuple[Any, ...]] = {
    "block_size": (4, 1, 3),
    "num_blocks": (24, 17, 70),
    "num_host_blocks": (30, 0, 3),
    "watermark": (0.0, 0.1),
    "budget": (9, 64),
    "num_seqs": (4, 3),
}
"""Engine settings; ``budget`` and ``num_seqs`` are for schedulers that have such options."""


def columns(registry: Registry) -> dict[str, Sequence[Any]]:
    """For each slot of the policies every component in every variant, and the limits."""
    found: dict[str, Sequence[Any]] = {slot: variants(registry, slot) for slot in POLICY_SLOTS}
    return found | LIMITS


def variants(registry: Registry, slot: str) -> list[Table]:
    """A table for every component of a slot and every combination of its options."""
    found = []
    for name in sorted(registry.of(slot)):
        found += [{"name": name, **table} for table in _switches(registry.of(slot)[name].settings)]
    return found


def settings_of(row: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """Settings of an engine on the ``memory`` executor, as keywords."""
    values = {**row, "max_model_len": 64}
    scheduler = dict(values["scheduler"])
    known = registry.get("scheduler", scheduler["name"]).settings.model_fields
    budget, num_seqs = values.pop("budget"), values.pop("num_seqs")
    if "max_num_seqs" in known:
        scheduler["max_num_seqs"] = num_seqs
    if "max_num_batched_tokens" in known:
        takes_chunks = scheduler.get("chunked_prefill", False)
        scheduler["max_num_batched_tokens"] = budget if takes_chunks else 64
    return values | {"scheduler": scheduler}


def _switches(kind: type[ComponentSettings]) -> Iterator[Table]:
    choices: dict[str, tuple[Any, ...]] = {}
    for name, field in kind.model_fields.items():
        if name in TURNED:
            choices[name] = TURNED[name]
        elif field.annotation is bool:
            choices[name] = (False, True)
        elif get_origin(field.annotation) is Literal and name != "name":
            choices[name] = get_args(field.annotation)
    for values in product(*choices.values()):
        yield dict(zip(choices, values, strict=True))
