"""Work that code of C does for a component, in items that it goes through: it runs no bytecode.

Calls and operators tell of what they take and what they return (:mod:`paged_testing.telling`). Each
goes through all of that, but for what the tables say.
"""

from __future__ import annotations

import array
import ast
import bisect
import copy
import functools
import heapq
import itertools
import json
import operator
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import length_hint
from threading import get_ident
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from paged_core.sequence import SequenceState

WORK_FILE = __file__

_WEIGHT = 2
"""Instructions that an item counts for: a call has dozens, which are not to hide it."""
_HASHED: tuple[type, ...] = (dict, set, frozenset, type({}.keys()), type({}.items()))
_COPIED = (str, bytes, tuple)
"""Types of which `+=` makes another object."""
_CONTAINERS: tuple[type, ...] = (
    list,
    deque,
    bytearray,
    array.array,
    range,
    type({}.values()),
    *_COPIED,
    *_HASHED,
)
_ARRAYS = ("numpy", "torch")
_LONGEST = 200
"""Letters of a pattern that is taken apart."""
COPIES = {"output": SequenceState.output}
"""Properties of what a component sees that copy what they return."""
_NUMBERS = {int, float, bool, type(None)}
_LINEAR = {
    *(list, tuple, set, frozenset, dict, bytes, bytearray, str, array.array),
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
_CALLING = {map, filter, functools.reduce, itertools.starmap, itertools.takewhile}
"""Types and functions that call their first argument."""
_LAZY = {map, filter, zip, enumerate, reversed, heapq.merge} | {
    each
    for each in vars(itertools).values()
    if isinstance(each, type) and each not in (itertools.count, itertools.repeat)
}
"""Types and functions that go through their arguments when they are asked for more."""
_ON_TEXTS = ("json", "re", "ast", "html", "textwrap", "shlex", "string", "tokenize", "urllib")
"""Modules in Python whose functions have code of C go through the texts that they are given."""
Cost = str | Callable[[Sequence[Any], Any], int]
"""Items that a call goes through: of ``o`` its owner, ``a`` its arguments, ``r`` its result; or a
function of them, the owner first, and of the result, or of what it raised."""


def _behind(args: Sequence[Any], _: Any) -> int:
    """Items that move up or down, behind an index."""
    length, index = len(args[0]), args[1] if len(args) > 1 else -1
    return length - max(0, index + length if index < 0 else index) if length else 0


def _found(args: Sequence[Any], result: Any) -> int:
    """Items up to that which was found, or all."""
    owner, *_, start = (*args, 0) if len(args) < 3 else args[:3]
    first = start if isinstance(start, int) else 0
    end: int = result if isinstance(result, int) and result >= 0 else len(owner)
    return max(0, end - first)


def _matched(args: Sequence[Any], result: Any) -> int:
    """Letters of a match, or as far as a beginning of the pattern goes."""
    if isinstance(result, re.Match):
        return result.end() - result.start()
    pattern, text, start, *_ = (*args, 0)
    found = (each.match(text, start) for each in _beginnings(re.compile(pattern)))
    return max((each.end() - each.start() for each in found if each), default=0)


@functools.cache
def _beginnings(pattern: re.Pattern[Any]) -> Sequence[re.Pattern[Any]]:
    """Return patterns of the first parts of one, if it is short."""
    if len(pattern.pattern) > _LONGEST:
        return []
    compiler: Any = sys.modules["re._compiler"]
    before = sys.gettrace()
    sys.settrace(None)  # it is none of the component's work
    try:
        parsed = sys.modules["re._parser"].parse(pattern.pattern, pattern.flags)
        return [compiler.compile(parsed[:end], pattern.flags) for end in range(1, len(parsed) + 1)]
    finally:
        sys.settrace(before)


def _searched(args: Sequence[Any], result: Any) -> int:
    """Letters up to the end of a match, or all; from those in no match as far as a pattern goes."""
    pattern, text, start, *_ = (re.compile(args[0]), *args[1:], 0)
    found = [result] if isinstance(result, re.Match) else [*pattern.finditer(text, start)]
    within = {at for each in found for at in range(*each.span())}
    places = range(start, result.end() if [result] == found else len(text))
    tried = (_matched((pattern, text, at), None) for at in places if at not in within)
    return len(places) + sum(tried)


def _read(args: Sequence[Any], result: Any) -> int:
    """Letters up to the end of what is read as JSON, or to its mistake."""
    _, text, start, *_ = (*args, 0)
    end: int = result[1] if isinstance(result, tuple) else len(text)
    if isinstance(result, json.JSONDecodeError):
        is_open = result.msg.startswith("Unterminated")  # its place is where a text begins
        end = end if is_open else result.pos
    elif isinstance(result, Exception):
        return 0  # it is nested too deep
    return max(0, end - int(start))


def _rotated(args: Sequence[Any], _: Any) -> int:
    return min(abs(int(args[1] if len(args) > 1 else 1)), len(args[0]))


def _smaller(args: Sequence[Any], _: Any) -> int:
    """Items of the smallest of several sets; another argument is gone through."""
    sizes = [*map(_size, args)]
    return min(sizes) if isinstance(args[-1], _HASHED) else sizes[-1]


def _costs(**names: str) -> dict[str, Cost]:
    """Methods by what they cost, and ``default``; `nothing` is for those that look at few items."""
    costs = {"nothing": "", "owner": "o", "given": "a", "both": "oa"}
    return {name: costs[how] for how, of in names.items() for name in of.split()}


_OF_DICTS = _costs(
    nothing="get pop popitem setdefault keys values items clear move_to_end",
    owner="copy most_common total elements",
    given="update subtract",
)
_OF_SETS = _costs(
    nothing="add discard remove pop clear",
    owner="copy difference issubset",
    given="update difference_update symmetric_difference_update issuperset",
    both="union symmetric_difference",
) | dict.fromkeys(("intersection", "intersection_update", "isdisjoint"), _smaller)
_OF_LISTS = {
    **_costs(nothing="append clear", given="extend", owner="index remove count copy sort reverse"),
    **dict.fromkeys(("insert", "pop"), _behind),
}
_OF_TEXTS: Mapping[str, Cost] = {
    **_costs(nothing="startswith endswith append clear", given="extend"),
    **dict.fromkeys(("find", "index"), _found),
    "join": "ar",
    "pop": _behind,
}
_OF_ARRAYS = _costs(
    nothing="item view reshape flatten ravel transpose permute expand squeeze unsqueeze detach "
    "size dim numel numpy data_ptr stride split chunk unbind narrow select element_size"
)
_METHODS: Mapping[type, Mapping[str, Cost]] = {
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _OF_DICTS),
    **dict.fromkeys((set, frozenset), _OF_SETS),
    **dict.fromkeys((list, tuple, array.array), _OF_LISTS),
    **dict.fromkeys((str, bytes, bytearray), _OF_TEXTS),
    deque: {
        **_costs(nothing="append appendleft pop popleft clear", given="extend extendleft"),
        **_costs(owner="index remove insert count copy reverse"),
        "rotate": _rotated,
    },
    re.Pattern: {
        **dict.fromkeys(("match", "fullmatch"), _matched),
        **dict.fromkeys(("search", "finditer", "findall"), _searched),
        **dict.fromkeys(("sub", "subn"), lambda args, _: _searched((args[0], args[2]), None)),
    },
    re.Match: _costs(nothing="start end span"),
    json.JSONDecoder: dict.fromkeys(("decode", "raw_decode"), _read),
}
"""Methods that do not go through their owner, arguments and result, by the type of the owner."""


class Work:
    """Counts what rewritten code tells."""

    items = 0
    """Items that code of C has gone through so far, weighed."""
    thread: int | None = None
    """In which they count; ``None``: in any."""

    @classmethod
    def call(cls, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function in the place of a component."""
        kind, owner = type(function), getattr(function, "__self__", None)
        is_c = isinstance(function, BuiltinFunctionType)
        if kind is partial:
            return cls.call(function.func, *function.args, *args, **function.keywords | kwargs)
        if _among(function, _CALLING) and args:
            args = (cls._telling(args[0]), *args[1:])
        if "key" in kwargs:
            kwargs["key"] = cls._telling(kwargs["key"])
        if _among(function, _LAZY) or _among(owner, _LAZY):  # as of chain.from_iterable
            return cls._lazily(function(*args, **kwargs))
        taken, cost = (None, *args), None
        if (is_c or kind is MethodType) and not isinstance(owner, ModuleType | type | None):
            taken, cost = (owner, *args), _cost_of(type(owner), function)
        elif kind is MethodDescriptorType and args:
            taken, cost = args, _cost_of(type(args[0]), function)
        elif _among(function, _LINEAR):
            cost = "a"
        elif (is_c and function not in _BRIEF) or _arrays(function):
            cost = "ar"
        elif kind is FunctionType and _module(function) in _ON_TEXTS:
            if _module(function) == "re":
                taken = tuple(each for each in args if not isinstance(each, int))  # no flags
            cost = _read if function is json.loads else _cost_of(re.Pattern, function)
        if cost is None:
            return function(*args, **kwargs)
        sizes, result = [*map(_size, taken)] if isinstance(cost, str) else [], None
        try:
            result = function(*args, **kwargs)
            return result
        except Exception as error:
            result = error
            raise
        finally:
            if isinstance(taken[0], _HASHED) and args:
                cls.add(_hashed(args[0]))
            if isinstance(cost, str):
                parts = {"o": sizes[0], "a": sum(sizes[1:]), "r": _size(result)}
                cls.add(sum(parts[each] for each in cost))
            else:
                cls.add(cost(taken, result))

    @classmethod
    def _telling(cls, function: Any) -> Any:
        """Return a function that code of C is to call, so that it tells of its work, too."""
        is_c = isinstance(function, BuiltinFunctionType | MethodDescriptorType)
        is_c = is_c or (isinstance(function, FunctionType) and _module(function) in _ON_TEXTS)
        return partial(cls.call, function) if is_c else function

    @classmethod
    def add(cls, items: int) -> None:
        """Count so many items."""
        if cls.thread in (None, get_ident()):
            cls.items += _WEIGHT * items

    @classmethod
    def operated(cls, name: str, one: Any, other: Any) -> Any:
        """Return what an operator gives."""
        result = _OPERATORS[name](one, other)
        if type(one) not in _NUMBERS or type(other) not in _NUMBERS:
            cls.add(_operated(name, one, other, result))
        return result

    @classmethod
    def augmented(cls, name: str, target: Any, value: Any, is_local: bool) -> Any:
        """Return what is added to a target, or the like; a local text grows in place."""
        is_copied = isinstance(target, _COPIED[is_local:]) or _arrays(target)
        is_both = name == "BitAnd" and isinstance(value, _HASHED)
        cls.add(is_copied * _size(target) + (0 if is_both else _size(value)))
        return value

    @classmethod
    def keyed(cls, index: Any) -> Any:
        """Return an index: a tuple is hashed, and of a list or an array each is looked up."""
        if type(index) not in _NUMBERS and type(index) is not str:
            cls.add(_hashed(index) if isinstance(index, tuple) else _size(index))
        return index

    @classmethod
    def read(cls, owner: Any, name: str) -> Any:
        """Return an attribute, which may be a copy."""
        value = getattr(owner, name)
        return cls.spread(value) if getattr(type(owner), name, None) is COPIES[name] else value

    @classmethod
    def sized(cls, value: Any) -> Any:
        """Return a copy; a slice of an array is none."""
        if isinstance(value, _CONTAINERS):
            cls.add(length_hint(value, 0))
        return value

    @classmethod
    def spread(cls, value: Any) -> Any:
        """Return a value of which each item is taken, as after ``*`` or ``**``."""
        cls.add(_size(value))
        return value

    @classmethod
    def cut(cls, value: Any, index: Any) -> None:
        """Delete an item or a slice, after which the items behind it move up."""
        if isinstance(value, list | deque | bytearray):
            every = range(len(value))
            first = every[index] if isinstance(index, int) else index.indices(len(value))[0]
            cls.add(len(value) - first - 1)
        del value[index]

    @classmethod
    def put(cls, value: Any, index: slice, new: Any) -> None:
        """Set a slice, after which the items behind it move, if it is not as long."""
        first, last, _ = index.indices(length_hint(value, 0))
        moves = isinstance(value, list | bytearray) and _size(new) != last - first
        cls.add(_size(new) + (len(value) - first if moves else last - first))
        value[index] = new

    @classmethod
    def _lazily(cls, values: Iterable[Any]) -> Iterator[Any]:
        for each in values:
            cls.add(1)
            yield each


_COMPARISONS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
_NAMES = {
    **{"BitAnd": "and_", "BitOr": "or_", "BitXor": "xor"},
    **{"Div": "truediv", "MatMult": "matmul", "Mult": "mul", "NotEq": "ne"},
}
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "In": lambda one, other: one in other,
    "NotIn": lambda one, other: one not in other,
    **{
        each.__name__: getattr(operator, _NAMES.get(each.__name__, each.__name__.lower()))
        for each in (*ast.operator.__subclasses__(), ast.Eq, ast.NotEq, ast.Lt, ast.Gt)
    },
    "LtE": operator.le,
    "GtE": operator.ge,
}


def _among(function: Any, those: set[Any]) -> bool:
    return type(function) in (type, FunctionType, BuiltinFunctionType) and function in those


def _module(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def _arrays(value: Any) -> bool:
    """Return whether it is an array or a tensor, or a function of their libraries."""
    names = (getattr(each, "__module__", None) for each in (value, type(value)))
    return any(isinstance(n, str) and n.partition(".")[0] in _ARRAYS for n in names)


def _cost_of(kind: type, function: Any) -> Cost | None:
    """Return the cost of a method of a type; ``None``: it runs bytecode."""
    name = function.__name__
    if _arrays(kind):
        return _OF_ARRAYS.get(name, "oar")
    of = next((_METHODS[each] for each in kind.__mro__ if each in _METHODS), {})
    if isinstance(function, MethodType):  # some of collections are written in both
        return of.get(name) if _module(function) in ("collections", *_ON_TEXTS) else None
    return of.get(name, "oar")


def _size(value: Any) -> int:
    kind = type(value)
    if isinstance(value, _CONTAINERS) or kind.__module__ == "builtins":
        return length_hint(value, 0)
    if kind not in _NUMBERS and _arrays(kind):
        size: Any = getattr(value, "numel", None) or getattr(value, "size", 0)
        return int(size() if callable(size) else size)
    return 0


def _hashed(key: Any) -> int:
    """Return the items that are gone through for the hash of a key: a text keeps its own."""
    return len(key) + sum(map(_hashed, key)) if isinstance(key, tuple) else 0


def _operated(name: str, one: Any, other: Any, result: Any) -> int:
    """Return how many items an operator goes through."""
    if name in ("In", "NotIn"):
        looked_up = isinstance(other, (*_HASHED, range))
        return _hashed(one) if looked_up else _size(other)
    sizes = _size(one), _size(other)
    if not any(sizes):
        return 0
    if _arrays(one) or _arrays(other):
        return max(sizes)
    if name in _COMPARISONS:
        differ = sizes[0] != sizes[1] and name in _COMPARISONS[:2]
        return 0 if differ or one is other else _alike(one, other)
    of_sets = {"BitAnd": min(sizes), "Sub": sizes[0]}
    return of_sets.get(name, max(sum(sizes), _size(result)))


def _alike(one: Any, other: Any) -> int:
    """Return how many items are looked at to compare two containers."""
    if isinstance(one, _HASHED):
        return min(_size(one), _size(other))
    count = 0
    for a, b in zip(one, other, strict=False) if type(one) is type(other) else ():
        count += 1 + (_alike(a, b) if isinstance(a, list | tuple) and a is not b else 0)
        if a is not b and a != b:
            break
    return count
