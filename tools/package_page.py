"""The README as the page of the package: links to files of the repository lead nowhere there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def page(readme: str) -> str:
    """Return a page without pictures, and with the text alone of links, that lead nowhere."""
    return _LINK.sub(r"\1", _IMAGE.sub("", readme))


class PackagePage(MetadataHookInterface):
    """Gives the page to what is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = page((Path(self.root) / "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
