"""Fields of a configuration that are unlike their architecture's own: causes of a library's error.

The library checks few values, and fails on the others wherever it first computes with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import transformers

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import MAX_INTEGER, damaged, is_integer, one_line
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown

_COMMON = {"head_dim": 128, "sliding_window": 4096}
"""Defaults of fields that many architectures read and do not declare, or leave out by default."""


def blamed(checkpoint: Checkpoint, error: Exception) -> CheckpointError | None:
    """Return an error of the library with the fields that are its likely cause, if there are any.

    A field is likely if its value is of another type than the default of its architecture, not in
    the range of any such number, or what a table of the library lacks.
    """
    kind = checkpoint.model_type
    if kind not in transformers.CONFIG_MAPPING:
        return None
    try:
        usual = transformers.CONFIG_MAPPING[kind]().to_dict()
    except Exception:  # noqa: BLE001 - some architectures have no defaults
        return None
    rope = usual.get("rope_parameters") or {}
    named = error.args[0] if isinstance(error, KeyError) and error.args else None
    lacking = named or getattr(error, "name", None)  # of an attribute
    found = list(_odd(checkpoint.config, {**rope, "rope_scaling": rope, **usual}, lacking))
    if not found:
        return None
    return damaged(
        f"{checkpoint.config_path} does not describe a {kind}: {', '.join(found[:3])} "
        f"(transformers says: {one_line(error)})"
    )


def _odd(
    values: Mapping[str, Any], usual: Mapping[Any, Any], lacking: object, within: str = ""
) -> Iterator[str]:
    for name, value in values.items():
        default, most = usual.get(name), _most(name, values)
        if default is None and value is not None:
            default = _COMMON.get(name)
        path, found = f"{within}{name[:50]}", shown(value)
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _odd(value, default, lacking, f"{path}.")
        elif is_integer(most, 0) and isinstance(value, int) and value > most:
            yield f"{path} must be at most {most}, not {found}"
        elif isinstance(value, dict) and name in ("text_config", "decoder_config"):
            yield f"{path} is no field of it, and is {found}"
        elif isinstance(value, str) and value == lacking:
            yield f"{path} is {found}, which transformers does not know"
        elif not _is_like(value, default):
            yield f"{path} must be like {shown(default)}, not {found}"


def _most(name: str, values: Mapping[str, Any]) -> object:
    """Return how large a number is at most, by another field."""
    if name == "num_experts_per_tok":
        return values.get("num_local_experts", values.get("num_experts"))
    count = values.get("vocab_size") if name.endswith("_token_id") else None
    return count - 1 if is_integer(count, 1) else None


def _is_like(value: object, default: object) -> bool:
    if isinstance(value, bool | str | list | dict) or value is None:
        return default is None or type(value) is type(default)
    if not isinstance(value, int | float) or isinstance(default, bool | str | list | dict):
        return False
    if isinstance(default, int) and not isinstance(value, int):
        return False
    is_right = value > 0 if isinstance(default, int | float) and default > 0 else value >= 0
    return is_right and value <= MAX_INTEGER
