"""Which branches of a component its cases reach: marks are compiled into the code of its module."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from paged_core.plugins.component import ComponentSettings

_NAME = "__reached__"
"""The global name of a marked module by which its marks are set."""
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class UnreachedBranch(UserWarning):
    """No case of a conformance class reached a branch of the component."""


@dataclass(frozen=True)
class _Branch:
    """A block of statements that may be left out."""

    line: int
    outer: int | None
    """The branch that it is in; ``None``: it is the body of a function."""
    function: str
    """Of which it is the body, or in which it is."""


class Branches:
    """Marks the branches in the module of a component; where there is no source, it has none.

    A mark costs an instruction or two, and no call. So a whole conformance class can be run with
    them, on every Python.
    """

    def __init__(self, made: Any) -> None:
        self._found: list[_Branch] = []
        self._reached = bytearray()
        self._code: dict[FunctionType, CodeType] = {}
        """What was there before."""
        self._own: set[str] = set()
        """Names of the methods of the component."""
        module = sys.modules.get(getattr(made, "__module__", ""))
        if module is None or not isinstance(made, type | FunctionType):
            return
        try:
            self.path = inspect.getfile(module)
            tree = ast.parse("".join(linecache.getlines(self.path)))
        except (TypeError, SyntaxError):  # it has no file, or the file holds something else
            return
        marker = _Marker()
        compiled = dict(_code_of(compile(marker.visit(tree), self.path, "exec", dont_inherit=True)))
        self._found, self._reached = marker.found, bytearray(len(marker.found))
        members = [inspect.getattr_static(made, name) for name in dir(made)]
        self._own = {each.__qualname__ for each in _functions(members, module.__name__)}
        for function in _functions(vars(module).values(), module.__name__):
            old = function.__code__
            new = compiled.get((old.co_qualname, old.co_firstlineno))
            if new is not None and new.co_freevars == old.co_freevars:
                self._code[function], function.__code__ = old, new
        vars(module)[_NAME] = self._reached

    def close(self) -> None:
        """Put the code back that was there before."""
        for function, code in self._code.items():
            function.__code__ = code
        self._code.clear()

    def unreached(self) -> Iterator[tuple[int, str]]:
        """The outermost branches that nothing has reached: their lines, and what nothing does.

        Functions that were never called count if they are methods of the component.
        """
        for number, branch in enumerate(self._found):
            if self._reached[number]:
                continue
            if branch.outer is None:
                if branch.function in self._own:
                    yield branch.line, f"calls {branch.function}()"
            elif self._reached[branch.outer]:
                text = linecache.getline(self.path, branch.line).strip()
                yield branch.line, f"reaches {text!r} in {branch.function}()"


class _Marker(ast.NodeTransformer):
    """Puts a statement that sets a mark at the beginning of every branch."""

    def __init__(self) -> None:
        self.found: list[_Branch] = []
        self._outer: int | None = None
        self._names: list[str] = []

    def _marked(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a branch, with marks."""
        if not body:
            return body
        around, self._outer = self._outer, len(self.found)
        marked = [self._mark(body[_is_text(body[0]) and len(body) > 1], around)]
        for place, statement in enumerate(body):
            marked.append(self.visit(statement))
            rest = body[place + 1 :]
            if rest and _may_exit(statement):  # the rest is a branch, too
                marked.append(self._mark(rest[0], self._outer))
                self._outer = len(self.found) - 1
        self._outer = around
        return marked

    def _mark(self, first: ast.stmt, outer: int | None) -> ast.stmt:
        name = ".".join(self._names)
        self.found.append(_Branch(first.lineno, outer, name))
        (mark,) = ast.parse(f"{_NAME}[{len(self.found) - 1}] = 1").body
        for node in ast.walk(mark):
            ast.copy_location(node, first)
        return mark

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._names.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self._names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._names.append(node.name)
        node.body = self._marked(node.body)
        self._names.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_If(self, node: ast.If) -> ast.AST:
        node.body = self._marked(node.body)
        is_elif = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        node.orelse = [self.visit(node.orelse[0])] if is_elif else self._marked(node.orelse)
        return node

    def _visit_loop(self, node: Any) -> ast.AST:
        node.body, node.orelse = self._marked(node.body), self._marked(node.orelse)
        return node  # type: ignore[no-any-return]

    visit_For = visit_While = _visit_loop  # noqa: N815

    def visit_Try(self, node: ast.Try) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        node.handlers = [self.visit(handler) for handler in node.handlers]
        node.orelse = self._marked(node.orelse)
        node.finalbody = [self.visit(statement) for statement in node.finalbody]
        return node

    visit_TryStar = visit_Try  # type: ignore[assignment]  # noqa: N815

    def _visit_case(self, node: Any) -> ast.AST:
        node.body = self._marked(node.body)
        return node  # type: ignore[no-any-return]

    visit_ExceptHandler = visit_match_case = _visit_case  # noqa: N815


def _may_exit(statement: ast.stmt) -> bool:
    """Whether it leaves the block on a condition."""
    is_if = isinstance(statement, ast.If) and not statement.orelse
    return is_if and isinstance(statement.body[-1], _EXITS)  # type: ignore[attr-defined]


def _is_text(statement: ast.stmt) -> bool:
    """Whether it is a text that stands alone, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _code_of(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The code of all functions, by their qualified name and first line."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield (const.co_qualname, const.co_firstlineno), const
            yield from _code_of(const)


def _functions(values: Any, module: str) -> Iterator[FunctionType]:
    """The functions and methods that a module defines, but for checks of options."""
    for value in values:
        is_kind = isinstance(value, type) and not issubclass(value, ComponentSettings)
        if is_kind and value.__module__ == module:
            yield from _functions(tuple(vars(value).values()), module)
        parts = [getattr(value, name, None) for name in ("__func__", "fget", "fset", "func")]
        for function in (value, *parts):
            if isinstance(function, FunctionType) and function.__module__ == module:
                yield function
