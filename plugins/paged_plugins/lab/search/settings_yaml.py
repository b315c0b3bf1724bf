"""The settings of an arm as a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def settings_yaml(base: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Return settings in YAML: those of a base, and what an arm changes; keys may be dotted."""
    made: dict[str, Any] = {}
    for key, value in [*base.items(), *changes.items()]:
        _put(made, key, value)
    return yaml.safe_dump(made, sort_keys=False)


def _put(made: dict[str, Any], key: str, value: Any) -> None:
    """Set a setting, as a layer does above others: another component drops the options."""
    name, _, option = key.partition(".")
    before = made.get(name, {})
    table = dict(before) if isinstance(before, Mapping) else {"name": before}
    if option:
        made[name] = table | {option: value}
    elif isinstance(value, Mapping):
        is_same = value.get("name", table.get("name")) == table.get("name")
        made[name] = (table if is_same else {}) | dict(value)
    elif value != table.get("name") or not table:
        made[name] = value
