"""Redirects the attention of a transformers model to a handler of ours.

The library looks up attention functions by name in a global table, so a name is registered there.
The function has no state: every module of a served model carries a port as an attribute, and a call
is passed to the port of the module that made it. Nothing is passed through the model's keyword
arguments, which some architectures drop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.utils import logging

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
        AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(PROBE, _mask_rule)


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
