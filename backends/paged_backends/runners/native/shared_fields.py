"""Fields that several families of models have in common, turned into values of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import NUMBER, is_number
from paged_backends.runners.native.config import Activation, AttentionConfig, Rope
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
    problem = (
        f"{checkpoint.model_type} of {checkpoint.place} cannot be served by runners native and "
        f"onnxruntime, which lack {feature}"
    )
    if not elsewhere:
        return UnsupportedModel(f"{problem}; choose a model that generates text from left to right")
    if checkpoint.gguf is None:
        return UnsupportedModel(problem, "; set runner to auto or transformers")
    remedy = "take the model as safetensors, which runner transformers serves"
    return UnsupportedModel(f"{problem}; {remedy}")


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
    return _stated_types(fields, count) or [default(index) for index in range(count)]


def check_layer_types(fields: ConfigFields, layers: Sequence[AttentionConfig]) -> None:
    """Compare the types of layers, which not all families read, with how they are described.

    Raises:
        CheckpointError: there are not as many, or a sliding layer has no window.
        UnsupportedModel: one is not known, or slides in a family that has no windows.
    """
    for kind, layer in zip(_stated_types(fields, len(layers)), layers, strict=False):
        if kind == SLIDING and layer.sliding_window is None:
            if "sliding_window" in fields.checkpoint.config.keys() - fields.checkpoint.read:
                raise lacking(fields.checkpoint, "sliding windows in models of this type")
            windows = "there is no sliding_window, or use_sliding_window is not true"
            raise fields.wrong("layer_types", f"without {SLIDING!r}, as {windows}")


def _stated_types(fields: ConfigFields, count: int) -> Sequence[str]:
    """Return the types of so many layers; none if nothing is said of them."""
    types = fields.any("layer_types")
    if types is None:
        return []
    if not isinstance(types, list) or len(types) != count:
        raise fields.wrong("layer_types", f"a list with one word for each layer, of {count} in all")
    others = sorted(set(map(str, types)) - {SLIDING, FULL})
    if others:
        raise lacking(fields.checkpoint, f"layers of the type {others[0][:50]} (layer_types)")
    return types


_ORIGINAL_LENGTH = "original_max_position_embeddings"
_OF_OTHER_ROPES = (
    *("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL_LENGTH, "attention_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor"),
    *("long_factor", "mrope_section"),
)
"""Parameters that the library leaves unread unless the type of rotary embeddings has them."""


def rope_parameters_of(fields: ConfigFields) -> ConfigFields:
    """Return the parameters of rotary embeddings; a length beside them comes first."""
    name = "rope_scaling" if fields.mapping("rope_scaling") else "rope_parameters"
    given, beside = fields.mapping(name) or {}, fields.any(_ORIGINAL_LENGTH)
    return fields.part(name, given if beside is None else {**given, _ORIGINAL_LENGTH: beside})


def rope_of(fields: ConfigFields, given: ConfigFields, theta: float, length: int) -> Rope:
    """Describe rotary embeddings, in the new form or in that of older configurations.

    Args:
        given: their parameters, each of which is read, or known to be without effect.
        length: of the original training, where nothing is said of it.
    """
    older = given.text("type", "default")
    kind = given.text("rope_type", older)
    divided = ["divided"] if fields.checkpoint.gguf is not None else []
    if kind not in ("default", "linear", "llama3", *divided):
        raise lacking(fields.checkpoint, f"rotary embeddings scaled by {shown(kind)} (rope_type)")
    share = given.any("partial_rotary_factor", fields.any("partial_rotary_factor"))
    if share not in (None, 1, 1.0):
        feature = "rotary embeddings over part of a head (partial_rotary_factor)"
        raise lacking(fields.checkpoint, feature)
    theta = given.number("rope_theta", theta)
    for path in given.unread(*_OF_OTHER_ROPES, "divisors"):
        raise lacking(fields.checkpoint, f"what {path} may mean for rotary embeddings")
    if kind == "default":
        return Rope(theta=theta)
    if kind == "divided":
        return Rope(theta=theta, scaling="divided", divisors=_divisors(given))
    if kind == "linear":
        return Rope(theta=theta, scaling="linear", factor=given.number("factor"))
    low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
    if low >= high:
        raise given.wrong("low_freq_factor", f"less than high_freq_factor, {high}")
    return Rope(
        theta=theta,
        scaling="llama3",
        factor=given.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_length=int(given.number(_ORIGINAL_LENGTH, length)),
    )


def _divisors(given: ConfigFields) -> tuple[float, ...]:
    """Return what each frequency is divided by; how many there are is known to be right."""
    divisors = given.any("divisors")
    if not isinstance(divisors, Sequence) or not all(map(is_number, divisors)):
        raise given.wrong("divisors", f"a list, of {NUMBER} each")
    return tuple(divisors)
