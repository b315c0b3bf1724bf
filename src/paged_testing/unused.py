"""Options that a component never looks at, found in the text of its package."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from paged_core.plugins.component import ComponentSettings


def unused_options(kind: type[ComponentSettings], factory: Any) -> list[str]:
    """Return the options of a settings class that no code reads.

    An option is read where an attribute or a text has its name, outside the settings class. One
    that is only assigned to a private attribute is read where that is. Where all options are taken
    at once, such as by ``model_dump``, all are read; and those that a class inherits. Bases of a
    factory that is a class count, but for its interface.
    """
    annotated = vars(kind).get("__annotations__", {})
    own = [name for name in kind.model_fields if name in annotated and name != "name"]
    read, stored = set[str](), dict[str, set[str]]()
    bases = [base.__module__ for base in getattr(factory, "__mro__", ())]
    names = [name for name in bases if not name.startswith("paged_core.interfaces.")]
    for tree in _trees([factory.__module__, kind.__module__, *names]) if own else ():
        nodes = list(_outside(tree, kind.__name__))
        stores = [store for node in nodes for store in _private_stores(node)]
        for target, value in stores:
            stored.setdefault(value.attr, set()).add(target)
        read.update(*(_names(node) for node in nodes if node not in {value for _, value in stores}))
    if read & _ALL_AT_ONCE or not read:
        return []
    return [name for name in own if not read & {name, *stored.get(name, ())}]


_ALL_AT_ONCE = {"model_dump", "model_dump_json", "model_copy", "model_fields", "__dict__"}


def _names(node: ast.AST) -> Iterator[str]:
    """Yield what a node may read."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()) | ast.Constant(value=str(name)):
            yield name
        case ast.Call(func=ast.Name("vars")) | ast.Call(ast.Name("dict"), [ast.Name("options")]):
            yield "__dict__"
        case ast.Call(ast.Name("getattr"), [_, name, *_]) if not isinstance(name, ast.Constant):
            yield "__dict__"


def _outside(tree: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield all nodes but those of a class of this name."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.ClassDef) and child.name == name):
            yield from _outside(child, name)


def _private_stores(node: ast.AST) -> Iterator[tuple[str, ast.Attribute]]:
    """Yield the private attributes to which a statement assigns other attributes, and these."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        both = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            both = list(zip(target.elts, node.value.elts, strict=False))
        for to, value in both:
            match to, value:
                case ast.Attribute(attr=name), ast.Attribute() if name.startswith("_"):
                    yield name, value


def _trees(names: Iterable[str]) -> Iterator[ast.AST]:
    """Yield modules, and those of their packages that they import."""
    found, wanted = set[str](), [*names]
    while wanted:
        name = wanted.pop()
        if name in found or (parsed := _parsed(name)) is None:
            continue
        found.add(name)
        tree, package = parsed
        yield tree
        for node in ast.walk(tree):
            imported = list[str]()
            if isinstance(node, ast.Import):
                imported = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                base = resolve_name(base, package) if node.level else base
                imported = [base, *(f"{base}.{each.name}" for each in node.names)]
            top = name.partition(".")[0]
            wanted += [each for each in imported if each.partition(".")[0] == top]


@cache
def _parsed(name: str) -> tuple[ast.AST, str] | None:
    """Return a module of Python, and the package to which its relative imports refer."""
    with suppress(ImportError, OSError, ValueError, SyntaxError):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            return ast.parse(Path(spec.origin).read_text("utf-8")), spec.parent or ""
    return None
