"""Component ``llguidance``: the package of that name.

Its matchers never raise: one that fails stays in a state of error, in which it would allow nothing
but the end. So every answer is checked.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import inf, nextafter
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from paged_backends.grammar.settings import LlguidanceSettings
from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend, Matcher, Vocabulary
from paged_core.json_schema import changed
from paged_core.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_MOST_THREADS = 8
_NO_TOKEN = "NoExtensionBias"
"""Message of the package where no token can follow."""
_NOT_HERE = ("doesn't satisfy the grammar", "parser stopped")
"""Message where a token may not come; all others are of forms that are too much for it."""
_MOST_SAID = 400
"""Characters of an error of the package."""
_WHITESPACE = r"\x20?"
"""Between two parts of JSON, as in the calls that models write: none goes on with it for ever."""
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_EXACT = 1 << 53
"""Whole numbers above it are not all floats, as which the package reads them."""
_MOST_WHOLE = 2**63 - 1024
"""The largest float that it takes for a whole number."""
_MOST = int(sys.float_info.max)
"""The largest float."""
_MOST_OPTIONAL = 490
"""Properties of an object that may be left out, at most: any of them may come next.

Each takes four items of a row of the package, which has 2,000 at most: with more, a token of an
ambiguous grammar takes seconds.
"""
_LEAST = 1e-6
"""Part of the numbers between two bounds that is left out where one of them would be let in."""
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_LARK_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|%json\b\s*', re.DOTALL
)
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_OWN_KEY = "x-guidance"
"""Options of the package within a schema, by which parts of it would be ignored."""


class LlguidanceGrammar(GrammarBackend):
    """Compiles forms with llguidance."""

    def __init__(self, options: LlguidanceSettings, context: GrammarContext, /) -> None:
        vocabulary = context.vocabulary
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=len(vocabulary.token_bytes),
            eos_token=sorted(vocabulary.eos_token_ids),
        )
        self._num_threads = options.num_threads or max(
            1, min((os.cpu_count() or 1) // 2, _MOST_THREADS)
        )
        self._executor: tuple[int, LLExecutor] | None = None
        """Threads are not in a process that was forked, so each process has a number of its own."""

    def compile(self, form: StructuredOutputs, /) -> _Compiled:
        try:
            matcher = LLMatcher(self._tokenizer, _source(form), log_level=0)
        except ValueError as error:
            raise _refused(form, str(error)) from error
        if not matcher.is_error() and (problems := matcher.get_grammar_warnings()):
            raise _refused(form, "; ".join(problems))
        if not matcher.is_error():
            matcher.compute_bitmask()  # only now it is known whether any token can come first
        if matcher.is_error():
            raise _refused(form, matcher.get_error().replace(_NO_TOKEN, "no text has this form"))
        return _Compiled(matcher)

    def fill(self, matchers: Sequence[Matcher], masks: NDArray[np.int32], /) -> Mapping[int, str]:
        own = [matcher.own for matcher in matchers if isinstance(matcher, _Matcher)]
        self._threads().unsafe_compute_mask_ptr(
            [(matcher, row) for row, matcher in enumerate(own)],
            masks.ctypes.data,
            masks.shape[1] * masks.itemsize,
            len(masks),
        )
        return {row: _said(matcher) for row, matcher in enumerate(own) if matcher.is_error()}

    def _threads(self) -> LLExecutor:
        if self._executor is None or self._executor[0] != os.getpid():
            self._executor = os.getpid(), LLExecutor(num_threads=self._num_threads)
        return self._executor[1]


class _Tokens:
    """A vocabulary as the package asks for it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # each special token has a name: one that begins as another's would be taken for it
        self.tokens = [text or b"<%d>" % n for n, text in enumerate(vocabulary.token_bytes)]
        self.special_token_ids = [n for n, text in enumerate(vocabulary.token_bytes) if not text]
        self.eos_token_id = min(vocabulary.eos_token_ids)
        self.bos_token_id = None
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class _Compiled(CompiledGrammar):
    def __init__(self, first: LLMatcher) -> None:
        self._first = first

    def matcher(self) -> _Matcher:
        return _Matcher(self._first.deep_copy())


class _Matcher(Matcher):
    def __init__(self, own: LLMatcher) -> None:
        self.own = own

    def accept(self, token_id: int, /) -> None:
        if not self.own.consume_token(token_id):
            said = _said(self.own)
            is_wrong = any(text in said for text in _NOT_HERE)
            raise ValueError(said) if is_wrong else RequestError(said)

    @property
    def is_at_end(self) -> bool:
        return bool(self.own.is_accepting())


def _source(form: StructuredOutputs) -> str:
    """Return structured outputs in the package's notation."""
    if form.schema is not None:
        schema = _checked(json.loads(form.schema))
        options: JsonCompileOptions = {"whitespace_pattern": _WHITESPACE}
        if form.disable_any_whitespace:
            options = {"whitespace_flexible": False}
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options))
    if form.regex is not None:
        return str(LLMatcher.grammar_from_regex(_ESCAPED.sub(_ascii_digits, form.regex)))
    if form.choice is not None:
        written = [json.dumps(each, ensure_ascii=False) for each in form.choice]
        return str(LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(written)}"))
    return str(LLMatcher.grammar_from_lark(_lark(form.grammar or "")))


def _lark(grammar: str) -> str:
    """Return a grammar in Lark's notation, whose schemas and expressions are as those alone."""
    if _GBNF_RULE.search(grammar):
        try:
            grammar = gbnf_to_lark(grammar)
        except Exception as error:
            raise ValueError(f"it cannot be read as GBNF: {error}") from error
    made, at = "", 0
    while found := _LARK_TOKEN.search(grammar, at):
        made += grammar[at : found.start()]
        at, token = found.end(), found[0]
        if token.startswith("%json"):
            schema, at = json.JSONDecoder().raw_decode(grammar, at)
            schema = _checked(schema)
            if isinstance(schema, dict):
                schema[_OWN_KEY] = {"whitespace_pattern": _WHITESPACE}
            token = f"%json {json.dumps(schema)}"
        elif token.startswith("/") and not token.startswith("//"):
            token = _ESCAPED.sub(_ascii_digits, token)
        made += token
    return made + grammar[at:]


def _checked(schema: Any) -> Any:
    """Return a schema with bounds as the package takes them, and without options of its own."""
    if _has_key(schema, _OWN_KEY):
        raise ValueError(f"{_OWN_KEY!r} is not accepted in a schema")
    return changed(schema, _checked_part)


def _checked_part(part: dict[str, Any]) -> dict[str, Any]:
    names, required = part.get("properties"), part.get("required")
    if isinstance(names, dict) and len(names) > _MOST_OPTIONAL:
        number = len(names.keys() - set(required if isinstance(required, list) else ()))
        if number > _MOST_OPTIONAL:
            raise ValueError(
                f"it is too large: an object has {number} properties that may be left out, and "
                f"{_MOST_OPTIONAL} at most can be followed; require some, or use fewer"
            )
    _refuse_rounded([part.get("const"), part.get("enum")])
    return _with_open_bounds(_with_exact_bounds(part))


def _refuse_rounded(value: Any) -> None:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_rounded(each)
    elif type(value) is int and (abs(value) > _MOST_WHOLE or int(float(value)) != value):
        raise ValueError(f"the number {str(value)[:40]} would be rounded; ask for it as a string")


def _with_exact_bounds(part: dict[str, Any]) -> dict[str, Any]:
    """Move bounds inwards that the package would round, and may let a number more in."""
    kinds = part.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_whole = isinstance(kinds, list) and "integer" in kinds and "number" not in kinds
    most = _MOST_WHOLE if is_whole else _MOST
    for name in _BOUNDS:
        bound, is_upper = part.get(name), name.lower().endswith("maximum")
        if type(bound) is not int or abs(bound) < _EXACT:
            continue
        if is_whole and name.startswith("exclusive"):
            del part[name]
            name, bound = name.removeprefix("exclusive").lower(), bound + (-1 if is_upper else 1)
            given = part.get(name, bound)
            bound = min(given, bound) if is_upper else max(given, bound)
        bound = min(bound, most) if is_upper else max(bound, -most)
        if abs(bound) > most:
            raise ValueError(f"{name} is beyond the numbers that it can bound")
        nearest = float(bound)
        while not _keeps(nearest, bound, is_upper=is_upper, is_whole=is_whole):
            nearest = nextafter(nearest, -inf if is_upper else inf)
        part[name] = int(nearest)
    return part


def _keeps(number: float, bound: int, *, is_upper: bool, is_whole: bool) -> bool:
    """Return whether it keeps a bound as the package writes it: all digits, or the fewest."""
    forms = [int(number)] if is_whole else [int(number), int(Decimal(repr(number)))]
    return max(forms) <= bound if is_upper else min(forms) >= bound


def _ascii_digits(found: re.Match[str]) -> str:
    return {"\\d": "[0-9]", "\\D": "[^0-9]"}.get(found[0], found[0])


def _with_open_bounds(part: dict[str, Any]) -> dict[str, Any]:
    """Move a bound that the package would let through: a whole number that is not included, where
    the other bound is less than 1 away."""
    bounds = [part.get(name) for name in _BOUNDS]
    lows = [each for each in bounds[:2] if isinstance(each, int | float)]
    highs = [each for each in bounds[2:] if isinstance(each, int | float)]
    if part.get("type") == "integer" or not lows or not highs:
        return part
    width = min(highs) - max(lows)
    for name, step in (("exclusiveMinimum", width), ("exclusiveMaximum", -width)):
        bound = part.get(name)
        if not isinstance(bound, int | float) or isinstance(bound, bool) or bound != int(bound):
            continue
        if 0 < width < 1 and bound * step >= 0:
            part[name] = bound + step * _LEAST
    return part


def _has_key(schema: Any, key: str) -> bool:
    """Return whether a schema has a key anywhere, as far as names of properties tell."""
    if isinstance(schema, dict):
        return key in schema or any(_has_key(part, key) for part in schema.values())
    return isinstance(schema, list) and any(_has_key(part, key) for part in schema)


def _said(matcher: LLMatcher) -> str:
    """Return the first line of an error, without the state that follows it."""
    text = str(matcher.get_error()).partition("<state>")[0].partition("<backtrace>")[0]
    return " ".join(text.split())[:_MOST_SAID] or "it stopped"


def _refused(form: StructuredOutputs, reason: str) -> RequestError:
    reason = " ".join(reason.partition("<state>")[0].partition("<backtrace>")[0].split())
    return RequestError(
        f"structured_outputs cannot be compiled by grammar 'llguidance': {reason[:_MOST_SAID]}"
    )
