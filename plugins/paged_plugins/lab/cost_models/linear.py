"""Component ``linear``: a weighted sum of the work in a step, with weights that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, mul
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, ValidationError

from paged_core.errors import SettingsError
from paged_core.settings.documents import read_text
from paged_plugins.files import Document, mistakes
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_plugins.lab.settings import LinearSettings
from paged_plugins.written_files import write_text

_HEADER = "# Written by `paged-core calibrate`: weights of the cost model `linear`, in seconds.\n"
_MOST_SECONDS = 1e6


class WeightsFile(BaseModel):
    """Weights by the names of the options of ``linear``, and what they were measured on."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    weights: Mapping[str, Annotated[NonNegativeFloat, Field(le=_MOST_SECONDS)]]
    max_model_len: PositiveInt | None = None
    """The longest sequence that the model serves, in tokens."""
    num_tokens: PositiveInt | None = None
    """Slots of the cache."""
    measured: Mapping[str, Any] = {}
    """Model, machine, number of steps."""
    unmeasured: Mapping[str, str] = {}
    """Why there is no weight of this name: work of this kind takes no time in a simulation."""
    errors: Mapping[str, Any] = {}
    """Relative errors on steps that the weights were not fitted to, by kind of step."""


def read_weights(path: Path) -> WeightsFile:
    """Return what the file says.

    Raises:
        SettingsError: it cannot be read, or is no such file.
    """
    try:
        document = Document(read_text(path.expanduser()))
        return WeightsFile.model_validate(document.content)
    except ValidationError as error:
        reason = mistakes(error, WeightsFile, document)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
    raise SettingsError(
        f"cost_model.file: cannot read weights from {path}: {reason:.200}; write the file with "
        "`paged-core calibrate`"
    )


def write_weights(path: Path, content: WeightsFile) -> None:
    """Write the file; WriteFailed if that fails."""
    text = _HEADER + yaml.safe_dump(content.model_dump(mode="json"), sort_keys=False)
    write_text(path, text)


PARTS: Mapping[str, str] = {
    "per_prefill_token": "prefill_tokens",
    "per_prefill_sequence": "prefill_sequences",
    "per_prefill_pair": "prefill_pairs",
    "per_prefill_context": "prefill_context",
    "per_decode_sequence": "decode_sequences",
    "per_context_token": "decode_context",
    "per_sampled_row": "sampled_rows",
    "wake": "after_idle",
    "per_copied_block": "copied_blocks",
    "per_swapped_block": "swapped_blocks",
}
"""Weights beside ``fixed``, and the part of the work that each belongs to."""


class LinearCost(CostModel):
    """``seconds = fixed + per_prefill_token * prefill_tokens + ...``, one weight for each part.

    With ``file``, weights are those that were measured; options that are set beside it win, and
    weights that neither gives are 0. The file also says how much the measured engine holds.

    Raises:
        SettingsError: the file cannot be read, or names other weights.
    """

    def __init__(self, options: LinearSettings, context: CostModelContext, /) -> None:
        self._file = WeightsFile(weights={})
        if options.file is not None:
            self._file = read_weights(options.file)
            options = _measured(options, self._file)
        self._fixed = options.fixed
        self._weights = tuple(getattr(options, name) for name in PARTS)
        self._context = attrgetter(*PARTS.values())

    def seconds(self, work: StepWork, /) -> float:
        return sum(map(mul, self._weights, self._context(work)), self._fixed)

    def num_blocks(self, block_size: int, /) -> int | None:
        num_tokens = self._file.num_tokens
        return None if num_tokens is None else max(1, num_tokens // block_size)

    @property
    def max_model_len(self) -> int | None:
        return self._file.max_model_len


def _measured(options: LinearSettings, file: WeightsFile) -> LinearSettings:
    """Return the weights of the file, under those that were set."""
    names = {"fixed", *PARTS}
    unknown = sorted(set(file.weights) - names)
    if unknown:
        raise SettingsError(
            f"cost_model.file: {options.file} has the weight {unknown[0]!r:.80}; those of `linear` "
            f"are {', '.join(sorted(names))}"
        )
    chosen = {name: getattr(options, name) for name in options.model_fields_set}
    try:
        return LinearSettings(**{**dict.fromkeys(PARTS, 0.0), **file.weights, **chosen})
    except ValidationError:  # the weight that may not be 0
        raise SettingsError(
            f"cost_model.file: {options.file} has fixed={file.weights['fixed']}; it must be above 0"
        ) from None
