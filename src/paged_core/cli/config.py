"""``paged-core config``: the resolved settings, and where each came from."""

from __future__ import annotations

from typing import Any

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import print_json, print_table


def command(
    given: SettingsArgs,
    as_json: AsJson = False,
) -> None:
    """Show the settings that the other commands would use here, and where each comes from."""
    resolved = given.resolve()
    settings = resolved.settings.model_dump(mode="json")
    if as_json:
        sources = {
            key: {"layer": origin.layer, "from": origin.where}
            for key, origin in resolved.origins.items()
        }
        print_json({"settings": settings, "sources": sources})
        return
    rows = []
    for key, origin in resolved.origins.items():
        slot, _, option = key.partition(".")
        value = settings[slot][option] if option else settings[slot]
        rows.append(
            (
                key,
                names_of(value, in_short=origin.layer == "default") or value,
                origin.layer,
                "" if origin.layer == "default" else str(origin),
            )
        )
    print_table("Settings", ("setting", "value", "layer", "from"), rows)


def names_of(value: Any, *, in_short: bool = False) -> str:
    """Return a list of components by their names, if none has options or ``in_short``; else ""."""
    if isinstance(value, list) and all(
        isinstance(one, dict) and "name" in one and (in_short or len(one) == 1) for one in value
    ):
        return ", ".join(one["name"] for one in value)
    return ""
