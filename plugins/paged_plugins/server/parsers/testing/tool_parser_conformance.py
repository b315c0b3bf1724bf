"""The conformance class of tool parsers, and of the grammars that force their calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise, product
from json import JSONDecoder
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import GrammarContext
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend, Vocabulary
from paged_core.structured_outputs import StructuredOutputs
from paged_plugins.server.parsers.json_text import JsonText
from paged_plugins.server.parsers.testing.parser_cases import (
    MARKS,
    PLAIN,
    ParserCases,
    by_letters,
    check_linear,
    cut_texts,
    given_by,
    read_together,
)
from paged_plugins.server.parsers.tool_parser import (
    Arguments,
    CallBegins,
    Function,
    Piece,
    Text,
    ToolFormat,
)
from paged_testing import GrammarConformance
from paged_testing.grammar import VOCABULARY

NAMES = ("f", "weather", "2-get_Weather", f"2-get_Weather{'-x' * 25}")
_OTHER_SCHEMA = {"properties": {"a": {"type": "string"}}}
_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>")
"""Special tokens as most vocabularies write them."""
_NO_TOKENS: Mapping[str, int] = {}
_AS_WRITTEN = (
    '{"a": 1.50, "b":1E3,  "c": "\\u00e9\\/", "d": 12345678901234567890.0}',
    "{}",
    '{"a": "\\"}])> None \\\\", "b": {"c": [{}, 1]}}',
    '{"a": "\u2028\x85\u00a0\x7f", "a b": null}',
    '{\n  "a": [\n    1\n  ]\n}',
)
_BETWEEN = ("\u4e16", " and \u4e16 ", '"\u4e16"', "}\u4e16", "\n<\u4e16>")
_NO_OBJECTS = ("[1]", '[{"a": 1}]', "7", "true", '{"a": 1}}', '{"a" 1}', '{"a": [1}}', "{,}")
_LONG, _ITEMS = '{"a": [', ('{"b": 1}, ', '"}", ', "[], ")
"""An object that begins, and what goes on in it."""
_MANY = 20
"""Times that calls follow each other, and one more."""
DEEP = 100_000
"""Brackets in each other, further than any recursion goes."""
PARAMETERS: Mapping[str, Any] = {
    "properties": {
        "a": {"enum": ['"quoted" \\ {[(,;)]}', "</tool_call>", "\n\u4e16", True, None, -1.5]},
        "b": {"type": "array", "items": {"$ref": "#/$defs/yes"}, "maxItems": 2},
    },
    "$defs": {"yes": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


class GrammarCases(GrammarConformance):
    """The grammar that servers force calls with."""

    component = "llguidance"
    vocabulary: Vocabulary = VOCABULARY

    def make(self) -> GrammarBackend:
        """Return the grammar for :attr:`vocabulary`."""
        made: GrammarBackend = self.build(GrammarContext(vocabulary=self.vocabulary))
        return made


class ToolParserConformance(ParserCases):
    """Subclass it for a parser of calls, and say how it writes them::

    class TestMyParser(ToolParserConformance):
        component = "my_parser"
        written = {"[call f]": [("f", {})]}
    """

    slot: ClassVar[str] = "tool_parser"
    written: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {}
    """Answers that consist of calls, and what these are. ``f``, ``weather`` and all that they call
    are functions."""
    example = 'such as {"[call f 1]": [("f", {"a": 1})]}: by answer, names and arguments of calls'
    also_read: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {}
    """Other ways to write calls, which are read, and which the grammar does not allow."""
    written_in_tokens: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {}
    """The same where all marks are special tokens, if that is written otherwise."""
    broken: ClassVar[Sequence[str]] = ()
    """Answers that begin as calls do, and are none: they are text."""

    def answers(self) -> Iterable[tuple[Any, str]]:
        texts = (*self.written, *self.broken, *PLAIN[1:3], *PLAIN[-4:-2])
        return product((self.functions, {"f": _OTHER_SCHEMA}), texts)

    def alike(self) -> Iterable[tuple[Any, str]]:
        """Answers that may call functions of the same names."""
        return product([dict.fromkeys(self.functions, _OTHER_SCHEMA)], self.written)

    @staticmethod
    def said(made: Any, asked: Any) -> list[Any]:
        """Return grammars."""
        functions = [Function(*each) for each in asked.items()]
        return [made.grammar(functions, parallel=each, tokens={}) for each in (True, False)]

    def anew(self, asked: Any, number: int) -> Any:
        """Return functions of which one is a tool that no other request has."""
        return {**asked, f"f{number:06}": {"properties": {f"of_{number}": {}}}}

    def uses(self) -> Callable[[int], object]:
        """Also a grammar of such a tool, and calls of what is none."""
        made, read = self.build(), super().uses()
        names = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in self.functions))

        def use(number: int) -> None:
            read(number)
            for text in self.written:
                made.parser({}).feed(names.sub(f"no{number:06}", text))
            (function,) = (Function(*each) for each in self.anew({}, number).items())
            made.grammar([function], parallel=number % 2 == 0, tokens=_NO_TOKENS)

        return use

    def is_written(self, key: Any, value: Any) -> bool:
        """Return whether it is an answer, and calls."""
        calls = [each for each in value if isinstance(each, tuple)] if value else []
        is_call = all(len(c) == 2 and isinstance(c[0], str) and type(c[1]) is dict for c in calls)
        return isinstance(key, str) and bool(calls) and len(calls) == len(value) and is_call

    @property
    def functions(self) -> dict[str, Mapping[str, Any]]:
        """Functions that may be called, with their schemas."""
        written = (*self.written.values(), *self.written_in_tokens.values())
        return {name: {} for name in (*NAMES, *(call[0] for calls in written for call in calls))}

    def parsed(self, *pieces: str) -> list[Piece]:
        """Pieces that a parser makes of a text, those of a kind joined."""
        made = self.build()
        assert isinstance(made, ToolFormat)
        functions = self.functions
        found = _joined(given_by(made.parser(functions), pieces))
        assert functions == self.functions, "it changed the functions that it was given"
        return found

    def test_reads_the_calls_that_are_written(self) -> None:
        for text, calls in {**self.written, **self.also_read}.items():
            for pieces in ([text], list(text)):
                found = self.parsed(*pieces)
                assert _calls(found) == list(calls), (
                    f"{text!r} in {len(pieces)} pieces gives {found}, `written` says {calls}"
                )
                texts = [piece.text for piece in found if isinstance(piece, Text)]
                assert not "".join(texts).strip(), (
                    f"{text!r} in {len(pieces)} pieces gives the text {texts} beside its calls: "
                    "hold back what may become a mark. Answers of `written` and `also_read` are "
                    "calls alone: texts beside them are tried without being named"
                )

    def test_text_without_a_call_passes_unchanged(self) -> None:
        """So does what only looks like a call."""
        for text in (*PLAIN, *self.broken):
            for pieces in ([text], list(text)):
                found = self.parsed(*pieces)
                assert found == ([Text(text)] if text else []), (
                    f"{text!r} has no call, and is to be text as it is; in {len(pieces)} pieces it "
                    f"gives {found}"
                )

    def test_half_a_mark_is_released_once_it_can_be_none(self) -> None:
        made = self.build()
        heads = (text[: text.find(calls[0][0])] for text, calls in self.written.items())
        marks = {*made.marks, *made.begins, *(head.partition("{")[0] for head in heads)} - {""}
        for mark in sorted(marks):
            for end in range(1, len(mark)):
                half, rest = mark[:end], "\u4e16 and more"
                if any(each in half for each in marks):
                    continue
                for begin in ("", "Hello. "):
                    parser = made.parser(self.functions)
                    found = _joined([*parser.feed(begin + half), *parser.feed(rest)])
                    whole = begin + half + rest
                    assert found == [Text(whole)], (
                        f"{whole!r} gives {found} before the end: hold back what may be the "
                        f"beginning of {mark!r}, and pass it on as soon as it cannot be"
                    )

    def test_marks_that_are_special_tokens_are_named(self) -> None:
        """Servers leave other special tokens out of the text."""
        made, texts = self.build(), (*self.written, *self.written_in_tokens)
        assert made.marks or not self.written_in_tokens, (
            "`written_in_tokens` says that marks are special tokens, and `marks` names none"
        )
        found = {mark for text in texts for mark in _SPECIAL.findall(text)}
        missing = [mark for mark in found if not any(mark in each for each in made.marks)]
        assert not missing, f"{sorted(missing)} look like special tokens, and are not in `marks`"
        assert not isinstance(made.begins, str), "`begins` is a text: write (mark,) with a comma"
        first = [each for each in self.written if each.startswith(tuple(made.marks))]
        anywhere = [t for t in first if _calls(self.parsed(f"\u4e16{t}")) == list(self.written[t])]
        unnamed = [text for text in anywhere if not text.startswith(tuple(made.begins))]
        assert not unnamed, f"{unnamed[:1]} is read anywhere, and `begins` has not its first mark"

    def test_where_a_text_is_cut_does_not_matter(self) -> None:
        """Also where text comes before the call."""
        for pieces in cut_texts([*self.written, *(f"x {text}" for text in self.written)]):
            self.check_cuts(pieces)

    def test_arguments_are_an_object(self) -> None:
        """Otherwise it is no call, or one without them, or with what was an object so far."""
        for text, other in product(self.written, _NO_OBJECTS):
            for whole in _with_instead(text, other):
                self.check_cuts([*whole])

    def test_arguments_stay_as_they_are_written(self) -> None:
        """Where they are written as JSON: digits of numbers, escapes, and texts with anything, also
        a call. What is between them and the end of the call is kept, too."""
        for text in self.written:
            found, end = self.arguments_of(text), 0
            for place, given in enumerate(found):
                if (at := text.find(given, end)) < 0:
                    break  # they are no JSON
                end = at + len(given)
                for beside in _BETWEEN:
                    kept = self.parsed(whole := text[:end] + beside + text[end:])
                    assert "\u4e16" in "".join(getattr(each, "text", "") for each in kept), (
                        f"{whole!r} gives {kept}, without {beside!r}: a call that stops to be one "
                        "is cut there, and the rest is text"
                    )
                for other in (*_AS_WRITTEN, json.dumps({"a": text})):
                    whole = text[:at] + other + text[end:]
                    wanted = [*found[:place], other, *found[place + 1 :]]
                    for pieces in ([whole], [*whole]):
                        got = self.arguments_of(*pieces)
                        assert got == wanted, (
                            f"{whole!r} in {len(pieces)} pieces gives the arguments {got}: pass "
                            f"on their text as it is written, {wanted}"
                        )

    def test_what_is_held_back_comes_at_the_end(self) -> None:
        """Wherever an answer ends, in its arguments or a mark, all comes that would come if other
        text followed; arguments, or text."""
        for text in self.written:
            for cut in (text[:end] for end in range(1, len(text))):
                found, more = self.parsed(cut), self.parsed(cut, "\u4e16 ")
                begun, there = (
                    [piece.name for piece in each if isinstance(piece, CallBegins)]
                    for each in (found, more)
                )
                if begun != there or not begun:
                    continue
                kept, said = ("".join(_said(each).split()) for each in (found, more))
                assert said == f"{kept}\u4e16", (
                    f"{cut!r} gives {found}, with text behind it {more}: end() returns all that "
                    "was held back, also a part of a mark or of a value"
                )
            for mark in filter(text.endswith, self.build().marks):
                at = len(text) - len(mark) // 2
                found = self.parsed(whole := f"{text[:at]} {text[at:]}")
                assert mark in "".join(_said(found).split()), (
                    f"{whole!r} gives {found}, without what is no {mark!r}, since it has a space"
                )

    def arguments_of(self, *pieces: str) -> list[str]:
        """Return the arguments of the calls in a text."""
        return [each.text for each in self.parsed(*pieces) if isinstance(each, Arguments)]

    def test_a_call_of_no_function_is_kept(self) -> None:
        """As a call, which the server refuses, or as text."""
        made = self.build()
        for text, calls in self.written.items():
            found = _joined(read_together(made, ({"other": {}}, text))[0])
            assert found == [Text(text)] or _calls(found) == list(calls), f"{text!r} gives {found}"

    def test_text_beside_calls_is_kept(self) -> None:
        """Or, in a format in which none may be there, all is text."""
        for (text, calls), beside in product(self.written.items(), ("Hello.", "1 < 2", "\u4e16")):
            last, once = f"{beside}\n{text}", [*calls]
            for whole in (last, f"{text}\n{beside}", between := f"{text}\n{last}"):
                found = self.parsed(whole)
                said = "".join(piece.text for piece in found if isinstance(piece, Text))
                read, every = (said.strip(), _calls(found)), once * (1 + (whole == between))
                assert read in ((beside, every), (last, once), (whole, [])), whole

    def test_the_work_grows_in_proportion_to_the_text(self) -> None:
        texts = [*self.written, *self.broken, *PLAIN, *MARKS]
        for begin in ("", *(text[: len(text) // 2] for text in self.written)):
            check_linear(partial(by_letters, self.parsed, begin), texts, self.package)
        some = dict.fromkeys([*texts[:2], PLAIN[1], " "])
        check_linear(lambda text: self.parsed(f"{text}\u4e16"), some, self.package)
        within = [each for text in self.written for each in _with_instead(text, _LONG)]
        for begin in {each[: each.find(_LONG) + len(_LONG)] for each in within}:
            check_linear(partial(by_letters, self.parsed, begin), _ITEMS, self.package)

    def test_half_a_mark_before_a_call_is_text(self) -> None:
        """And hides no call, where other text just before it hides none."""
        made = self.build()
        for text, calls in self.written.items():
            if _calls(self.parsed(f"\u4e16{text}")) != list(calls):
                continue
            marks = [*filter(text.startswith, made.marks)] or [text[: text.find(calls[0][0])]]
            for end in range(1, len(marks[0])):
                half = marks[0][:end]
                found = self.parsed(half + text)
                said = "".join(piece.text for piece in found if isinstance(piece, Text))
                assert (said.split(), _calls(found)) == (half.split(), list(calls)), (
                    f"{half + text!r} gives {found}; after {half!r} a call may begin"
                )

    def test_reads_what_is_nested_too_deep(self) -> None:
        """Without an error, as a call or as text."""
        for text, (mark, close) in product(self.written, map(tuple, ("[]", "{}", "()"))):
            nests = mark * DEEP, mark * DEEP + close * DEEP
            for at in {text.find(after) + 1 for after in ("{", "(", "=", ": [", ": {", ":")}:
                for nest in nests:
                    self.check_deep(text, text[:at] + nest + text[at:])
            for whole in _with_instead(text, f'{{"a": {nests[1]}}}'):
                self.check_deep(text, whole)

    def check_deep(self, text: str, whole: str) -> None:
        """Check that a text with nests in it is read without an error."""
        try:
            self.parsed(whole)
        except RecursionError:
            raise AssertionError(
                f"{text!r} with {DEEP:,} brackets in each other raises RecursionError, as "
                "json.loads does: catch it, and take what was read for text"
            ) from None
        except pytest.fail.Exception as error:
            pytest.fail(
                f"{text!r} with {DEEP:,} brackets in each other: {error}; the work for a "
                "letter, or what it copies, grows with the letters before it"
            )

    # ------------------------------------------------------------------ forced calls

    def grammar(
        self,
        parameters: Mapping[str, Mapping[str, Any]],
        tokens: Mapping[str, int] = _NO_TOKENS,
        *,
        parallel: bool = True,
    ) -> tuple[GrammarCases, CompiledGrammar]:
        """Compile the grammar of calls of functions with these parameters, as a server does.

        Args:
            parallel: whether it may be several calls.
            tokens: ids of marks that are special tokens, the next ones of the vocabulary.
        """
        cases = GrammarCases()
        cases.vocabulary = replace(
            VOCABULARY, token_bytes=[*VOCABULARY.token_bytes, *(None for _ in tokens)]
        )
        if reason := cases.refusal():
            pytest.skip(reason)
        functions = [Function(*each) for each in parameters.items()]
        made = self.build()
        made.grammar([Function("other", {})], parallel=True, tokens=tokens)  # of another request
        grammar = made.grammar(functions, parallel=parallel, tokens=tokens)
        given = [Function(*each) for each in parameters.items()]
        assert functions == given, "it changed the functions that it was given"
        return cases, cases.make().compile(StructuredOutputs(grammar=grammar))

    def test_the_grammar_accepts_the_calls_that_are_written(self) -> None:
        self.check_grammar(self.written, {})

    def test_reads_as_many_calls_as_the_grammar_accepts(self) -> None:
        for (text, calls), between in product(self.written.items(), ("", "\n")):
            matcher = self.grammar(self.schemas(calls))[1].matcher()
            most = 0
            with suppress(ValueError):
                for number in range(1, _MANY):
                    for token in VOCABULARY.encode(text if number == 1 else between + text):
                        matcher.accept(token)
                    most = number if matcher.is_at_end else most
            found = _calls(self.parsed(between.join([text] * most)))
            assert found == [*calls] * most, (
                f"the grammar accepts {text!r} {most} times in a row, and {len(found)} calls of "
                "it are read"
            )

    def schemas(self, calls: Sequence[tuple[str, Any]], turn: int = 1) -> dict[str, dict[str, Any]]:
        """Return schemas of the functions, which require what calls give."""
        found = {}
        for name in [*self.functions][::turn]:
            keys: dict[str, Any] = {key: {} for of, given in calls for key in given if of == name}
            found[name] = {"properties": keys, "required": list(keys)}
        return found

    def test_the_grammar_refuses_a_second_call_unless_they_are_parallel(self) -> None:
        for text, calls in self.written.items():
            grammar = self.grammar({name: {} for name in self.functions}, parallel=False)[1]
            for whole in [text] if len(calls) > 1 else [text * 2, f"{text}\n{text}"]:
                matcher = grammar.matcher()
                with suppress(ValueError):
                    for token in VOCABULARY.encode(whole):
                        matcher.accept(token)
                    assert not matcher.is_at_end, (
                        f"grammar(parallel=False) accepts two calls or more, {whole!r}"
                    )

    def test_the_grammar_has_marks_that_are_special_tokens(self) -> None:
        """All of them, or one; not in arguments, where they are text."""
        marks, first = self.build().marks, len(VOCABULARY.token_bytes)
        written = {
            text: calls
            for text, calls in (self.written_in_tokens or self.written).items()
            if not any(mark in str(calls) for mark in marks)
        }
        self.check_grammar(written, {mark: first + at for at, mark in enumerate(marks)})
        for mark in marks if not self.written_in_tokens else ():
            self.check_grammar(written, {mark: first})

    def check_grammar(
        self, written: Mapping[str, Sequence[tuple[str, Any]]], tokens: Mapping[str, int]
    ) -> None:
        """Check that the grammar accepts calls, with each mark as its token, if it is one.

        Functions may be given in any order.
        """
        marks = re.compile("|".join(f"({re.escape(mark)})" for mark in tokens) or "(?!)")
        for (text, calls), turn in product(written.items(), (1, -1)):
            matcher = self.grammar(self.schemas(calls, turn), tokens)[1].matcher()
            ids: list[int] = []
            for part in filter(None, marks.split(text)):
                ids += [tokens[part]] if part in tokens else VOCABULARY.encode(part)
            for place, token in enumerate(ids):
                try:
                    matcher.accept(token)
                except ValueError as error:
                    raise AssertionError(
                        f"{text!r}: the grammar does not accept token {place}: {error}"
                    ) from error
            assert matcher.is_at_end, f"the grammar goes on after {text!r}"

    def test_forced_calls_are_read(self) -> None:
        """Calls of the functions that there are."""
        for names, num_texts in ((NAMES, 12), (NAMES[-1:], 4), (NAMES[:-1], 4)):
            self.check_forced(names, num_texts)

    def check_written(self) -> None:
        super().check_written()
        self.check_forced(NAMES, 2)
        self.test_a_call_of_no_function_is_kept()

    def check_forced(self, names: Sequence[str], num_texts: int) -> None:
        """Check that what the grammar permits is read as calls of these functions."""
        cases, grammar = self.grammar(dict.fromkeys(names, PARAMETERS))
        backend = cases.make()
        texts = filter(None, (cases.walk(backend, grammar, seed) for seed in range(num_texts)))
        for text in texts:
            found = self.parsed(text)
            said = f"{text!r} gives {found}"
            beside = (piece.text for piece in found if isinstance(piece, Text))
            assert not "".join(beside).strip(), f"{said}, with a text beside its calls"
            for name, arguments in _calls(found) or [("none", {})]:
                assert name in names, said
                assert arguments.get("a", ...) in PARAMETERS["properties"]["a"]["enum"], said

    def check_cuts(self, pieces: Sequence[str]) -> None:
        """Check that pieces give what the whole gives, and that arguments are as they should."""
        whole = "".join(pieces)
        found, cut = self.parsed(whole), self.parsed(*pieces)
        assert cut == found, f"{whole!r} gives {found}, in the pieces {pieces} {cut}"
        if not any(isinstance(piece, CallBegins) for piece in found):
            assert found == ([Text(whole)] if whole else []), "text was lost, or added"
        for piece, after in pairwise(found):
            if isinstance(after, Arguments):
                assert isinstance(piece, CallBegins), "arguments without a call"
                _check_object(after.text, whole)


def _check_object(arguments: str, whole: str) -> None:
    """Check that arguments are an object, or the beginning of one, as far as the server mends."""
    read, arguments = JsonText(is_object=True), arguments.rstrip()
    with suppress(ValueError):
        read.take(arguments, 0)
    assert 0 < read.num_taken == len(arguments), (
        f"{whole!r} gives the arguments {arguments!r}, which are no object: where they stop to be "
        f"one, behind {arguments[: read.num_taken]!r}, the rest is text, or all is"
    )


def _with_instead(text: str, other: str) -> Iterator[str]:
    """Yield the text with something else in the place of each object of JSON."""
    for at, letter in enumerate(text):
        with suppress(ValueError):
            _, end = JSONDecoder().raw_decode(text, at) if letter == "{" else (None, 0)
            if end:
                yield text[:at] + other + text[end:]


def _said(pieces: Sequence[Piece]) -> str:
    """Return texts and arguments."""
    return "".join(piece.text for piece in pieces if not isinstance(piece, CallBegins))


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for kind, same in groupby(pieces, type):
        if kind in (Text, Arguments):
            texts = (piece.text for piece in same if not isinstance(piece, CallBegins))
            joined.append(kind("".join(texts)))
        else:
            joined.extend(same)
    return joined


def _calls(pieces: Sequence[Piece]) -> list[tuple[str, Any]]:
    """The calls with their arguments read."""
    calls: list[tuple[str, Any]] = []
    for piece, after in pairwise([*pieces, None]):
        if isinstance(piece, CallBegins):
            assert isinstance(after, Arguments), "a call without arguments"
            calls.append((piece.name, json.loads(after.text)))
    return calls
