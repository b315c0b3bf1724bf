"""This engine again with other settings, beside itself: ``--variant NAME={KEY: VALUE}``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from paged_core.cli.options import SettingsArgs
from paged_core.errors import SettingsError
from paged_core.settings.documents import DocumentError, parse_yaml
from paged_core.settings.layers import Layer
from paged_core.settings.schema import Resolved

_EXAMPLE = "--variant 'torch={attention: torch}'"


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings that differ from those of the command, under a name."""

    name: str
    changes: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``NAME={KEY: VALUE, ...}``.

        Raises:
            SettingsError: the text is not written so.
        """
        name, equals, rest = text.partition("=")
        changes = parse_changes(rest, f"--variant {text:.80}")
        if not (name.strip() and equals and changes):
            raise SettingsError(
                f"--variant {text:.80}: write NAME={{KEY: VALUE}}, as in {_EXAMPLE}"
            )
        return cls(name.strip(), changes)

    def resolve(self, given: SettingsArgs, below: Layer = ()) -> Resolved:
        """Return the settings of the command with the changes on top, and ``below`` beneath them.

        Raises:
            SettingsError: a setting is wrong.
        """
        return given.resolve(below, **self.changes)


def parse_changes(text: str, what: str) -> dict[str, Any]:
    """Return settings written as ``{KEY: VALUE, ...}``; none, if the text is no such table.

    Args:
        what: the option and its value, for an error.

    Raises:
        SettingsError: the text is not YAML.
    """
    try:
        values, _ = parse_yaml(text)
    except DocumentError as error:
        raise SettingsError(f"{what}: {error}") from error
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def parse_variants(texts: Sequence[str], taken: Collection[str]) -> list[Variant]:
    """Return the variants of a command line.

    Args:
        taken: names that tables have for something else.

    Raises:
        SettingsError: a text is not written so, or its name is taken.
    """
    found: dict[str, Variant] = {}
    for text in texts:
        variant = Variant.parse(text)
        if variant.name in found or variant.name in taken:
            raise SettingsError(
                f"--variant {text:.80}: {variant.name!r} is another engine's name; choose one that "
                "is not in the table yet"
            )
        found[variant.name] = variant
    return list(found.values())
