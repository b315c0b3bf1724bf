"""Names that the lab's modules of routers had: importing one works, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module


def found_in(former: str, *modules: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module whose content is in others of this package now."""

    def find(name: str) -> object:
        for module in modules:
            home = import_module(f"{__package__}.{module}")
            if hasattr(home, name) and not name.startswith("__"):
                message = f"{former}.{name} is now in {home.__name__}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                return getattr(home, name)
        raise AttributeError(f"module {former!r} has no attribute {name!r}")

    return find
