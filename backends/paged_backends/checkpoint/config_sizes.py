"""Sizes in ``config.json``, compared with the weights before a model of that size is made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from paged_backends.checkpoint.folder import Checkpoint
from paged_core.errors import CheckpointError

_LAYERS = re.compile(r"^(n|num)_(\w+_)?(layers?|blocks?)$|^depth$")
_SIZES = re.compile(r"size|dim|heads|head$|inner|embd|rank|experts|width|channels|groups|labels")
_POSITIONS = re.compile(r"position|n_ctx|seq_len|sequence_length|seq_length|window")
_SMALL = 1 << 20
"""A size that needs no weights to be believed."""
_MAX_POSITIONS = 2**31 - 1


def check_sizes(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the weights can be those of a model of this configuration.

    A layer has at least one weight, and no side of a matrix is longer than the matrix has numbers.

    Args:
        shapes: of the weights, by name.

    Raises:
        CheckpointError: the configuration describes a larger model.
    """
    largest = max(_SMALL, max(map(prod, shapes.values()), default=0))
    for name, value in _integers(checkpoint.config):
        if _LAYERS.search(name):
            most, reason = len(shapes), f"the weights are {len(shapes)} tensors"
        elif _POSITIONS.search(name):
            most, reason = _MAX_POSITIONS, f"at most {_MAX_POSITIONS} positions are numbered"
        elif _SIZES.search(name):
            most, reason = largest, f"no tensor has more than {largest} numbers"
        else:
            continue
        if value > most:
            raise CheckpointError(
                f"{checkpoint.config_path} says that {name} is {str(value)[:30]}, and "
                f"{reason}; the configuration and the weights do not belong together"
            )


def _integers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if isinstance(value, int):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _integers(value)
