"""The scripts of other engines, imported as modules."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

FOLDER = str(Path(__file__).parents[2] / "tools" / "peers")


def script(name: str) -> ModuleType:
    """Import a script; it finds those beside it, as when it is run."""
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)
    return import_module(name)


Item, measure = script("peer").Item, script("peer").measure
