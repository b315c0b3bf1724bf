"""Files in YAML that describe a study, with errors of one line that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from paged_core.config.documents import DocumentError, parse_yaml
from paged_core.errors import SettingsError
from paged_plugins.files import mistakes


class Strict(BaseModel):
    """A part of such a file: nothing but what it declares, and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def parse(text: str, made: type[Model], path: Path) -> Model:
    """Return what the text of a file describes.

    Raises:
        SettingsError: it does not; the message names file, key and cause.
    """
    try:
        content, _ = parse_yaml(text)
    except DocumentError as error:
        where = f", line {error.line}" if error.line else ""
        raise SettingsError(f"{path}{where}: {error}") from None
    if not isinstance(content, dict):
        keys = ", ".join(made.model_fields)
        raise SettingsError(f"{path} must be a mapping with the keys {keys}")
    try:
        return made.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{path}: {mistakes(error, made)}") from None
