"""Settings as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def setting_text(value: Any) -> str:
    """Return the value of a setting: a name, a number, or a table ``{name: slru, share: 0.5}``."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {setting_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(setting_text, value)) + "]"
    return str(value)


def settings_text(changes: Mapping[str, Any]) -> str:
    """Return settings as ``key=value``, comma-separated."""
    return ", ".join(f"{key}={setting_text(value)}" for key, value in changes.items())
