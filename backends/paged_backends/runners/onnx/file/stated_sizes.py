"""Sizes of a model according to the configuration beside its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paged_core.errors import CheckpointError
from paged_core.interfaces.layer import LayerSpec
from paged_core.log import get_logger

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSizes:
    """What ``genai_config.json`` says; ``None``: nothing."""

    num_layers: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None

    def check(self, layers: Sequence[LayerSpec], vocab_size: int, path: Path) -> None:
        """Compare with what the graph has; its logits may be wider or narrower, which is logged.

        Raises:
            CheckpointError: it has other layers.
        """
        if self.num_layers not in (None, len(layers)):
            raise _contradiction(path, f"{len(layers)} attention layers", self.num_layers)
        widths = sorted({layer.head_dim for layer in layers})
        if self.head_dim is not None and self.head_dim not in widths:
            raise _contradiction(path, f"heads of width {widths[0]}", self.head_dim)
        if self.vocab_size not in (None, vocab_size):
            log.warning(
                "vocab_size_differs",
                path=str(path),
                graph=vocab_size,
                configuration=self.vocab_size,
                reason="the graph is served as it is",
            )


def _contradiction(path: Path, found: str, stated: int | None) -> CheckpointError:
    return CheckpointError(
        f"{path} has {found}, and the configuration beside it {stated}; the two files do not "
        "belong together"
    )
