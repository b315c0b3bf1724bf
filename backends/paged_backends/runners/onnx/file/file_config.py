"""The configuration beside a graph, and the rules of attention that the graph does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.config_fields import LENGTHS, ConfigFields, token_ids
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import damaged
from paged_backends.checkpoint.onnx_files import GENAI_CONFIG, genai_section
from paged_backends.runners.native.families import decoder_config
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.interfaces.layer import LayerSpec
from paged_core.log import get_logger

log = get_logger()

_SLIDING = "sliding_attention"
_MAX_LAYERS = 10_000
_MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LayerRules:
    """How one layer attends."""

    sliding_window: int | None = None
    soft_cap: float | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """Of a model in one ONNX file."""

    max_model_len: int | None
    eos_token_ids: frozenset[int]
    tokens: str = "input_ids"
    """The input that takes token ids."""
    positions: str = "position_ids"
    logits: str = "logits"
    layers: Sequence[LayerRules] = ()
    """Of each layer, in order; empty: not known."""
    unplaced_window: int | None = None
    """A sliding window of layers that the configuration does not name."""
    stated: StatedSizes = field(default_factory=StatedSizes)


def read_file_config(folder: Path, path: Path) -> FileConfig:
    """Read ``genai_config.json``, or ``config.json``, or both.

    They are in the folder of the checkpoint, or else beside its ONNX file at ``path``.

    Raises:
        CheckpointError: there is none, or it contradicts itself.
    """
    if not any((folder / name).is_file() for name in ("config.json", GENAI_CONFIG)):
        folder = path.parent
    has_config, genai = (folder / "config.json").is_file(), folder / GENAI_CONFIG
    if not has_config and not genai.is_file():
        raise CheckpointError(
            f"{folder} holds an ONNX file and no configuration; copy the config.json of the model "
            "that it was made from into the folder"
        )
    plain = _plain_config(Checkpoint.open(str(folder))) if has_config else None
    if genai.is_file():
        return _genai_config(genai, plain)
    return plain or FileConfig(max_model_len=None, eos_token_ids=frozenset())


# ---------------------------------------------------------------------- config.json


def _plain_config(checkpoint: Checkpoint) -> FileConfig:
    fields = ConfigFields(checkpoint)
    given = next((name for name in LENGTHS if fields.has(name)), None)
    length = fields.integer(given) if given else None
    trained = _unscaled_length(fields)
    if trained is not None:
        length = min(length or trained, trained)
    layers = _layers(checkpoint, fields)
    window = fields.optional_integer("sliding_window", None) if layers is None else None
    return FileConfig(
        max_model_len=length,
        eos_token_ids=fields.token_ids(None),
        layers=layers or (),
        unplaced_window=window,
    )


def _layers(checkpoint: Checkpoint, fields: ConfigFields) -> list[LayerRules] | None:
    """Return the rules of all layers; ``None``: a window may hold for some of them."""
    try:
        known = decoder_config(checkpoint).layers
        return [LayerRules(layer.sliding_window, layer.soft_cap) for layer in known]
    except UnsupportedModel:  # a family that we have to take at its word
        pass
    cap = fields.optional_number("attn_logit_softcapping", None)
    window = fields.optional_integer("sliding_window", None)
    types = fields.any("layer_types")
    if isinstance(types, list):
        return [LayerRules(window if kind == _SLIDING else None, cap) for kind in types]
    if window is not None or cap is None:
        return None
    return [LayerRules(None, cap)] * fields.num_layers("num_hidden_layers", 1)


def _unscaled_length(fields: ConfigFields) -> int | None:
    """Return the length up to which rotary embeddings do not depend on that of a sequence."""
    rope = fields.mapping("rope_scaling") or fields.mapping("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type")
    if kind not in ("dynamic", "longrope", "su"):
        return None
    own = rope.get("original_max_position_embeddings")
    if isinstance(own, int) and own > 0:
        return own
    if fields.has("original_max_position_embeddings"):
        return fields.integer("original_max_position_embeddings")
    return fields.integer("max_position_embeddings")


# ---------------------------------------------------------------------- genai_config.json


def _genai_config(path: Path, plain: FileConfig | None) -> FileConfig:
    """Read what onnxruntime-genai's builder wrote; ``plain``: what config.json says beside it."""
    model = genai_section(path, "model")
    decoder = genai_section(path, "model", "decoder")
    inputs, outputs = (_names(path, decoder, part) for part in ("inputs", "outputs"))
    window, layers = _genai_window(path, decoder)
    ids = model.get("eos_token_id")
    return FileConfig(
        max_model_len=_positive(path, model, "context_length"),
        eos_token_ids=frozenset() if ids is None else token_ids(path.parent, ids),
        tokens=inputs.get("input_ids", "input_ids"),
        positions=inputs.get("position_ids", "position_ids"),
        logits=outputs.get("logits", "logits"),
        layers=plain.layers if plain and plain.layers else layers,
        unplaced_window=plain.unplaced_window if plain else window,
        stated=StatedSizes(
            num_layers=_positive(path, decoder, "num_hidden_layers", most=_MAX_LAYERS),
            head_dim=_positive(path, decoder, "head_size"),
            vocab_size=_positive(path, model, "vocab_size"),
        ),
    )


def _names(path: Path, decoder: Mapping[str, Any], part: str) -> Mapping[str, str]:
    names = decoder.get(part, {})
    if not isinstance(names, Mapping):
        raise _wrong(path, f"model.decoder.{part}", "an object")
    return {key: value for key, value in names.items() if isinstance(value, str)}


def _genai_window(
    path: Path, decoder: Mapping[str, Any]
) -> tuple[int | None, Sequence[LayerRules]]:
    """Return a window whose layers are not named, or the rules of all layers."""
    given = decoder.get("sliding_window")
    if given is None:
        return None, ()
    if not isinstance(given, Mapping):
        raise _wrong(path, "model.decoder.sliding_window", "an object")
    window = _positive(path, given, "window_size")
    named, count = (
        given.get("layers"),
        _positive(path, decoder, "num_hidden_layers", most=_MAX_LAYERS),
    )
    if not isinstance(named, list) or not named or count is None:
        return window, ()
    windowed = {index for index in named if isinstance(index, int)}
    return None, [LayerRules(window if index in windowed else None) for index in range(count)]


def _positive(
    path: Path, values: Mapping[str, Any], name: str, *, most: int = _MAX_NUMBER
) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise _wrong(path, name, f"a whole number of at least 1 and at most {most}")
    return value


def _wrong(path: Path, name: str, kind: str) -> CheckpointError:
    return damaged(f"{path} does not describe a decoder: {name} must be {kind}")


# ---------------------------------------------------------------------- beside the graph


def layer_rules(layers: Sequence[LayerSpec], config: FileConfig, path: Path) -> Sequence[LayerSpec]:
    """Add to each layer what the configuration says of it; what the graph says comes first.

    Raises:
        CheckpointError: the configuration describes another number of layers.
    """
    if config.layers:
        if len(config.layers) != len(layers):
            raise _contradiction(path, f"{len(layers)} attention layers", len(config.layers))
        layers = [
            replace(
                layer,
                sliding_window=layer.sliding_window or rules.sliding_window,
                soft_cap=layer.soft_cap or rules.soft_cap,
            )
            for layer, rules in zip(layers, config.layers, strict=True)
        ]
    return layers


def _contradiction(path: Path, found: str, stated: int | None) -> CheckpointError:
    return CheckpointError(
        f"{path} has {found}, and the configuration beside it {stated}; the two files do not "
        "belong together"
    )
