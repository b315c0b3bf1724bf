"""State that all components of a class share, since its class, its module or a default keeps it."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from functools import _lru_cache_wrapper
from random import Random
from types import ModuleType
from typing import Any

from paged_testing.telling import content, functions, modules

_CONTAINERS = (dict, list, tuple, deque, set, frozenset)
_DEPTH, _MOST = 4, 1000
"""Containers in each other, and items of each, that are looked at."""


def shared_state(package: str | None, *, with_caches: bool = False) -> dict[str, Any]:
    """Return what modules of a package, their classes and defaults of arguments keep, by place.

    Args:
        with_caches: also how much ``functools.cache`` and ``lru_cache`` keep of calls.
    """
    found, names = dict[str, Any](), modules(package)

    def keep(place: str, values: Any, *, of_class: bool = False) -> None:
        for key, value in list(values.items()):
            is_code = callable(value) or hasattr(value, "__get__") or isinstance(value, ModuleType)
            if not is_code and not str(key).startswith("__"):
                found[f"{place}.{key}"] = _plain(value, package, _DEPTH)
            cached = getattr(value, "__func__", value)
            if (
                with_caches
                and isinstance(cached, _lru_cache_wrapper)
                and cached.__module__ in names
            ):
                told = cached.cache_info()  # of a method it has entries of each component
                is_own = of_class and cached is value
                found[f"the cache of {place}.{key}"] = told.misses if is_own else told.currsize

    for name in names:
        module = sys.modules[name]
        keep(name, vars(module))
        for made in vars(module).values():
            if isinstance(made, type) and made.__module__ == name:
                keep(f"{name}.{made.__qualname__}", vars(made), of_class=True)
        for function in functions(module, vars(module), set()):
            values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
            of = f"of {name}.{function.__qualname__}"
            keep(f"a default {of}", dict(enumerate(values)))
            keep(f"a variable {of}", dict(enumerate(map(content, function.__closure__ or ()))))
            keep(f"an attribute {of}", vars(function))
    return found


def check_shared(before: dict[str, Any], package: str | None, what: str) -> None:
    """Check that what is shared is as it was before.

    Raises:
        AssertionError: the message says ``what`` changes which.
    """
    after = shared_state(package, with_caches=True)
    changed = [place for place, value in before.items() if after.get(place) != value]
    assert not changed, (
        f"{what} {', '.join(changed)}, which all that are made share: keep what one knows in "
        "itself, not in its class, its module or a default argument"
    )


def check_process() -> None:
    """Check that torch has the default dtype with which it is imported.

    Raises:
        AssertionError: it has another.
    """
    if (torch := sys.modules.get("torch")) and (found := torch.get_default_dtype()):
        torch.set_default_dtype(torch.float32)  # for other tests
        assert found == torch.float32, (
            f"torch.get_default_dtype() is {found} now, for all that is in this process: name the "
            "dtype of each tensor, or set it back"
        )


def _plain(value: Any, package: str | None, depth: int) -> Any:
    """Return what a value holds, as far as it can be compared."""
    if isinstance(value, int | float | str | bytes | None):
        return repr(value)  # of which even nan is equal to itself
    if isinstance(value, itertools.count | bytearray):
        return repr(value)
    if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor) and value.numel():
        value = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    if hasattr(value, "tobytes"):  # of an array
        return value.tobytes()
    if isinstance(value, Random):
        return value.getstate()
    if depth and isinstance(value, _CONTAINERS):
        parts = itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value
        return len(value), [
            _plain(each, package, depth - 1) for each in itertools.islice(parts, _MOST)
        ]
    if depth and type(value).__module__.partition(".")[0] == package and hasattr(value, "__dict__"):
        return _plain(vars(value), package, depth - 1)
    return id(value)
