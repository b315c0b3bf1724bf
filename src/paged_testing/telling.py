"""Code of a component's package, rewritten so that it tells of the work that code of C does.

While work is counted, functions of the package have the code of a copy of their source in which
calls, operators, slices and the like go through :class:`paged_testing.work.Work`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from paged_testing.work import COPIES, Work

_TOLD = "_paged_testing_work"
setattr(builtins, _TOLD, Work)  # where code of any module finds it
_OF_THE_FRAME = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
"""Functions that look at the frame in which they are called."""


class _Telling(ast.NodeTransformer):
    """Rewrites code so that it tells of its work."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _OF_THE_FRAME:
            return node
        return _told("call", node, node.func, *node.args, keywords=node.keywords)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr in COPIES and isinstance(node.ctx, ast.Load):
            return _told("read", node, node.value, ast.Constant(node.attr))
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        op, parts = node.ops[0], (node.left, *node.comparators)
        is_brief = any(isinstance(each, ast.Constant) for each in parts)
        if len(parts) > 2 or isinstance(op, ast.Is | ast.IsNot):
            return node
        if is_brief and not isinstance(op, ast.In | ast.NotIn):
            return node
        return _operation(node, op, *parts)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        numbers = (isinstance(getattr(e, "value", ""), int) for e in (node.left, node.right))
        if any(numbers) and not isinstance(node.op, ast.Mult):
            return node
        return _operation(node, node.op, node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        before: Any = ast.Constant(None)
        target = node.target
        is_local = isinstance(target, ast.Name)
        if is_local or (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            before = copy.copy(target)
            before.ctx = ast.Load()
        name = ast.Constant(type(node.op).__name__)
        more = (name, before, node.value, ast.Constant(is_local))
        node.value = _told("augmented", node.value, *more)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Subscript):
            if isinstance(target.slice, ast.Slice):
                put = _told("put", target, target.value, _slice(target.slice), node.value)
                return ast.copy_location(ast.Expr(put), node)
        elif any(isinstance(each, ast.Starred) for each in ast.walk(target)):
            node.value = _told("spread", node.value, node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Slice):
            return _told("sized", node, node) if isinstance(node.ctx, ast.Load) else node
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if all(isinstance(each, ast.Name | ast.Attribute | ast.Call) for each in parts):
            node.slice = _told("keyed", node.slice, node.slice)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                each.value = self.visit(each.value)
        return _told("sized", node, node)

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        self.generic_visit(node)
        return [_deleted(each) for each in node.targets]

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _told("spread", node.value, node.value)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        node.values = [
            value if key else _told("spread", value, value)
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return node


def _operation(node: ast.expr, op: ast.AST, one: ast.expr, other: ast.expr) -> ast.expr:
    return _told("operated", node, ast.Constant(type(op).__name__), one, other)


def _slice(index: ast.Slice) -> ast.expr:
    ends = [each or ast.Constant(None) for each in (index.lower, index.upper, index.step)]
    return ast.copy_location(ast.Call(ast.Name("slice", ast.Load()), ends, []), index)


def _deleted(node: ast.expr) -> ast.stmt:
    if not isinstance(node, ast.Subscript):
        return ast.copy_location(ast.Delete([node]), node)
    index = _slice(node.slice) if isinstance(node.slice, ast.Slice) else node.slice
    return ast.copy_location(ast.Expr(_told("cut", node, node.value, index)), node)


def _told(method: str, node: ast.expr, *args: ast.expr, keywords: Any = ()) -> ast.expr:
    told = ast.Attribute(ast.Name(_TOLD, ast.Load()), method, ast.Load())
    made = ast.copy_location(ast.Call(told, list(args), list(keywords)), node)
    return ast.fix_missing_locations(made)


_CODES: dict[str, list[tuple[FunctionType, CodeType]]] = {}
"""By module: its functions, and the code of each that tells of its work."""
_TELLING: list[str | None] = []
"""Packages of which functions tell of their work now."""


@contextmanager
def told(package: str | None) -> Iterator[None]:
    """Let functions of a package's modules tell of their work."""
    names = [name for name in modules(package) if ".testing" not in name]  # of no component
    if package in _TELLING:
        names = []
    for name in names:
        if name not in _CODES:
            _CODES[name] = list(_telling(sys.modules[name]))
    changed = [(made, made.__code__, code) for name in names for made, code in _CODES[name]]
    _TELLING.append(package)
    try:
        for function, _, code in changed:
            function.__code__ = code
        yield
    finally:
        _TELLING.pop()
        for function, code, _ in changed:
            function.__code__ = code


def _telling(module: ModuleType) -> Iterator[tuple[FunctionType, CodeType]]:
    """Yield the functions of a module whose source is there, with their code that tells."""
    found: dict[tuple[Any, ...], list[CodeType]] = {}
    with suppress(OSError, SyntaxError, TypeError, ValueError):
        file = str(module.__file__)
        tree = _Telling().visit(ast.parse(Path(file).read_bytes()))
        for code in _nested(compile(tree, file, "exec", dont_inherit=True)):
            found.setdefault(_place(code), []).append(code)
    for function in {id(each): each for each in functions(module, vars(module), set())}.values():
        codes = found.get(_place(function.__code__), ())
        if len(codes) == 1 and codes[0].co_freevars == function.__code__.co_freevars:
            yield function, codes[0]


def modules(package: str | None) -> list[str]:
    """Return the names of the modules of a package."""
    return [name for name in sys.modules if name.partition(".")[0] == package]


def _place(code: CodeType) -> tuple[Any, ...]:
    return code.co_qualname, code.co_firstlineno, code.co_varnames[: code.co_argcount]


def _nested(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _nested(each)


def functions(module: ModuleType, names: Any, seen: set[int]) -> Iterator[FunctionType]:
    """Yield functions of a module that its names, classes and closures hold."""
    for value in list(names.values()):
        for each in _unwrapped(value):
            if id(each) in seen or getattr(each, "__module__", None) != module.__name__:
                continue
            seen.add(id(each))
            if isinstance(each, FunctionType):
                yield each
                cells = dict(enumerate(map(content, each.__closure__ or ())))
                yield from functions(module, cells, seen)
            elif isinstance(each, type):
                yield from functions(module, vars(each), seen)


def content(cell: Any) -> object:
    """Return what a cell of a closure holds; ``None``: nothing yet."""
    with suppress(ValueError):
        return cell.cell_contents
    return None


def _unwrapped(value: Any) -> Iterator[Any]:
    """Yield what a descriptor or a decorator holds, or the value itself."""
    if isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, cached_property | partial):
        yield value.func
    else:
        yield value
        yield getattr(value, "__wrapped__", None)
