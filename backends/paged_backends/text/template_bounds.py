"""Bounds on what a chat template does: a template is a program, and comes with the checkpoint.

The sandbox of Jinja keeps a template away from everything that it is not given. Here the work is
bounded, too. One budget is charged for each pass of a loop, each call, and each value that is made,
by its size: strings by their characters, containers by all that is in them. What could multiply
sizes in one operation (``*``, ``center``, ``format``, ``replace``, ...) is estimated before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from time import monotonic
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
"""Of the messages: a template looks at each of them several times."""
_SECONDS = 20.0
_PASS, _CALL, _ENTRY = 10, 40, 4
"""Of a loop; of a function; of a container, besides what it holds."""
_MAX_BITS = 1024
_MAX_DEPTH = 50
_MAX_DATA = 100_000_000
_RANGE = 100_000
"""The largest range of Jinja's sandbox."""
_FIELDS = re.compile(r"%[^a-zA-Z%]*|\{[^}]*\}")
_COMPUTED_WIDTH = re.compile(r"%[^a-zA-Z%]*\*|\{[^}]*\{")
_DIGITS = re.compile(r"\d+")
_FILTERS = """
abs attr capitalize count d default dictsort e escape first float forceescape groupby int items last
length list lower map max min random reject rejectattr reverse round safe select selectattr sort
string striptags sum title trim truncate unique upper urlencode wordcount
"""
"""Filters whose result is no larger than what they are given."""
_METHODS = """
capitalize casefold copy count decode encode endswith find get index isalnum isalpha isascii
isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper items keys
lower lstrip partition removeprefix removesuffix rfind rindex rpartition rsplit rstrip split
splitlines startswith strip swapcase title upper values
"""
"""Methods of which the same is true."""


class TemplateTooCostly(TemplateError):
    """A template does more than any template needs."""


class Budget:
    """What one rendering may still do."""

    def __init__(self, data: Any) -> None:
        """``data``: what the template is given."""
        self._deadline = monotonic() + _SECONDS
        self._left = self._whole = _MAX_DATA
        self.weigh(data)
        self._left = self._whole = _UNITS + _UNITS_PER_CHARACTER * (_MAX_DATA - self._left)

    def charge(self, units: int) -> None:
        """Take ``units``.

        Raises:
            TemplateTooCostly: so many are not left.
        """
        self._left -= units
        if self._left < 0 or monotonic() > self._deadline:
            raise TemplateTooCostly(
                f"more than {self._whole} operations and characters are too many for these messages"
            )

    def check(self, units: int) -> None:
        """Refuse an operation whose result would be larger than what is left."""
        if units > self._left:
            self.charge(units)

    def weigh(self, value: Any, depth: int = 0) -> int:
        """Charge the size of a value, with all that is in it, and return what is left."""
        if depth > _MAX_DEPTH:
            raise TemplateTooCostly(f"it nests values more than {_MAX_DEPTH} levels deep")
        if isinstance(value, str | bytes | range):
            self.charge(len(value))
        elif isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                raise TemplateTooCostly(f"it computes with numbers of more than {_MAX_BITS} bits")
        elif isinstance(value, Mapping):
            self.charge(_ENTRY * (len(value) + 1))
            for key, item in value.items():
                self.weigh(key, depth + 1)
                self.weigh(item, depth + 1)
        elif isinstance(value, list | tuple | set | frozenset):
            self.charge(_ENTRY * (len(value) + 1))
            for item in value:
                self.weigh(item, depth + 1)
        elif isinstance(value, Namespace):
            if depth:
                raise TemplateTooCostly("it puts a namespace into another value, or prints one")
            self.charge(1)
        return self._left


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, for one rendering within a budget."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(
        self, budget: Budget, filters: Mapping[str, Callable[..., Any]], **options: Any
    ) -> None:
        super().__init__(optimized=False, finalize=_finalize, **options)
        self.budget = budget
        self.filters.update(filters)
        self.filters.update(
            {name: self._bounded(name, function) for name, function in self.filters.items()}
        )
        del self.globals["lipsum"], self.filters["wordwrap"]  # unbounded, quadratic

    def from_string(self, source: Any, *args: Any, **options: Any) -> Template:
        """Compile a template, with what it does made to be charged."""
        if len(source) > MAX_SOURCE:
            raise TemplateTooCostly(f"it has more than {MAX_SOURCE} characters")
        tree = _Charged().visit(self.parse(source))
        tree.set_lineno(1)
        tree.set_environment(self)
        return super().from_string(tree, *args, **options)

    def tick(self, units: int) -> bool:
        """Charge a pass of a loop, or text."""
        self.budget.charge(units)
        return True

    def made(self, value: Any) -> Any:
        """Charge a value that the template made."""
        self.budget.weigh(value)
        return value

    def printed(self, value: Any) -> Any:
        """Charge a value that becomes part of a text."""
        self.budget.weigh((value,))
        return value

    def call(self, context: Context, function: Any, /, *args: Any, **options: Any) -> Any:
        """Call what a template calls."""
        self.budget.charge(_CALL)
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if owner is self:
            return function(*args)
        if isinstance(owner, str | bytes | int | float | list | tuple | dict | Mapping):
            name = getattr(function, "__name__", "")
            self._check_growth(name, _METHODS.split(), owner, *args, *options.values())
        result = super().call(context, function, *args, **options)
        return result if isinstance(function, Macro) else self.made(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        if operator == "*" and not (_is_number(left) and _is_number(right)):
            self.budget.check(_magnitude(left) * _magnitude(right))
        elif operator == "%" and isinstance(left, str | bytes):
            self._check_growth("format", (), left, right)
        elif operator == "**" and _bits(left) * abs(right) > _MAX_BITS:
            raise TemplateTooCostly(f"it computes with numbers of more than {_MAX_BITS} bits")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, list | tuple) and operator == "+":
            self.budget.charge(len(result))  # what is in it was charged before
            return result
        return self.made(result)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that is charged; it may be passed the context and the like first."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def charged(*args: Any, **options: Any) -> Any:
            self.budget.charge(_CALL)
            if any(isinstance(operand, Namespace) for operand in args):
                raise TemplateTooCostly(f"it applies {name} to a namespace")
            self._check_growth(name, _FILTERS.split(), *args[first:], *options.values())
            return self.made(function(*args, **options))

        return charged

    def _check_growth(self, name: str, harmless: Any, *operands: Any) -> None:
        """Refuse an operation whose result may be larger than the budget."""
        if name in harmless:
            return
        budget = self.budget
        if name in ("translate", "format_map"):
            raise TemplateTooCostly(f"it calls {name}")
        if name == "replace" and all(isinstance(operand, str) for operand in operands[:3]):
            text, old, new = operands[:3]
            budget.check(len(text) + (text.count(old) + 1) * len(new))
            return
        if name == "format":
            budget.check(_widths(operands[0]))
            budget.weigh(operands)
            return
        units = 1
        if name in ("join", "tojson"):
            before = budget.weigh(())
            units = before - budget.weigh(operands)
        for operand in operands:
            units *= max(1, _magnitude(operand))
        budget.check(units)


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

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802 - Jinja's interface
        self.generic_visit(node)
        return _call("made", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's interface
        self.generic_visit(node)
        node.nodes = [_call("printed", part) for part in node.nodes]
        return _call("made", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802 - Jinja's interface
        self.generic_visit(node)
        return _call("made", node) if node.ctx == "load" else node


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


def _widths(pattern: object) -> int:
    """Return how many characters the fields of a pattern may add to what they show."""
    if not isinstance(pattern, str):
        return 0
    if _COMPUTED_WIDTH.search(pattern):
        raise TemplateTooCostly("it formats with a width that is computed")
    fields = " ".join(_FIELDS.findall(pattern))
    return sum(int(digits[:20]) for digits in _DIGITS.findall(fields))
