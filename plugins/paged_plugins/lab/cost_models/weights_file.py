"""The file that ``paged-core calibrate`` writes and the cost model ``linear`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, ValidationError

from paged_core.config.documents import parse_yaml, read_text
from paged_core.errors import SettingsError
from paged_plugins.files import write_text

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
        found, _ = parse_yaml(read_text(path.expanduser()))
        return WeightsFile.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        reason = f"{where}: {first['msg']}"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
    raise SettingsError(
        f"cost_model.file: cannot read weights from {path}: {reason:.200}; write the file with "
        "`paged-core calibrate`"
    )


def write_weights(path: Path, content: WeightsFile) -> None:
    """Write the file.

    Raises:
        SettingsError: it cannot be written.
    """
    text = _HEADER + yaml.safe_dump(content.model_dump(mode="json"), sort_keys=False)
    write_text(path, text)
