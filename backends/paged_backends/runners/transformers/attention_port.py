"""The attention of a transformers model: passed to a handler of ours; what layers need of it.

The library looks up attention functions by name in a global table, so a name is registered there.
The function has no state: every module of a served model carries a port as an attribute, and a call
is passed to the port of the module that made it. Nothing is passed through the model's keyword
arguments, which some architectures drop.

A specification written by hand for every architecture would be wrong for the next one. Instead the
model runs once over a few tokens and nothing but zeros, every call of the attention function is
recorded, and a layer is described by what it passed. What the description cannot say is refused
here, by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers  # which imports a module when a name of it is asked for
from torch import Tensor, nn
from transformers.utils import logging

from paged_backends.runners.loaded_runner import DTYPE_NAMES
from paged_core.errors import UnsupportedModel
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings.schema import EngineSettings

IMPLEMENTATION = "paged_core"
"""Attention goes to the port; no masks are built."""
PROBE = "paged_core_probe"
"""The same, with a :class:`MaskRule` in place of each mask."""

_ATTRIBUTE = "paged_core_port"

Handler = Callable[[nn.Module, Tensor, Tensor, Tensor, Any, Mapping[str, Any]], Tensor]
"""Takes a module, query [1, heads, T, head_dim], key, value, the mask and the keyword arguments;
returns [1, T, heads, value_dim]."""


class MaskRule:
    """Which keys a query sees: ``rule(batch, head, query position, key position)`` on tensors."""

    def __init__(self, rule: Callable[[Any, Any, Any, Any], Any]) -> None:
        self.rule = rule


class AttentionPort:
    """Receives the calls of the attention modules of one model."""

    def __init__(self, model: nn.Module) -> None:
        self.handler: Handler | None = None
        for module in model.modules():
            setattr(module, _ATTRIBUTE, self)

    @contextlib.contextmanager
    def connected(self, handler: Handler) -> Iterator[None]:
        """Pass calls to ``handler`` inside this context."""
        self.handler = handler
        try:
            yield
        finally:
            self.handler = None


def register() -> None:
    """Register the names with the library; idempotent."""
    for name in (IMPLEMENTATION, PROBE):
        transformers.AttentionInterface.register(name, _attention)
    transformers.AttentionMaskInterface.register(PROBE, _mask_rule)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the library's progress bars and warnings inside this context."""
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    handler = getattr(module, _ATTRIBUTE).handler
    return handler(module, query, key, value, attention_mask, options), None


def _mask_rule(*_: Any, mask_function: Callable[..., Any], **__: Any) -> MaskRule:
    return MaskRule(mask_function)


# ---------------------------------------------------------------------- what layers need

_REFUSED = {
    "position_bias": "a position bias added to the scores",
    "alibi": "ALiBi passed as a tensor",
    "head_mask": "a mask over heads",
    "block_mask": "a block mask",
}
_KNOWN = {"s_aux", "position_ids", "cache_position"}
"""Tensors that the attention function may be given beside queries, keys and values."""
_NUM_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the attention function."""

    module: nn.Module
    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    dtype: torch.dtype
    mask: Any
    options: Mapping[str, Any]


def probe_layers(
    model: Any, decoder: Any, port: AttentionPort, settings: EngineSettings, max_model_len: int
) -> list[tuple[nn.Module, LayerSpec]]:
    """Return the attention modules of ``model`` in the order in which its ``decoder`` calls them,
    and what each needs.

    Raises:
        UnsupportedModel: a layer needs what no
            :class:`~paged_core.interfaces.layer.LayerSpec` can say, or does not reach the attention
            function at all.
    """
    calls = _record(model, decoder, port)
    name, config = model.config.model_type, model.config.get_text_config()
    _check_reached(model, calls)
    layers = []
    for index, call in enumerate(calls):
        where = f"{name} cannot be served: layer {index} "
        spec = _spec(call, where, str(model.device), settings)
        if isinstance(call.mask, MaskRule):
            windows = (spec.sliding_window, getattr(config, "sliding_window", None), None)
            window = _window_of(call.mask, windows, max_model_len, where)
            spec = replace(spec, sliding_window=window)
        layers.append((call.module, spec))
    return layers


def _record(model: Any, decoder: Any, port: AttentionPort) -> list[Call]:
    calls: list[Call] = []

    def record(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        options: Mapping[str, Any],
    ) -> Tensor:
        shapes = (tuple(query.shape), tuple(key.shape), tuple(value.shape))
        calls.append(Call(module, *shapes, key.dtype, mask, options))
        batch, heads, tokens, _ = query.shape
        return query.new_zeros(batch, tokens, heads, value.shape[-1])

    tokens = torch.arange(_NUM_TOKENS, device=model.device)[None]
    with torch.inference_mode(), port.connected(record):
        try:
            model.set_attn_implementation(PROBE)
            decoder(input_ids=tokens, position_ids=tokens, use_cache=False)
        except (AttributeError, TypeError):
            # the model works on its mask, and a rule is none: go without what it would tell
            calls.clear()
            model.set_attn_implementation(IMPLEMENTATION)
            decoder(input_ids=tokens, position_ids=tokens, use_cache=False)
    model.set_attn_implementation(IMPLEMENTATION)
    return calls


def _check_reached(model: Any, calls: Sequence[Call]) -> None:
    config = model.config.get_text_config()
    expected = config.num_hidden_layers
    if len(calls) >= expected:
        return
    kinds = sorted({kind for kind in getattr(config, "layer_types", None) or () if kind})
    others = [kind for kind in kinds if "attention" not in kind or "linear" in kind]
    reason = (
        f"the others are of another kind ({', '.join(others)}), whose state is not paged"
        if others
        else "the others compute attention in their own way, or none"
    )
    raise UnsupportedModel(
        f"{config.model_type} cannot be served: the attention interface of transformers is used by "
        f"{len(calls)} of its {expected} layers, and {reason}; choose a model whose layers all do"
    )


def _spec(call: Call, where: str, device: str, settings: EngineSettings) -> LayerSpec:
    options = call.options
    _, num_heads, num_tokens, head_dim = call.query_shape
    _, num_kv_heads, num_keys, key_dim = call.key_shape
    for option, feature in _REFUSED.items():
        if options.get(option) is not None:
            raise UnsupportedModel(f"{where}needs {feature}, which no attention backend here has")
    for option, value in options.items():
        if isinstance(value, Tensor) and option not in _KNOWN:
            raise UnsupportedModel(
                f"{where}gives its attention {option!r} of shape {tuple(value.shape)} to heed, "
                "which no attention backend here knows"
            )
    if num_keys != num_tokens:
        raise UnsupportedModel(
            f"{where}looks at {num_keys} keys where there are {num_tokens} tokens (cross-attention "
            "or compressed keys), which is not paged"
        )
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(call.module, "is_causal", True)
    if not is_causal:
        raise UnsupportedModel(f"{where}is not causal: its tokens see those that follow them")
    if isinstance(call.mask, Tensor):
        raise UnsupportedModel(f"{where}brings a mask or a bias of its own")
    if key_dim != head_dim or call.value_shape[1:3] != call.key_shape[1:3]:
        raise UnsupportedModel(
            f"{where}has queries {call.query_shape}, keys {call.key_shape} and values "
            f"{call.value_shape}, which no cache here holds"
        )
    if call.dtype not in DTYPE_NAMES:
        raise UnsupportedModel(
            f"{where}has keys and values in {call.dtype}; set dtype to one of "
            f"{', '.join(DTYPE_NAMES.values())}"
        )
    scale = options.get("scaling")
    return LayerSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=max(head_dim, call.value_shape[-1]),
        scale=float(head_dim**-0.5 if scale is None else scale),
        dtype=DTYPE_NAMES[call.dtype],
        device=device,
        block_size=settings.block_size,
        kv_cache_dtype=settings.kv_cache_dtype,
        sliding_window=options.get("sliding_window"),
        soft_cap=options.get("softcap"),
        sinks=_sinks(options.get("s_aux"), num_heads, where),
    )


def _sinks(scores: Any, num_heads: int, where: str) -> tuple[float, ...] | None:
    if scores is None:
        return None
    if not isinstance(scores, Tensor) or scores.numel() != num_heads:
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise UnsupportedModel(
            f"{where}has attention sinks of shape {found}, not one for each of {num_heads} heads, "
            "which no attention backend here has"
        )
    return tuple(scores.flatten().tolist())


def _window_of(
    mask: MaskRule, candidates: Sequence[int | None], max_model_len: int, where: str
) -> int | None:
    """Return the first sliding window that is, near and far, what the model's own rule says."""
    marks = {1 << power for power in range(max_model_len.bit_length())} | {max_model_len - 1}
    for given in filter(None, candidates):
        marks |= {given, 2 * given}
    near = {mark + offset for mark in marks for offset in (-2, -1, 0, 1, 2)}
    positions = torch.tensor(sorted(place for place in near if 0 <= place < max_model_len))
    query, key = positions[:, None], positions[None, :]
    zero = torch.zeros((), dtype=torch.int64)
    try:
        seen = torch.as_tensor(mask.rule(zero, zero, query, key))
    except (IndexError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{where}has a mask that depends on more than positions ({error})"
        ) from error
    for window in candidates:
        expected = key <= query
        if window is not None:
            expected &= key > query - window
        if torch.equal(seen.expand_as(expected), expected):
            return window
    raise UnsupportedModel(
        f"{where}has a mask that is neither causal nor a sliding window (chunked or two-way "
        "attention, perhaps), which no attention backend here has"
    )
