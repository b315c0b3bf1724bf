"""Names of weights compared with the configuration: unused, of other layers, or quantised.

Of the weights of any architecture that a model does not use, these are ignored:

- tables that are computed from the configuration: of rotary embeddings, of causal masks, of
  position numbers, and the scalar that stands for a mask;
- the version number that early OPT checkpoints carry;
- a head that is the embedding;
- the layers that predict further tokens (``num_nextn_predict_layers``, ``mtp``);
- what reads images or sounds, if the configuration describes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.folder import Checkpoint
from paged_core.errors import CheckpointError

_COMPUTED = re.compile(
    r"(^|\.)("
    r"rotary_emb\.(inv_freq|cos_cached|sin_cached)"
    r"|(attn|attention|self_attn)\.(bias|masked_bias)"
    r"|position_ids|decoder\.version"
    r")$"
)
_FURTHER_TOKENS = re.compile(r"(^|\.)mtp\.")
_NOT_TEXT = re.compile(r"^(model\.)?(vision|visual|audio|multi_modal|mm_|embed_(vision|audio))")
_HEAD = "lm_head.weight"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|blk)\.(\d+)\.")


def check_unused(
    names: Iterable[str], *, place: Path, config: Mapping[str, Any], tied: bool
) -> None:
    """Check weights that nothing took.

    Args:
        names: of the weights.
        place: the folder, or the GGUF file.
        config: the content of ``config.json``.
        tied: the head is the embedding.

    Raises:
        CheckpointError: one of them would be missed.
    """
    num_layers = config.get("num_hidden_layers", config.get("n_layer"))
    further = config.get("num_nextn_predict_layers")
    reads_more = not config.keys().isdisjoint(("vision_config", "audio_config"))
    first, last = (
        (num_layers, num_layers + further)
        if isinstance(num_layers, int) and isinstance(further, int)
        else (0, 0)
    )

    def ignored(name: str) -> bool:
        layer = layer_number(name)
        return bool(
            is_computed(name)
            or _FURTHER_TOKENS.search(name)
            or (tied and name == _HEAD)
            or (reads_more and _NOT_TEXT.match(name))
            or (layer is not None and first <= layer < last)
        )

    unknown = sorted(name for name in names if not ignored(name))
    if not unknown:
        return
    layers = [layer for name in unknown if (layer := layer_number(name)) is not None]
    if isinstance(num_layers, int) and max(layers, default=0) >= num_layers:
        raise other_layers(place, num_layers, max(layers) + 1)
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    raise CheckpointError(
        f"{place} holds weights that a model of its configuration does not use: "
        f"{', '.join(name[:100] for name in unknown[:3])}{more}; the two do not belong together"
    )


def is_computed(name: str) -> bool:
    """Return whether a tensor is a table that models compute themselves."""
    return _COMPUTED.search(name) is not None


def layer_number(name: str) -> int | None:
    """Return the number of the layer to which a weight belongs."""
    found = _LAYER.search(name)
    return int(found[1][:9]) if found else None


def other_layers(place: Path, num_layers: int, num_stored: int) -> CheckpointError:
    """Return the error for weights of more or fewer layers than the configuration says."""
    return CheckpointError(
        f"the number of layers in {place} is {num_layers} by its configuration and {num_stored} by "
        "its weights; the two do not belong together"
    )


_CODES = {"gptq": (".qweight",), "awq": (".qweight",)} | {
    "compressed-tensors": (".weight_packed", ".weight_scale")
}
"""Ends of the names of tensors that there are of each quantised matrix, by method."""


def check_quantized(checkpoint: Checkpoint, names: Collection[str]) -> None:
    """Refuse quantised tensors of which the configuration says nothing, and the other way round.

    Raises:
        CheckpointError: there are the one or the other.
    """
    method, path = checkpoint.quantized_as, checkpoint.config_path
    ends = _CODES.get(method or "", tuple(chain(*_CODES.values())))
    found = next((name for name in names if name.endswith(ends)), None)
    if method is None and found is not None:
        raise CheckpointError(
            f"{found} in {checkpoint.place} is quantised, and {path} has no quantization_config "
            "that says how; take it from where the checkpoint comes from (older tools wrote it to "
            "quantize_config.json)"
        )
    if method in _CODES and found is None:
        raise CheckpointError(
            f"{path} has a quantization_config of {method}, and no weight is quantised: none is "
            f"called *{' or *'.join(ends)}; delete the entry if the weights are plain, or download "
            "the checkpoint again"
        )
