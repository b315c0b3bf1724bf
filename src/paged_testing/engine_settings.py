"""Hypothesis strategies for settings: any policies, small blocks, pools that run out of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from hypothesis import reject
from hypothesis import strategies as st

from paged_core.component import ComponentSettings
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_testing.memory_engine import build_memory_engine
from paged_testing.registry import first_party

POLICY_SLOTS = ("block_allocator", "evictor", "queue_order", "scheduler", "victim", "preemption")
"""The slots of policies; a combination is valid, or refused when an engine is built from it."""


def component_options(
    kind: type[ComponentSettings], fixed: Mapping[str, Any] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Tables for one component: booleans and choices are drawn, limits are drawn small.

    Other options that the kit does not know keep their defaults.

    Args:
        fixed: options that are not drawn.
    """
    chosen: dict[str, st.SearchStrategy[Any]] = {}
    for name, field in kind.model_fields.items():
        known = _KNOWN.get(name)
        if known is not None:
            chosen[name] = known
        elif field.annotation is bool:
            chosen[name] = st.booleans()
        elif get_origin(field.annotation) is Literal:
            chosen[name] = st.sampled_from(get_args(field.annotation))
    if "max_num_batched_tokens" in kind.model_fields and "chunked_prefill" not in kind.model_fields:
        chosen["max_num_batched_tokens"] = st.integers(24, 64)  # whole prompts must fit
    for name, value in (fixed or {}).items():
        chosen[name] = st.just(value)
    return st.fixed_dictionaries(chosen)


_KNOWN: Mapping[str, st.SearchStrategy[Any]] = {
    "max_num_seqs": st.integers(3, 8),
    "max_num_batched_tokens": st.integers(3, 40),
    "chunked_prefill": st.sampled_from([True, True, True, False]),
    "long_prefill_token_threshold": st.sampled_from([0, 0, 2, 5]),
    "delay_factor": st.sampled_from([0.0, 0.0, 0.5]),
    "num_levels": st.sampled_from([1, 3, 8]),
    "first_quantum": st.sampled_from([2, 4, 32]),
    "promote_after": st.sampled_from([None, 3.0, 20.0]),
}


@st.composite
def engine_settings(
    draw: st.DrawFn,
    registry: Registry,
    fixed: Mapping[str, ComponentSettings] | None = None,
    max_blocks: int = 24,
) -> dict[str, Any]:
    """Settings for the ``memory`` executor, as keywords: any first-party policies, a small pool.

    Args:
        fixed: by slot, components that are not drawn; the options set on them are kept.
    """
    tables: dict[str, Any] = {}
    ours = first_party(registry)
    for slot in POLICY_SLOTS:
        given = (fixed or {}).get(slot)
        if given is None:
            name = draw(st.sampled_from(sorted(ours.of(slot))))
            tables[slot] = draw(component_options(ours.get(slot, name).settings))
        else:
            set_fields = {name: getattr(given, name) for name in given.model_fields_set}
            tables[slot] = draw(component_options(type(given), set_fields))
    values = {
        **tables,
        "executor": "memory",
        "block_size": draw(st.sampled_from([1, 2, 3, 4, 8])),
        "num_blocks": draw(st.integers(6, max_blocks)),
        "num_host_blocks": draw(st.sampled_from([0, 4, 30])),
        "max_model_len": 64,
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
    }
    try:
        build_memory_engine(registry, **values).close()
    except SettingsError:
        reject()  # the engine refuses this combination when it is built, with a reason
    return values
