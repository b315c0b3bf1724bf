"""``paged-core config``: the resolved settings, and where each came from."""

from __future__ import annotations

from typing import Annotated

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json, print_table


def command(
    given: Given,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the settings that the other commands would use here, and where each comes from."""
    resolved = given.resolve()
    settings = resolved.settings.model_dump(mode="json")
    if as_json:
        sources = {
            key: {"layer": source.layer, "from": source.origin}
            for key, source in resolved.sources.items()
        }
        print_json({"settings": settings, "sources": sources})
        return
    rows = []
    for key, source in resolved.sources.items():
        slot, _, option = key.partition(".")
        value = settings[slot][option] if option else settings[slot]
        rows.append((key, value, source.layer, "" if source.layer == "default" else str(source)))
    print_table("Settings", ("setting", "value", "layer", "from"), rows)
