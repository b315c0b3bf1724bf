"""The scripts of ``tools``, imported as modules; first of all those of other engines."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).parents[2] / "tools"


def script(name: str, folder: Path = TOOLS / "peers") -> ModuleType:
    """Import a script; it finds those beside it, as when it is run."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return import_module(name)


Item, measure = script("peer").Item, script("peer").measure
