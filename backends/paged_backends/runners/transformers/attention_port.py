"""The one place where this package reaches into the transformers library.

The library looks attention functions up by name in a table of its own, so a name is registered
there. The function keeps no state: every module of a model that is served carries a port, and
what arrives at the function is handed to the port of the module that it came from. Nothing has to
travel through the model's keyword arguments, which some architectures do not hand down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.utils import logging

IMPLEMENTATION = "paged_core"
"""Attention goes to the port; masks are never built."""
PROBE = "paged_core_probe"
"""The same, and in place of a mask comes the :class:`MaskRule` by which it would be built."""

_ATTRIBUTE = "paged_core_port"

Handler = Callable[[nn.Module, Tensor, Tensor, Tensor, Any, Mapping[str, Any]], Tensor]
"""Takes a module, query [1, heads, T, head_dim], key, value, the mask and the keyword arguments;
returns [1, T, heads, value_dim]."""


class MaskRule:
    """Says who sees whom: ``rule(batch, head, query position, key position)`` on index tensors."""

    def __init__(self, rule: Callable[[Any, Any, Any, Any], Any]) -> None:
        self.rule = rule


class AttentionPort:
    """Where the attention modules of one model hand in what they computed."""

    def __init__(self, model: nn.Module) -> None:
        self.handler: Handler | None = None
        for module in model.modules():
            setattr(module, _ATTRIBUTE, self)

    @contextlib.contextmanager
    def connected(self, handler: Handler) -> Iterator[None]:
        """Send everything to ``handler`` meanwhile."""
        self.handler = handler
        try:
            yield
        finally:
            self.handler = None


def register() -> None:
    """Make the names known to the library; doing it again changes nothing."""
    for name in (IMPLEMENTATION, PROBE):
        AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(PROBE, _mask_rule)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back the library's progress bars and warnings, and put its settings back afterwards."""
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
