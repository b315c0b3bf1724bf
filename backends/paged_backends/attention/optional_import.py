"""Packages that an attention component can do without: found, missing or broken."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any

from paged_core.errors import import_problem


class Unavailable(Exception):
    """A package is not installed, is too old, or cannot be imported; the message says which, and
    the command that helps."""


def function_of(
    modules: Sequence[str], name: str, *, install: str, arguments: Collection[str] = ()
) -> Callable[..., Any]:
    """Return the function or class ``name`` of the first of ``modules`` that is installed.

    Args:
        install: the command that installs the package.
        arguments: which it must have; older versions may lack them.

    Raises:
        Unavailable: there is no such function, or importing it fails.
    """
    for module in modules:
        try:
            found = getattr(import_module(module), name, None)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise Unavailable(_broken(module, error, install)) from error
            continue
        except Exception as error:
            # an extension built for another PyTorch may raise anything
            raise Unavailable(_broken(module, error, install)) from error
        if found is not None:
            return _checked(found, arguments, f"{module}.{name}", install)
        if getattr(sys.modules[module], "__file__", None) is not None:
            raise Unavailable(f"{module} has no {name}, it is too old ({install})")
    raise Unavailable(f"not installed ({install})")


def _checked(
    function: Callable[..., Any], arguments: Collection[str], name: str, install: str
) -> Callable[..., Any]:
    known = inspect.signature(function).parameters
    missing = [argument for argument in arguments if argument not in known]
    if missing:
        raise Unavailable(f"{name} has no {' and no '.join(missing)}, it is too old ({install})")
    return function


def _broken(module: str, error: Exception, install: str) -> str:
    problem = import_problem(error).partition("\n")[0]
    return (
        f"{module} is installed and cannot be imported, {problem:.200}: if it was built for "
        f"another PyTorch, install it again ({install})"
    )
