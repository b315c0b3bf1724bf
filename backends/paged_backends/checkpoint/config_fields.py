"""``config.json`` field by field, its sizes compared with the weights, and the dtype to compute in.

A wrong value is an error that names the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import MISSING, TypedFields, is_integer
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.field_rules import shown

LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"),
    *("n_ctx", "seq_length"),
)
"""Fields that may say how many positions a model has, the first that is there."""
_MAX_LAYERS = 10_000
_MAX_NAME = 50
"""Characters of the name of an object."""


class ConfigFields(TypedFields):
    """Fields of a configuration, with the defaults of the architecture."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._values: Mapping[str, Any] = checkpoint.config
        self._within = ""
        self._read: set[str] = set()

    def part(self, name: str, values: object) -> ConfigFields:
        """Return the fields of an object in the configuration, by its name there."""
        if not isinstance(values, Mapping):
            raise self.wrong(name, "an object")
        fields = ConfigFields(self.checkpoint)
        fields._values, fields._within = values, f"{self._within}{name[:_MAX_NAME]}."
        return fields

    def changed(self, name: str, changes: object) -> ConfigFields:
        """Return the fields with others in place of some, which one of them, by name, gives."""
        if not isinstance(changes, Mapping):
            raise self.wrong(name, "an object of objects")
        kept = {key: value for key, value in self._values.items() if key != name}
        fields = self.part(name, {**kept, **changes})
        fields._within = self._within
        return fields

    def has(self, name: str) -> bool:
        """Return whether the field is there and is not null."""
        return self.any(name) is not None

    def any(self, name: str, default: Any = None) -> Any:
        """Return a field as it is; ``default`` if it is missing."""
        self._read.add(name)
        if not self._within:
            self.checkpoint.read.add(name)
        return self._values.get(name, default)

    def optional_integer(self, name: str, default: int | None) -> int | None:
        """Return a whole number of at least 1, or ``None`` if the field is null."""
        return None if self.any(name, default) is None else self.integer(name, default or 1)

    def num_layers(self, name: str, default: int) -> int:
        """Return a number of layers."""
        return self.integer(name, default, most=_MAX_LAYERS)

    def optional_number(self, name: str, default: float | None) -> float | None:
        """Return a number, or ``None`` if the field is null."""
        return None if self.any(name, default) is None else self.number(name, default or 0)

    def one_of(self, name: str, *options: int) -> int:
        """Return one of the whole numbers that are covered; raises as :meth:`choice`."""
        value = self.given(name, MISSING)
        if not is_integer(value, min(options), max(options)) or value not in options:
            raise self.lacking(name, " or ".join(map(str, options)))
        return int(value)

    def choice(self, name: str, default: str, options: Sequence[str]) -> str:
        """Return one of the strings that are covered.

        Raises:
            UnsupportedModel: it is another.
        """
        value = self.given(name, default)
        if value not in options:
            raise self.lacking(name, " or ".join(options))
        return str(value)

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return an object, or ``None`` if the field is missing or null."""
        value = self.any(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return value

    def texts(self, name: str) -> Sequence[str]:
        """Return a list of strings; none if the field is missing or null."""
        value = self.any(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, "a list of strings")
        return value

    def refuse_unread(self, *without_effect: str) -> None:
        """Refuse fields that nothing has read, and that are not known to be without effect.

        Raises:
            CheckpointError: there is one; to ignore it could mean to read the model wrongly.
        """
        for path in self.unread(*without_effect):
            raise CheckpointError(
                f"{self.checkpoint.config_path}: {path} is not known to runner native, and may "
                "change what the weights mean; take another quantisation of the model, or one that "
                "runner transformers serves with the package of its method"
            )

    def unread(self, *without_effect: str) -> Iterator[str]:
        """Yield the fields that nothing has read and that are not null, but for some, by path."""
        for name, value in self._values.items():
            if value is not None and name not in self._read and name not in without_effect:
                yield f"{self._within}{name[:_MAX_NAME]}"

    def wrong(self, name: str, kind: str) -> CheckpointError:
        """Return the error for a field that is not of this kind."""
        return CheckpointError(
            f"{self.checkpoint.config_path} does not describe a model of type "
            f"{self.checkpoint.model_type}: {self._within}{name} must be {kind}, not "
            f"{shown(self._values.get(name))}"
        )

    def ignored(self, name: str, kind: str) -> CheckpointError:
        """Return the error for a way of quantisation that no runner computes with."""
        return CheckpointError(
            f"{self.checkpoint.config_path}: {self._within}{name} must be {kind}, not "
            f"{shown(self._values.get(name))}: no runner computes with it, and without it results "
            "would be wrong; take another quantisation of the model"
        )

    def lacking(self, name: str, kind: str) -> UnsupportedModel:
        """Return the error for a way of quantisation that is not of this kind."""
        return UnsupportedModel(
            f"{self.checkpoint.config_path}: {self._within}{name} must be {kind} for runner "
            f"native, not {shown(self._values.get(name))}; take another quantisation of the "
            "model, or one that runner transformers serves with the package of its method"
        )

    def given(self, name: str, default: Any) -> Any:
        """See :class:`TypedFields`; a field of quantisation that is null is missing."""
        value = self.any(name, default)
        if value is None and self._within.startswith("quantization_config."):
            value = default
        if value is MISSING:
            raise self.wrong(name, "given")
        return value


def refuse_biased(checkpoint: Checkpoint) -> None:
    """Refuse models that add ALiBi's slopes to their scores: no runner can put in a paged cache.

    Raises:
        UnsupportedModel: it is one.
    """
    kind = checkpoint.model_type
    if kind in ("bloom", "mpt") or (kind == "falcon" and checkpoint.config.get("alibi")):
        raise UnsupportedModel(
            f"{checkpoint.config_path} is of type {kind}, which cannot be served: its positions "
            "are ALiBi's slopes, which its own code adds to the scores, outside the attention "
            "interface of transformers; choose a model with rotary or learned positions"
        )


_LAYERS = re.compile(r"^(n|num)_(\w+_)?(layers?|blocks?)$|^depth$")
_SIZES = re.compile(r"size|dim|heads|head$|inner|embd|rank|experts|width|channels|groups|labels")
_POSITIONS = re.compile(r"position|n_ctx|seq_len|sequence_length|seq_length|window")


def is_size(name: str) -> bool:
    """Return whether a field, by its name, counts something of which there must be one."""
    return any(each.search(name) for each in (_LAYERS, _SIZES, _POSITIONS))


_SMALL = 1 << 20
"""A size that needs no weights to be believed."""
_MAX_POSITIONS = 2**31 - 1


def check_sizes(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the weights can be those of a model of this configuration.

    A layer has at least one weight, and no side of a matrix is longer than the matrix has numbers.
    Fields that nothing reads may say anything.

    Args:
        shapes: of the weights, by name.

    Raises:
        CheckpointError: the configuration describes a larger model.
    """
    largest = max(_SMALL, max(map(prod, shapes.values()), default=0))
    for path, value in _integers(checkpoint.config):
        name = path.rpartition(".")[2]
        if path not in checkpoint.read:
            continue
        if _LAYERS.search(name):
            most, reason = len(shapes), f"the number of tensors is {len(shapes)}"
        elif _POSITIONS.search(name):
            most, reason = _MAX_POSITIONS, f"at most {_MAX_POSITIONS} positions are numbered"
        elif _SIZES.search(name):
            most, reason = largest, f"no tensor has more than {largest} numbers"
        else:
            continue
        if value > most:
            raise CheckpointError(
                f"{checkpoint.config_path} says that {path} is {str(value)[:30]}, and "
                f"{reason}; the configuration and the weights do not belong together"
            )


def _integers(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if isinstance(value, int):
            yield within + name, value
        elif isinstance(value, Mapping):
            yield from _integers(value, f"{within}{name}.")


SMALL_BYTES = 64 << 20
"""Weights that take no more than this as float32 fit the caches of a CPU."""


def stated_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """Return the dtype of a configuration, or ``None``: it names none that is computed in."""
    stated = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "")
    dtype = getattr(torch, stated.removeprefix("torch."), None)
    return dtype if dtype in (torch.float32, torch.float16, torch.bfloat16) else None


def choose_dtype(setting: str, checkpoint: Checkpoint, device: torch.device) -> Any:
    """Return what ``from_pretrained`` takes as ``dtype``: a torch dtype, or ``"auto"``.

    ``auto`` is the checkpoint's own dtype, except that a CPU computes in float32 instead of 16 bits
    if it has no instructions for bfloat16, if the dtype is float16, or if the model is so small
    that half the memory traffic does not make it faster. In 16 bits a sum depends on the shape of
    the batch, and with it, now and then, a greedy token.
    """
    if setting != "auto":
        return getattr(torch, setting)
    own = stated_dtype(checkpoint)
    if device.type != "cpu" or own not in {torch.bfloat16, torch.float16}:
        return "auto"
    num_bytes = 4 * checkpoint.num_weights
    apt = own is torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()
    return "auto" if apt and num_bytes > SMALL_BYTES else torch.float32
