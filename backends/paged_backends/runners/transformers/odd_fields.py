"""Fields of a configuration that are the likely causes of a library's error.

The library checks few values, and fails on the others wherever it first computes with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import transformers

from paged_backends.checkpoint.config_fields import is_size
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import (
    MAX_INTEGER,
    damaged,
    is_integer,
    is_number,
    one_line,
)
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.field_rules import shown

_COMMON = {
    **{"head_dim": 128, "sliding_window": 4096, "layer_types": [], "factor": 2.0},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "partial_rotary_factor": 1.0},
    **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    **{"rope_type": "default", "rope_theta": 10000.0},
}
"""Defaults of fields that many architectures read and do not declare, or leave out by default."""
_LIMIT = re.compile(r"has been removed|no longer supported|is a per-layer attribute")
"""Words of a library for something that it lacks."""
_CONFIGURATIONS = ("text_config", "text_encoder", "decoder", "generator", "decoder_config")


def blamed(checkpoint: Checkpoint, error: Exception) -> CheckpointError | UnsupportedModel | None:
    """Return an error of the library with the fields that are its likely cause, if there are any.

    Where it says what this version of it has not, a field is no cause.

    They are those that the error names, by themselves or by their values; otherwise those that no
    model can be computed with, and those that its architecture does not declare and may trip over;
    otherwise nulls, or what is divided by. A value that is merely unusual is no cause.
    """
    kind = checkpoint.model_type
    if kind not in transformers.CONFIG_MAPPING:
        return None
    if _LIMIT.search(str(error)):
        return UnsupportedModel(
            f"{checkpoint.config_path} needs what the installed packages do not support: "
            f"{one_line(error, 400)}; take other versions of transformers and of the package of "
            "the quantisation",
            ", or set runner to native, which may have it",
        )
    try:
        usual = transformers.CONFIG_MAPPING[kind]().to_dict()
    except Exception:  # noqa: BLE001 - some architectures have no defaults
        return None
    rope = usual.get("rope_parameters") or {}
    usual = {**rope, "rope_scaling": rope, **usual}
    found = [*_named(checkpoint.config, usual, error), *_missing(checkpoint.config, usual, error)]
    found = found or list(_odd(checkpoint.config, usual))
    found = found or list(_empty(checkpoint.config, usual, error))
    if not found:
        return None
    return damaged(
        f"{checkpoint.config_path} does not describe a model of type {kind}: "
        f"{', '.join(found[:3])} (transformers says: {one_line(error)})"
    )


def _named(
    values: Mapping[str, Any], usual: Mapping[Any, Any], error: Exception, within: str = ""
) -> Iterator[str]:
    """Yield the fields that an error names."""
    text = str(error)
    lacking = error.args[0] if isinstance(error, KeyError) and error.args else None
    for name, value in values.items():
        path = f"{within}{name[:50]}"
        inner = list(_named(value, usual, error, f"{path}.")) if isinstance(value, dict) else []
        if inner:
            yield from inner
        elif lacking in (value if isinstance(value, list) else [str(value)]):
            yield f"{path} is {shown(value)}, which transformers does not know"
        elif _mentions(text, name) or (name == "rope_scaling" and "rope_parameters" in text):
            yield _problem(name, path, value, values, usual) or f"{path} is {shown(value)}"


def _missing(
    config: Mapping[str, Any], usual: Mapping[Any, Any], error: Exception
) -> Iterator[str]:
    """Yield the fields that an error names and that a configuration lacks."""
    for name in sorted({*usual, *_COMMON} - set(_names(config))):
        if name == getattr(error, "name", None) or _is_quoted(name, str(error)):  # of an attribute
            yield f"{name} is missing"


def _names(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield name
        yield from _names(value) if isinstance(value, dict) else ()


def _is_quoted(name: str, text: str) -> bool:
    return any(f"{quote}{name}{quote}" in text for quote in "`'")


def _mentions(text: str, name: str) -> bool:
    """Return whether an error names a field: in quotes, where its name is an English word."""
    words = re.escape(name).replace("_", "[_ ]")
    return _is_quoted(name, text) or ("_" in name and re.search(rf"\b{words}\b", text) is not None)


def _odd(values: Mapping[str, Any], usual: Mapping[Any, Any], within: str = "") -> Iterator[str]:
    """Yield the fields that no model can be computed with, or that it does not declare."""
    undeclared = ("partial_rotary_factor",) if within else (*_COMMON, *_CONFIGURATIONS)
    for name, value in values.items():
        path = f"{within}{name[:50]}"
        problem = _problem(name, path, value, values, usual)
        if problem:
            yield problem
        elif isinstance(value, dict) and name not in _CONFIGURATIONS:
            yield from _odd(value, usual, f"{path}.")
        elif value is not None and name not in usual and name in undeclared:
            yield f"{path} is no field of it, and is {shown(value)}"


def _empty(
    values: Mapping[str, Any], usual: Mapping[Any, Any], error: Exception, within: str = ""
) -> Iterator[str]:
    """Yield the fields that are null, or zero where that is divided by, and usually are not."""
    empty = 0 if isinstance(error, ZeroDivisionError) else None
    for name, value in values.items():
        path, default = f"{within}{name[:50]}", usual.get(name) or _COMMON.get(name)
        is_empty = type(value) is type(empty) and value == empty
        if isinstance(value, dict):
            yield from _empty(value, usual, error, f"{path}.")
        elif is_empty and default and not name.endswith("_token_id"):
            yield f"{path} must be like {shown(default)}, not {value}"


def _problem(
    name: str, path: str, value: Any, values: Mapping[str, Any], usual: Mapping[Any, Any]
) -> str | None:
    """Return what is wrong with a value by itself, or beside others."""
    default, most = usual.get(name), _most(name, values)
    default = _COMMON.get(name) if default is None else default
    if is_integer(most, 0) and isinstance(value, int) and value > most:
        return f"{path} must be at most {most}, not {shown(value)}"
    if value is None or default is None or _is_like(name, value, default):
        return None
    return f"{path} must be like {shown(default)}, not {shown(value)}"


def _most(name: str, values: Mapping[str, Any]) -> object:
    """Return how large a number is at most, by another field."""
    if name == "num_experts_per_tok":
        return values.get("num_local_experts", values.get("num_experts"))
    if name in ("num_attention_heads", "n_head"):
        return values.get("hidden_size", values.get("n_embd"))
    count = values.get("vocab_size") if name == "pad_token_id" else None  # a row of the embedding
    return count - 1 if is_integer(count, 1) else None


def _is_like(name: str, value: object, default: object) -> bool:
    """Return whether a value is of the type of a default, and a number to compute with."""
    if isinstance(default, bool | str | list | dict) or isinstance(value, bool | str | list | dict):
        return type(value) is type(default)
    if isinstance(default, float) and not (isinstance(value, int) and value > MAX_INTEGER):
        return is_number(value) or (value == 0 and default <= 0)
    least = 1 if is_size(name) and isinstance(default, int) and default > 0 else 0
    return is_integer(value, least, MAX_INTEGER)
