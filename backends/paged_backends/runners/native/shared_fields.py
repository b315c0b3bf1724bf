"""Fields that several families of models have in common, turned into values of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import NUMBER, is_number
from paged_backends.runners.native.config import Activation, Rope
from paged_core.errors import UnsupportedModel
from paged_core.field_rules import shown

SLIDING, FULL = "sliding_attention", "full_attention"
"""Types of layers."""

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def lacking(checkpoint: Checkpoint, feature: str, *, elsewhere: bool = True) -> UnsupportedModel:
    """Return the refusal of a feature that runner transformers may have, or no runner."""
    remedy = "set runner to auto or transformers"
    if checkpoint.gguf is not None:
        remedy = "take the model as safetensors, which runner transformers serves"
    if not elsewhere:
        remedy = "choose a model that generates text from left to right"
    return UnsupportedModel(
        f"{checkpoint.model_type} of {checkpoint.place} cannot be served by runners native and "
        f"onnxruntime, which lack {feature}; {remedy}"
    )


def num_kv_heads_of(fields: ConfigFields, num_heads: int, default: int) -> int:
    if fields.any("num_key_value_heads", default) is None:
        return num_heads  # null, in so many words, means as many
    count = fields.integer("num_key_value_heads", default)
    if num_heads % count:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    return count


def head_dim_of(
    fields: ConfigFields, hidden: int, num_heads: int, default: int | None, *, given: bool = True
) -> int:
    if given and (default is not None or fields.has("head_dim")):
        width = fields.integer("head_dim", default or 1)
        if width % 2:
            raise fields.wrong("head_dim", "even, for rotary embeddings")
        return width
    if hidden % num_heads:
        raise fields.wrong("num_attention_heads", f"a divisor of the hidden size, {hidden}")
    return hidden // num_heads


def activation_of(fields: ConfigFields, name: str, default: str) -> Activation:
    value = fields.text(name, default)
    if value not in _ACTIVATIONS:
        raise lacking(fields.checkpoint, f"the activation {value[:50]!r}, its {name}")
    return _ACTIVATIONS[value]


def layer_types_of(
    fields: ConfigFields, default: Callable[[int], str], default_count: int = 32
) -> Sequence[str]:
    count = fields.num_layers("num_hidden_layers", default_count)
    types = fields.any("layer_types")
    if types is None:
        return [default(index) for index in range(count)]
    if not isinstance(types, list) or len(types) < count:
        raise fields.wrong("layer_types", f"a list of {count} words")
    others = sorted(set(map(str, types)) - {SLIDING, FULL})
    if others:
        raise lacking(fields.checkpoint, f"layers of the type {others[0][:50]}")
    return types


_ORIGINAL_LENGTH = "original_max_position_embeddings"


def rope_parameters_of(fields: ConfigFields) -> Mapping[str, Any]:
    """Return the parameters of rotary embeddings; a length beside them comes first."""
    given = fields.mapping("rope_scaling") or fields.mapping("rope_parameters") or {}
    beside = fields.any(_ORIGINAL_LENGTH)
    return given if beside is None else {**given, _ORIGINAL_LENGTH: beside}


def rope_of(fields: ConfigFields, given: Mapping[str, Any], theta: float, length: int) -> Rope:
    """Describe rotary embeddings, in the new form or in that of older configurations.

    Args:
        length: of the original training, where nothing is said of it.
    """
    kinds = (given.get("rope_type"), given.get("type"))
    kind = next((each for each in kinds if each is not None), "default")
    if not isinstance(kind, str):
        raise fields.wrong("rope_parameters", "an object with a string as 'rope_type'")
    divided = ["divided"] if fields.checkpoint.gguf is not None else []
    if kind not in ("default", "linear", "llama3", *divided):
        raise lacking(fields.checkpoint, f"rotary embeddings scaled by {shown(kind)} (rope_type)")
    share = given.get("partial_rotary_factor", fields.any("partial_rotary_factor"))
    if share not in (None, 1, 1.0):
        raise lacking(fields.checkpoint, "rotary embeddings over part of a head")

    def number(name: str) -> float:
        value = given.get(name)
        if not is_number(value):
            raise fields.wrong("rope_parameters", f"an object with {NUMBER} as {name!r}")
        return float(value)

    theta = number("rope_theta") if given.get("rope_theta") is not None else theta
    if kind == "default":
        return Rope(theta=theta)
    if kind == "divided":
        return Rope(theta=theta, scaling="divided", divisors=_divisors(fields, given))
    if kind == "linear":
        return Rope(theta=theta, scaling="linear", factor=number("factor"))
    low, high = number("low_freq_factor"), number("high_freq_factor")
    if low >= high:
        raise fields.wrong("rope_parameters", "an object with low_freq_factor < high_freq_factor")
    return Rope(
        theta=theta,
        scaling="llama3",
        factor=number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_length=length
        if given.get(_ORIGINAL_LENGTH) is None
        else int(number(_ORIGINAL_LENGTH)),
    )


def _divisors(fields: ConfigFields, given: Mapping[str, Any]) -> tuple[float, ...]:
    """Return what each frequency is divided by; how many there are is known to be right."""
    divisors = given.get("divisors")
    if not isinstance(divisors, Sequence) or not all(map(is_number, divisors)):
        raise fields.wrong("rope_scaling", f"an object whose divisors are each {NUMBER}")
    return tuple(divisors)
