"""Work that built-ins do for a component, in items that they go through: they execute no bytecode.

While it is counted, functions of the component's package have the code of a copy of their source
in which calls, ``in``, slices, sums of containers and ``*`` tell of the sizes of their operands.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import copy
import heapq
import itertools
import operator
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from operator import length_hint
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

WORK_FILE = __file__

_HASHED: tuple[type, ...] = (dict, set, frozenset, type({}.keys()), type({}.items()))
_CONTAINERS: tuple[type, ...] = (
    list,
    tuple,
    deque,
    str,
    bytes,
    bytearray,
    range,
    type({}.values()),
    *_HASHED,
)
_LINEAR = {
    *(list, tuple, set, frozenset, dict, bytes, bytearray),
    *(Counter, OrderedDict, defaultdict, deque),
    *(heapq.nsmallest, heapq.nlargest, copy.copy, copy.deepcopy),
}
"""Types and functions in Python that go through their arguments, as functions of C do."""
_BRIEF = {
    *(len, id, iter, next, callable, isinstance, issubclass, hasattr, getattr, setattr, delattr),
    *(heapq.heappush, heapq.heappop, heapq.heappushpop, heapq.heapreplace),
    *(bisect.bisect, bisect.bisect_left, bisect.bisect_right),
    *(operator.getitem, operator.setitem, operator.length_hint, operator.is_, operator.is_not),
}
"""Functions of C that look at few items of their arguments."""
_LAZY = {map, filter, zip, enumerate, reversed, heapq.merge} | {
    each
    for each in vars(itertools).values()
    if isinstance(each, type) and each not in (itertools.count, itertools.repeat)
}
"""Types and functions that go through their arguments when they are asked for more."""
_METHODS: dict[type, set[str]] = {
    list: {"index", "remove", "count", "insert", "copy", "sort", "reverse"},
    deque: {"index", "remove", "count", "insert", "copy", "reverse"},
    tuple: {"index", "count"},
    dict: {"copy"},
    OrderedDict: {"copy"},
    defaultdict: {"copy"},
    Counter: {"copy", "most_common", "total"},
    set: {"copy", "union", "difference", "symmetric_difference", "issubset"},
    frozenset: {"union", "difference", "symmetric_difference", "issubset"},
}
"""Methods that go through their owner."""
_TAKING = {
    *("extend", "extendleft", "update", "difference_update", "subtract", "join", "fromkeys"),
    *("union", "issuperset", "intersection", "isdisjoint"),
}
"""Methods of containers that go through their arguments."""
_OF_THE_FRAME = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
"""Functions that look at the frame in which they are called."""


class Work:
    """Counts what rewritten code tells."""

    items = 0
    """Items that built-ins have gone through so far."""

    @classmethod
    def call(cls, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function in the place of a component."""
        kind = type(function)
        owner = getattr(function, "__self__", None)
        if _among(function, _LAZY) or _among(owner, _LAZY):  # as of chain.from_iterable
            return cls._lazily(function(*args, **kwargs))
        if _among(function, _LINEAR):
            cls.items += sum(map(_size, args))
        elif kind is BuiltinFunctionType or (kind is MethodType and type(owner) in _METHODS):
            cls.items += _taken(owner, function, args)
        elif kind is MethodDescriptorType and args:
            cls.items += _taken(args[0], function, args[1:])
        return function(*args, **kwargs)

    @classmethod
    def sized(cls, value: Any) -> Any:
        """Return a value that is copied, if it is a container, or the copy."""
        if isinstance(value, _CONTAINERS):
            cls.items += length_hint(value, 0)
        return value

    @classmethod
    def searched(cls, value: Any) -> Any:
        """Return a value in which something is looked for."""
        return value if isinstance(value, _HASHED) else cls.sized(value)

    @classmethod
    def cut(cls, value: Any, index: Any) -> None:
        """Delete an item or a slice, after which the items behind it move up."""
        if type(value) in (list, deque, bytearray):
            every = range(len(value))
            first = every[index] if isinstance(index, int) else index.indices(len(value))[0]
            cls.items += len(value) - first - 1
        del value[index]

    @classmethod
    def spread(cls, value: Any) -> Any:
        """Return a value after ``*`` or ``**``."""
        cls.items += _size(value)
        return value

    @classmethod
    def _lazily(cls, values: Iterable[Any]) -> Iterator[Any]:
        for each in values:
            cls.items += 1
            yield each


_TOLD = "_paged_testing_work"
setattr(builtins, _TOLD, Work)  # where code of any module finds it


def _among(function: Any, those: set[Any]) -> bool:
    return type(function) in (type, FunctionType, BuiltinFunctionType) and function in those


def _taken(owner: Any, function: Any, args: Sequence[Any]) -> int:
    """Return how many items a function of C goes through, or a method of its owner."""
    if owner is None or isinstance(owner, ModuleType):
        return 0 if function in _BRIEF else sum(map(_size, args))
    name, kind = function.__name__, type(owner)
    if kind is deque and name == "rotate":
        return min(abs(int(*args or (1,))), len(owner))
    goes = name in _METHODS.get(kind, ()) or (
        kind is list and name == "pop" and args not in ((), (-1,))
    )
    return (length_hint(owner, 0) if goes else 0) + (
        sum(map(_size, args)) if name in _TAKING else 0
    )


def _size(value: Any) -> int:
    is_plain = isinstance(value, _CONTAINERS) or type(value).__module__ == "builtins"
    return length_hint(value, 0) if is_plain else 0


class _Telling(ast.NodeTransformer):
    """Rewrites code so that it tells of its work."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _OF_THE_FRAME:
            return node
        return _told("call", node, node.func, *node.args, keywords=node.keywords)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        node.comparators = [
            _told("searched", each, each) if isinstance(op, ast.In | ast.NotIn) else each
            for op, each in zip(node.ops, node.comparators, strict=True)
        ]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add | ast.BitOr | ast.Sub):
            node.left, node.right = _sized(node.left), _sized(node.right)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        node.value = _sized(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        is_copy = isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load)
        return _sized(node) if is_copy else node

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


def _sized(node: ast.expr) -> ast.expr:
    return node if isinstance(node, ast.Constant) else _told("sized", node, node)


def _deleted(node: ast.expr) -> ast.stmt:
    if not isinstance(node, ast.Subscript):
        return ast.copy_location(ast.Delete([node]), node)
    index, none = node.slice, ast.Constant(None)
    if isinstance(index, ast.Slice):
        ends = [index.lower or none, index.upper or none, index.step or none]
        index = ast.copy_location(ast.Call(ast.Name("slice", ast.Load()), ends, []), node)
    return ast.copy_location(ast.Expr(_told("cut", node, node.value, index)), node)


def _told(method: str, node: ast.expr, *args: ast.expr, keywords: Any = ()) -> ast.expr:
    told = ast.Attribute(ast.Name(_TOLD, ast.Load()), method, ast.Load())
    made = ast.copy_location(ast.Call(told, list(args), list(keywords)), node)
    return ast.fix_missing_locations(made)


_CODES: dict[str, list[tuple[FunctionType, CodeType]]] = {}
"""By module: its functions, and the code of each that tells of its work."""


@contextmanager
def told(package: str | None) -> Iterator[None]:
    """Let functions of a package's modules tell of their work."""
    names = [name for name in sys.modules if name.partition(".")[0] == package]
    for name in names:
        if name not in _CODES:
            _CODES[name] = list(_telling(sys.modules[name]))
    changed = [(made, made.__code__, code) for name in names for made, code in _CODES[name]]
    try:
        for function, _, code in changed:
            function.__code__ = code
        yield
    finally:
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
    for function in {id(each): each for each in _functions(module, vars(module), set())}.values():
        codes = found.get(_place(function.__code__), ())
        if len(codes) == 1 and codes[0].co_freevars == function.__code__.co_freevars:
            yield function, codes[0]


def _place(code: CodeType) -> tuple[Any, ...]:
    return code.co_qualname, code.co_firstlineno, code.co_varnames[: code.co_argcount]


def _nested(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _nested(each)


def _functions(module: ModuleType, names: Any, seen: set[int]) -> Iterator[FunctionType]:
    """Yield functions of a module that its names, classes and closures hold."""
    for value in list(names.values()):
        for each in _unwrapped(value):
            if id(each) in seen or getattr(each, "__module__", None) != module.__name__:
                continue
            seen.add(id(each))
            if isinstance(each, FunctionType):
                yield each
                cells = dict(enumerate(map(_content, each.__closure__ or ())))
                yield from _functions(module, cells, seen)
            elif isinstance(each, type):
                yield from _functions(module, vars(each), seen)


def _content(cell: Any) -> object:
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
