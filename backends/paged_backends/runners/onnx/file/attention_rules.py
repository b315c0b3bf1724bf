"""Windows and caps that a configuration asks for, and a graph does not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paged_backends.runners.onnx.file.file_config import FileConfig
from paged_core.errors import CheckpointError
from paged_core.interfaces.layer import LayerSpec


@dataclass(frozen=True, slots=True)
class AppliedRules:
    """Layers as they attend, and the length up to which that is known."""

    layers: Sequence[LayerSpec]
    max_model_len: int | None


def layer_rules(layers: Sequence[LayerSpec], config: FileConfig, path: Path) -> AppliedRules:
    """Add to each layer what the configuration says of it; what the graph says comes first.

    A window that no layer has, neither in the graph nor in the configuration, limits the length:
    up to there it makes no difference.

    Raises:
        CheckpointError: the configuration describes another number of layers.
    """
    if config.layers:
        if len(config.layers) != len(layers):
            raise CheckpointError(
                f"{path} has {len(layers)} attention layers, and the configuration beside it "
                f"{len(config.layers)}; the two files do not belong together"
            )
        layers = [
            replace(
                layer,
                sliding_window=layer.sliding_window or rules.sliding_window,
                soft_cap=layer.soft_cap or rules.soft_cap,
            )
            for layer, rules in zip(layers, config.layers, strict=True)
        ]
    windows = [layer.sliding_window for layer in layers]
    return AppliedRules(layers, None if any(windows) else config.unplaced_window)
