"""Files that ``paged-core calibrate`` writes, from which cost models take their weights."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, ValidationError

from paged_core.errors import SettingsError
from paged_core.interfaces.step_work import StepWork
from paged_core.settings.documents import read_text
from paged_plugins.files import Document, mistakes
from paged_plugins.lab.settings import LinearSettings, MeasuredSettings, RooflineSettings
from paged_plugins.written_files import write_text

_HEADER = "# Written by `paged-core calibrate`: weights of a cost model, in seconds, and shares.\n"
_MOST_SECONDS = 1e6


class WeightsFile(BaseModel):
    """Weights by the names of a cost model's options, and what they were measured on."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    cost_model: str = "linear"
    options: Mapping[str, Any] = {}
    """Other options of the cost model: device, model."""
    weights: Mapping[str, Annotated[NonNegativeFloat, Field(le=_MOST_SECONDS)]]
    max_model_len: PositiveInt | None = None
    """The longest sequence that the model serves, in tokens."""
    num_tokens: PositiveInt | None = None
    """Slots of the cache."""
    largest: Mapping[str, NonNegativeFloat] = {}
    """The most of each part of the work that a measured step had; larger ones are extrapolated."""
    measured: Mapping[str, Any] = {}
    """Model, machine, number of steps."""
    unmeasured: Mapping[str, str] = {}
    """Why there is no weight of this name: work of this kind takes no time in a simulation."""
    errors: Mapping[str, Any] = {}
    """Relative errors on steps that the weights were not fitted to, by kind of step; of a server's
    loads, by kind of time."""

    def num_blocks(self, block_size: int) -> int | None:
        """Return the blocks of the measured cache; ``None``: it is not known."""
        return self.num_tokens and max(1, self.num_tokens // block_size)

    def is_beyond(self, work: StepWork) -> bool:
        """Return whether a step has more of something than any that was measured, or a sequence
        that the measured engine could not have served.
        """
        longest, chunks = self.max_model_len or inf, work.prefill_sequences or 1
        return (
            any(getattr(work, part) > most for part, most in self.largest.items())
            or 2 * work.prefill_pairs > chunks * longest * (longest + 1)
            or work.decode_context > work.decode_sequences * longest
        )


def read_weights(path: Path) -> WeightsFile:
    """Return what the file says.

    Raises:
        SettingsError: it cannot be read, or is no such file.
    """
    try:
        document = Document(read_text(path.expanduser()))
        return WeightsFile.model_validate(document.content)
    except ValidationError as error:
        reason = mistakes(error, WeightsFile, document.content, document)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
    raise SettingsError(
        f"cost_model.file: cannot read weights from {path}: {reason:.1000}; write the file with "
        "`paged-core calibrate`"
    )


def write_weights(path: Path, content: WeightsFile) -> None:
    """Write the file; WriteFailed if that fails."""
    text = _HEADER + yaml.safe_dump(content.model_dump(mode="json"), sort_keys=False)
    write_text(path, text)


Options = TypeVar("Options", bound=LinearSettings | RooflineSettings | MeasuredSettings)


def with_file(options: Options, *needed: str) -> tuple[Options, WeightsFile]:
    """Return the options of a cost model with those of its file under those that were set.

    Args:
        needed: weights that are 0 where a file does not give them.

    Raises:
        SettingsError: the file cannot be read, is of another cost model, or has other weights.
    """
    if options.file is None:
        return options, WeightsFile(weights={})
    file, kind = read_weights(options.file), type(options)
    if file.cost_model != options.name:
        raise SettingsError(
            f"cost_model.file: {options.file} is of the cost model {file.cost_model!r:.40}, not of "
            f"{options.name!r}; name that one"
        )
    names = {*kind.model_fields} - {"name", "file"}
    unknown = sorted({*file.weights, *file.options} - names)
    if unknown:
        raise SettingsError(
            f"cost_model.file: {options.file} has the weight {unknown[0]!r:.80}; those of "
            f"`{options.name}` are {', '.join(sorted(names))}"
        )
    none = dict.fromkeys(needed, 0.0)
    chosen = {name: getattr(options, name) for name in options.model_fields_set}
    try:
        return kind(**{**none, **file.options, **file.weights, **chosen}), file
    except ValidationError as error:
        reason = "; ".join(f"{e['loc'][0]}={e['input']!r:.40}: {e['msg']}" for e in error.errors())
        raise SettingsError(f"cost_model.file: {options.file} has {reason}") from None
