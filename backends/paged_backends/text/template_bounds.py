"""Jinja's sandbox with a deadline and a budget: a chat template is a program from a stranger.

The budget is charged for each pass of a loop, each call, and each value that a template makes, by
its size: strings by their characters, containers by all that is in them. What multiplies sizes in
one operation is refused before it does so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from time import monotonic
from types import CodeType
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 1 << 20
"""Characters of a template."""
_UNITS = 10_000_000
_UNITS_PER_CHARACTER = 200
"""Units for each character of the messages: a template looks at each several times."""
_SECONDS = 20.0
_PASS, _CALL, _ENTRY = 10, 40, 4
"""Units of a loop's pass, of a call, and of a container besides what it holds."""
_MAX_BITS = 1024
_MAX_DEPTH = 80
"""Levels of values: 64 of any JSON, and those of a conversation around it."""
_MAX_DATA = 100_000_000
_RANGE = 100_000
"""The largest range of Jinja's sandbox."""
_GROWING = {
    "*",
    "batch",
    "center",
    "expandtabs",
    "indent",
    "join",
    "ljust",
    "pprint",
    "replace",
    "rjust",
    "slice",
    "to_bytes",
    "tojson",
    "zfill",
}
"""Filters, methods and operators whose result may be as large as the product of their operands."""
_REFUSED = ("translate", "format_map")
_WIDE = re.compile(r"%[^a-zA-Z%]*(\*|\d{4})|\{[^}]*(\{|\d{4})")
"""A field whose width is computed, or a thousand and more."""


class TemplateTooCostly(TemplateError):
    """A template does more than any template needs."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, for one rendering."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(
        self, data: Any, filters: Mapping[str, Callable[..., Any]], **options: Any
    ) -> None:
        """
        Args:
            data: all that the template is given, by which its budget is chosen.

        Raises:
            TemplateTooCostly: it is too large.
        """
        super().__init__(optimized=False, finalize=_finalize, **options)
        self._deadline = monotonic() + _SECONDS
        self._left = self._whole = _MAX_DATA
        self.made(data)
        self._left = self._whole = _UNITS + _UNITS_PER_CHARACTER * (_MAX_DATA - self._left)
        bounded = {**self.filters, **filters}
        self.filters = {name: self._bounded(name, function) for name, function in bounded.items()}
        del self.globals["lipsum"], self.filters["wordwrap"]  # unbounded, quadratic

    def compiled(self, source: str) -> CodeType:
        """Compile a template, with what it does made to be charged, for any such environment."""
        if len(source) > MAX_SOURCE:
            raise TemplateTooCostly(f"it has more than {MAX_SOURCE} characters")
        tree = _Charged().visit(self.parse(source))
        tree.set_lineno(1)
        tree.set_environment(self)
        return self.compile(tree)

    def template(self, code: CodeType) -> Template:
        """Return a template that charges this environment."""
        return self.template_class.from_code(self, code, self.make_globals(None))

    # ------------------------------------------------------------------ the budget

    def tick(self, units: int) -> bool:
        """Charge a pass of a loop, a call, or text.

        Raises:
            TemplateTooCostly: so much is not left, or the deadline is over.
        """
        self._left -= units
        if self._left < 0 or monotonic() > self._deadline:
            raise TemplateTooCostly(
                f"more than {self._whole} operations and characters are too many for these messages"
            )
        return True

    def made(self, value: Any, depth: int = 0) -> Any:
        """Charge a value, with all that is in it, and return it."""
        if depth > _MAX_DEPTH:
            raise TemplateTooCostly(f"it nests values more than {_MAX_DEPTH} levels deep")
        if isinstance(value, str | bytes | range):
            self.tick(len(value))
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise TemplateTooCostly(f"it computes with numbers of more than {_MAX_BITS} bits")
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            self.tick(_ENTRY * (len(value) + 1))
            parts = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
            for part in parts:
                self.made(part, depth + 1)
        elif isinstance(value, Namespace) and depth:
            raise TemplateTooCostly("it puts a namespace into another value, or prints one")
        return value

    def printed(self, value: Any) -> Any:
        """Charge a value that becomes part of a text, and return it."""
        return self.made((value,))[0]

    def _check_growth(self, name: str, *operands: Any) -> None:
        """Refuse an operation whose result may be larger than what is left."""
        if name in _REFUSED:
            raise TemplateTooCostly(f"it calls {name}")
        if name == "format":
            self.made(operands)
            if isinstance(operands[0], str) and _WIDE.search(operands[0]):
                raise TemplateTooCostly("it formats with a width that is computed, or a thousand")
        units = 1
        for operand in operands if name in _GROWING else ():
            units *= max(1, _magnitude(operand))
        if units > self._left:
            self.tick(units)

    # ------------------------------------------------------------------ what is charged

    def call(self, context: Context, function: Any, /, *args: Any, **options: Any) -> Any:
        """Call what a template calls."""
        self.tick(_CALL)
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if owner is self:
            return function(*args)
        if isinstance(owner, str | bytes | int | float | list | tuple | dict | Mapping):
            name = getattr(function, "__name__", "")
            self._check_growth(name, owner, *args, *options.values())
        result = super().call(context, function, *args, **options)
        return result if isinstance(function, Macro) else self.made(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        if operator == "%" and isinstance(left, str | bytes):
            self._check_growth("format", left, right)
        elif operator == "**" and _bits(left) * abs(right) > _MAX_BITS:
            raise TemplateTooCostly(f"it computes with numbers of more than {_MAX_BITS} bits")
        elif not (_is_number(left) and _is_number(right)):
            self._check_growth(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, list | tuple) and operator == "+":
            self.tick(len(result))  # what is in it was charged before
            return result
        return self.made(result)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that is charged; it may be passed the context and the like first."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def charged(*args: Any, **options: Any) -> Any:
            self.tick(_CALL)
            if any(isinstance(operand, Namespace) for operand in args):
                raise TemplateTooCostly(f"it applies {name} to a namespace")
            self._check_growth(name, *args[first:], *options.values())
            return self.made(function(*args, **options))

        return charged


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Charge a value that is printed. (Without the context, Jinja prints constants only once.)"""
    environment: Any = context.environment
    return environment.printed(value)


class _Charged(NodeTransformer):
    """Adds to a template the calls that charge its budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja's interface
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", nodes.Const(_PASS))))
        if node.test is not None:
            node.test = nodes.And(_call("tick", nodes.Const(_PASS)), node.test)
        return node

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:  # noqa: N802 - Jinja's interface
        self.generic_visit(node)
        units = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        return [nodes.ExprStmt(_call("tick", nodes.Const(units))), node] if units else [node]

    def visit_List(self, node: nodes.Expr) -> nodes.Node:  # noqa: N802 - Jinja's interface
        self.generic_visit(node)
        return _call("made", node) if getattr(node, "ctx", "load") == "load" else node

    visit_Dict = visit_Tuple = visit_List  # noqa: N815 - Jinja's interface

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's interface
        self.generic_visit(node)
        node.nodes = [_call("printed", part) for part in node.nodes]
        return _call("made", node)


def _call(method: str, argument: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), [argument], [], None, None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _magnitude(value: object) -> int:
    """Return by how much an operand may multiply the size of a result."""
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, str | bytes | list | tuple | range | Mapping):
        return len(value)
    return _RANGE if isinstance(value, Iterator) else 1
