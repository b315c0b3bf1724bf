"""Hook of mkdocs: a page that names the options of a component shows their table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paged_core.cli.output import show
from paged_core.cli.plugins import option_rows
from paged_core.plugins.registry import Registry

_NAMED = re.compile(
    r"^(?P<head>### `(?P<name>\w+)`\n(?:(?!^#{1,3} ).*\n)*?)"
    r"- \*\*Options:\*\* .*\n(?:  .*\n)*",
    re.MULTILINE,
)
_REGISTRY = Registry.discover()


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the list of options under each component of an interface by a table of them."""
    slot = Path(page.file.src_uri).stem

    def table(found: re.Match[str]) -> str:
        settings = _REGISTRY.get(slot, found["name"]).settings
        rows = [("option", "type", "default", ""), ("---",) * 4]
        for option, kind, default, text in option_rows(settings):
            default = "none" if default in ((), {}) else show(default)
            rows.append((f"`{option}`", kind, default, text))
        return found["head"] + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    return _NAMED.sub(table, markdown) if slot in _REGISTRY.slots else markdown
