"""A setting as it is written somewhere, before it is checked, and where that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paged_core.config.documents import parse_json
from paged_core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value is written."""

    layer: Literal["cli", "env", "yaml", "profile", "default", "python"]
    where: str
    """The option, the variable, the file, the profile, or whose default it is."""
    line: int | None = None

    def __str__(self) -> str:
        where = f"profile {self.where!r}" if self.layer == "profile" else self.where
        return where if self.line is None else f"{where}, line {self.line}"

    @property
    def suffix(self) -> str:
        """What a message about the value ends with; nothing for a keyword in Python."""
        return f" ({self})" if self.where else ""


class Text(str):
    """What a variable or the command line says: it is read by the type of the setting."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of a setting, ``("num_blocks",)``, or of an option, ``("scheduler", "name")``."""

    path: tuple[str, ...]
    value: Any
    origin: Origin

    @property
    def key(self) -> str:
        """The path as people write it."""
        return ".".join(self.path)

    @property
    def is_null(self) -> bool:
        """Whether the value is text for ``None``, where a setting allows that."""
        return isinstance(self.value, Text) and self.value.lower() in {"null", "none"}

    def decoded(self) -> Any:
        """Return the list or table that the value is as JSON; SettingsError if it is not JSON."""
        try:
            return parse_json(self.value)
        except ValueError as error:
            message = f"{self.key}: not valid JSON: {error}, in '{self.value:.80}'"
            raise SettingsError(message + self.origin.suffix) from None


Layer = Sequence[Entry]
"""What one place says: the environment, a file, a profile."""
