"""Write what ``docs/api.md`` says of the code: signatures and docstrings, between its comments.

    python tools/api_page.py            # rewrite the page
    python tools/api_page.py --check    # exit with 1 if it is not current

``<!-- api: package.module.Name -->`` begins what is generated of a class or a function, and
``<!-- end -->`` ends it; all else on the page is written by hand. ``inherited`` behind the name
includes the members of base classes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
_BLOCK = re.compile(r"<!-- api: (\S+)( inherited)? -->\n.*?<!-- end -->", re.DOTALL)
_ROLE = re.compile(r":(?:attr|class|func|meth|mod):`~?(?:[\w.]+\.(?=[A-Z]))?([\w.]+)`")
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes):$")
_WIDTH = 88
"""Columns of a signature of one line."""


def generated(page: str) -> str:
    """Return the page with what its comments name."""

    def fill(block: re.Match[str]) -> str:
        name, inherited = block.groups()
        lines = "\n".join(described(name, inherited=bool(inherited)))
        return f"<!-- api: {name}{inherited or ''} -->\n{lines}\n<!-- end -->"

    return _BLOCK.sub(fill, page)


def described(name: str, *, inherited: bool) -> Iterator[str]:
    """Yield the lines about a class or a function, by its full name."""
    module, _, own = name.rpartition(".")
    subject = getattr(importlib.import_module(module), own)
    yield from ("", f"### {own}", "")
    if not inspect.isclass(subject):
        yield from _function(_definition(subject), own)
        return
    tree = _definition(subject)
    init = next((f for f in _functions(tree) if f.name == "__init__"), None)
    bases = [base for base in subject.__mro__[1:] if base.__module__.startswith("paged_")]
    shown = [tree, *(_definition(base) for base in bases)] if inherited else [tree]
    named = ", ".join(base.__name__ for base in subject.__bases__ if base is not object)
    alone = f"class {own}({named})" if named else f"class {own}"
    yield from _code(_signature(init, own, skip=1) if init else alone)
    yield from _text(ast.get_docstring(tree))
    if init:
        yield from _text(ast.get_docstring(init))
    yield from _fields(shown)
    known: set[str] = set()
    for each in shown:
        for function in _functions(each):
            if not function.name.startswith("_") and function.name not in known:
                known.add(function.name)
                yield from ("", f"#### {own}.{function.name}", "")
                yield from _function(function, function.name, skip=1)


def _definition(subject: Any) -> Any:
    """Return the syntax tree of a class or a function."""
    return ast.parse(dedent(inspect.getsource(subject))).body[0]


def _functions(tree: ast.ClassDef) -> list[Any]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in tree.body if isinstance(node, kinds)]


def _function(function: Any, name: str, skip: int = 0) -> Iterator[str]:
    decorators = {_source(each) for each in function.decorator_list}
    if decorators & {"property", "cached_property"}:
        yield from _code(f"{name}: {_source(function.returns)}")
    else:
        skip = 0 if "staticmethod" in decorators else skip
        yield from _code(_signature(function, name, skip=skip))
    yield from _text(ast.get_docstring(function))


def _signature(function: Any, name: str, *, skip: int) -> str:
    """Return a signature, on one line or with a line for each parameter.

    Args:
        skip: leading parameters that a caller does not give, such as ``self``.
    """
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    parts: list[str] = []
    for number, (one, default) in enumerate(zip(positional, defaults, strict=True)):
        if number >= skip:
            parts.append(_parameter(one, default))
        if number == len(given.posonlyargs) - 1 and parts:
            parts.append("/")
    if given.vararg:
        parts.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        parts.append("*")
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    parts += [_parameter(one, default) for one, default in pairs]
    if given.kwarg:
        parts.append(f"**{_parameter(given.kwarg, None)}")
    result = f" -> {_source(function.returns)}" if function.returns else ""
    if function.name == "__init__":
        result = ""
    awaited = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    line = f"{awaited}{name}({', '.join(parts)}){result}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{awaited}{name}(", *(f"    {part}," for part in parts), f"){result}"])


def _parameter(one: ast.arg, default: Any) -> str:
    text = f"{one.arg}: {_source(one.annotation)}" if one.annotation else one.arg
    if default is None:
        return text
    return f"{text} = {_source(default)}" if one.annotation else f"{text}={_source(default)}"


def _fields(trees: list[ast.ClassDef]) -> Iterator[str]:
    """Yield a list of the fields of a dataclass or a model; base classes come last."""
    lines: list[str] = []
    known: set[str] = set()
    for tree in trees:
        for place, node in enumerate(tree.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, kind = node.target.id, f": {_source(_plain_type(node.annotation))}"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, kind = node.targets[0].id, ""  # a member of an enumeration
            else:
                continue
            if name.startswith("_") or name in {*known, "model_config"} or "ClassVar" in kind:
                continue
            known.add(name)
            default, about = _default(node.value)
            after = tree.body[place + 1] if place + 1 < len(tree.body) else None
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                about = inspect.cleandoc(str(after.value.value))
            text = f"- `{name}{kind}{default}`"
            lines.append(f"{text}: {_plain(about)}" if about else text)
    if lines:
        yield from ("", "Fields:", "", *lines)


def _plain_type(annotation: ast.expr) -> ast.expr:
    """Return a type without what ``Annotated`` adds to it."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[plain, *_])):
            return plain
    return annotation


def _default(value: ast.expr | None) -> tuple[str, str]:
    """Return the default of a field as it is written, and what ``Field`` says of it."""
    if value is None:
        return "", ""
    if not isinstance(value, ast.Call) or _source(value.func) not in {"Field", "field"}:
        return f" = {_source(value)}", ""
    named = {each.arg: each.value for each in value.keywords}
    about = ast.literal_eval(named["description"]) if "description" in named else ""
    default = named.get("default", value.args[0] if value.args else None)
    if default is not None:
        return f" = {_source(default)}", about
    factory = named.get("default_factory")
    return (f" = {_source(factory)}()" if factory is not None else ""), about


def _source(tree: ast.AST) -> str:
    """Return the source of an expression, its strings in double quotes."""
    text = ast.unparse(tree)
    return text if '"' in text else text.replace("'", '"')


def _code(text: str) -> Iterator[str]:
    yield from ("```py", text, "```")  # no program, so not `python`


def _plain(text: str) -> str:
    """Return a docstring's text on one line, as Markdown."""
    return " ".join(_marked(text).split())


def _marked(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _text(docstring: str | None) -> Iterator[str]:
    """Yield a docstring as Markdown: its sections become lists."""
    in_section, code = False, False
    if docstring:
        yield ""
    for line in _marked(docstring or "").splitlines():
        if found := _SECTION.match(line):
            in_section = True
            yield from (f"{found[1]}:", "")
        elif in_section and line.startswith("    ") and not line.startswith("     "):
            name, colon, about = line.strip().partition(": ")
            names = name if "`" in name else f"`{name}`"
            yield f"- {names}: {about}" if colon else f"- {line.strip()}"
        elif in_section and line.startswith("     "):
            yield f"  {line.strip()}"
        else:
            in_section = in_section and not line
            code = line.startswith("    ")
            yield line[:-1] if line.endswith("::") and not code else line


def main(args: list[str]) -> int:
    page = PAGE.read_text("utf-8")
    made = generated(page)
    if "--check" in args:
        if made != page:
            sys.stderr.write(f"{PAGE} is not current; run python tools/api_page.py\n")
        return int(made != page)
    PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
