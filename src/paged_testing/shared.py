"""State that all components of a class share, since its class, its module or a default keeps it."""

from __future__ import annotations

import sys
from collections import deque
from itertools import chain, islice
from types import ModuleType
from typing import Any

from paged_testing.telling import functions, modules

_CONTAINERS = (dict, list, tuple, deque, set, frozenset)
_DEPTH, _MOST = 4, 1000
"""Containers in each other, and items of each, that are looked at."""


def shared_state(package: str | None) -> dict[str, Any]:
    """Return what modules of a package, their classes and defaults of arguments keep, by place."""
    found: dict[str, Any] = {}

    def keep(place: str, values: Any) -> None:
        for key, value in list(values.items()):
            is_code = callable(value) or hasattr(value, "__get__") or isinstance(value, ModuleType)
            if not is_code and not str(key).startswith("__"):
                found[f"{place}.{key}"] = _plain(value, package, _DEPTH)

    for name in modules(package):
        module = sys.modules[name]
        keep(name, vars(module))
        for made in vars(module).values():
            if isinstance(made, type) and made.__module__ == name:
                keep(f"{name}.{made.__qualname__}", vars(made))
        for function in functions(module, vars(module), set()):
            values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
            keep(f"a default of {name}.{function.__qualname__}", dict(enumerate(values)))
    return found


def _plain(value: Any, package: str | None, depth: int) -> Any:
    """Return what a value holds, as far as it can be compared."""
    if isinstance(value, int | float | str | bytes | None):
        return repr(value)  # of which even nan is equal to itself
    if depth and isinstance(value, _CONTAINERS):
        parts = chain.from_iterable(value.items()) if isinstance(value, dict) else value
        return len(value), [_plain(each, package, depth - 1) for each in islice(parts, _MOST)]
    if depth and type(value).__module__.partition(".")[0] == package and hasattr(value, "__dict__"):
        return _plain(vars(value), package, depth - 1)
    return id(value)
