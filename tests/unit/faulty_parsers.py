"""Parsers that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.marked_calls import MarkedCallParser, Marks
from paged_plugins.server.parsers.reasoning import CLOSE, ThinkFormat, ThinkParser
from paged_plugins.server.parsers.reasoning_parser import Thought
from paged_plugins.server.parsers.testing import (
    ReasoningParserConformance,
    ToolParserConformance,
)
from paged_plugins.server.parsers.tool_formats import HermesFormat
from paged_plugins.server.parsers.tool_parser import (
    Arguments,
    CallBegins,
    Function,
    Piece,
    Text,
    ToolParser,
)
from unit.faulty_settings import FaultyMarkSettings, with_another

MARK = "<tool_call>"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


class ThinkCases(ReasoningParserConformance):
    """The cases of parsers of these thoughts."""

    written = {("", "<think>why</think>so"): ("why", "so")}  # noqa: RUF012


class HermesCases(ToolParserConformance):
    """The cases of parsers of this format."""

    written = {CALL: [("f", {"a": 1})]}  # noqa: RUF012


class _Parser(MarkedCallParser):
    """Is right."""

    def __init__(self) -> None:
        marks = Marks(begins=("<tool_call>",), ends=("</tool_call>",))
        super().__init__(marks, lambda *_: CallReader())
        self.text = ""


class SearchingParser(_Parser):
    """Tries at each letter whether what it has read ends with JSON."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        self.text += text
        for start in range(len(self.text)):
            self.text[start:].isspace()
        return super().feed(text)


class WholeParser(_Parser):
    """Reads at the end, as deep as Python can."""

    kinds: tuple[type, ...] = (dict,)

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def feed(self, text: str, /) -> Sequence[Piece]:
        self.parts.append(text)
        self.text += text[: len(MARK) - len(self.text)]
        if MARK.startswith(self.text):
            return []
        self.text = ""
        return [Text(self.whole())]

    def whole(self) -> str:
        text = "".join(self.parts)
        self.parts.clear()
        return text

    def written(self, call: str) -> str:
        """Return the text of the arguments."""
        return call.partition('"arguments":')[2].strip().removesuffix("}").strip()

    def end(self) -> Sequence[Piece]:
        text = self.whole()
        inside, _, after = text.removeprefix(MARK).rpartition("</tool_call>")
        try:
            call = json.loads(inside)
            if not isinstance(call["arguments"], self.kinds):
                raise TypeError(call)
            made = CallBegins(call["name"]), Arguments(self.written(inside))
        except (ValueError, LookupError, TypeError):
            return [Text(text)] if text else []
        return [*made, *([Text(after)] if after.strip() else [])]


class BraceParser(WholeParser):
    """Takes what ends with a brace for an object."""

    def end(self) -> Sequence[Piece]:
        text = self.whole()
        inside, _, after = text.removeprefix(MARK).partition("</tool_call>")
        name = re.match(r'\s*{"name": "([\w-]+)", "arguments": ({.*}) *}\s*$', inside, re.DOTALL)
        if name is None:
            return [Text(text)] if text else []
        return [CallBegins(name[1]), Arguments(name[2]), *([Text(after)] if after.strip() else [])]


class RunsParser(_Parser):
    """Looks for white space at the end from each letter on."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        return super().feed(text) if re.sub(r"\s+$", "", text) or text else []


class StrippingParser(_Parser):
    """Takes white space off all that it holds, at each piece."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        self.text += text
        if not self.text.strip():
            return []
        text, self.text = self.text, ""
        return super().feed(text)

    def end(self) -> Sequence[Piece]:
        return [*super().feed(self.text), *super().end()]


class RewritingParser(WholeParser):
    """Writes the arguments anew."""

    def written(self, call: str) -> str:
        return json.dumps(json.loads(super().written(call)))


class LinesParser(WholeParser):
    """Joins lines of arguments, of which there are more than JSON has."""

    def written(self, call: str) -> str:
        return " ".join(super().written(call).splitlines())


class QuotesParser(WholeParser):
    """Takes a quote that is escaped for the end of a text."""

    def written(self, call: str) -> str:
        text = super().written(call)
        if text.count('"') % 2:
            raise ValueError(text)
        return text


class LosingParser(WholeParser):
    """Looks for the end of a call alone behind its arguments."""

    def whole(self) -> str:
        return re.sub(r"(}})[^{}<]+(</tool_call>)", r"\1\2", super().whole())


class RereadingParser(_Parser):
    """Reads all that it has as JSON at each brace."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        self.text += text
        with suppress(ValueError, RecursionError):
            if "}" in text:
                json.loads(self.text.removeprefix(MARK))
        return super().feed(text)


class ForgettingParser(_Parser):
    """Forgets what it holds behind arguments."""

    calls = False

    def feed(self, text: str, /) -> Sequence[Piece]:
        found = super().feed(text)
        self.calls |= any(isinstance(piece, CallBegins) for piece in found)
        return found

    def end(self) -> Sequence[Piece]:
        return [] if self.calls else super().end()


class SlicingParser(_Parser):
    """Takes a piece off a text letter by letter."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        found = list[Piece]()
        while text:
            found += super().feed(text[:1])
            text = text[1:]
        return found


class ListingParser(_Parser):
    """Returns a list again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Piece] = []

    def feed(self, text: str, /) -> Sequence[Piece]:
        self.found[:] = super().feed(text)
        return self.found


class _NotingParser(_Parser):
    known: set[str]

    def feed(self, text: str, /) -> Sequence[Piece]:
        found = super().feed(text)
        self.known.update(each.name for each in found if isinstance(each, CallBegins))
        return found


class FewParser(_Parser):
    """Takes more calls than eight for text."""

    num_calls = 0

    def feed(self, text: str, /) -> Sequence[Piece]:
        return [each for piece in super().feed(text) if (each := self.read(piece))]

    def read(self, piece: Piece) -> Piece | None:
        self.num_calls += isinstance(piece, CallBegins)
        if self.num_calls <= 8 or isinstance(piece, Text):
            return piece
        return Text(piece.text) if isinstance(piece, Arguments) else None


class WordsParser(_Parser):
    """Takes names of functions for words."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        return [self.read(piece) for piece in super().feed(text)]

    def read(self, piece: Piece) -> Piece:
        is_word = not isinstance(piece, CallBegins) or piece.name.isidentifier()
        return piece if is_word else CallBegins(piece.name.partition("-")[0])


class SwallowingParser(_Parser):
    """Drops text after a call."""

    calls = False

    def feed(self, text: str, /) -> Sequence[Piece]:
        return [piece for piece in super().feed(text) if self.keeps(piece)]

    def end(self) -> Sequence[Piece]:
        return [piece for piece in super().end() if self.keeps(piece)]

    def keeps(self, piece: Piece) -> bool:
        self.calls |= isinstance(piece, CallBegins)
        return not (self.calls and isinstance(piece, Text))


class HoldingParser(_Parser):
    """Holds text from the last letter on with which a mark begins."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        self.text += text
        at = self.text.rfind(MARK[0])
        end = len(self.text) if at < 0 or MARK in self.text[at:] else at
        passed_on, self.text = self.text[:end], self.text[end:]
        return super().feed(passed_on)

    def end(self) -> Sequence[Piece]:
        return [*super().feed(self.text), *super().end()]


class _InClass:
    """A value that all objects of a class share."""

    value: Any = None

    def __get__(self, made: object, kind: type) -> Any:
        return self.value

    def __set__(self, made: object, value: Any) -> None:
        self.value = value


class SharingParser(_Parser):
    """Keeps what it holds back in its class; a new one begins without any."""

    _held = _InClass()


class SharingThoughtsParser(ThinkParser):
    """Keeps in its class whether thoughts have begun."""

    _inside = _InClass()


class LateThoughtsParser(ThinkParser):
    """Passes thoughts on when they have ended; those that do not are lost."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__(inside=inside)
        self._thoughts: list[Thought] = []

    def feed(self, text: str, /) -> Sequence[Thought]:
        self._thoughts += super().feed(text)
        passed_on, self._thoughts = self._thoughts, []
        if self._inside:
            passed_on, self._thoughts = [], passed_on
        return passed_on


class OpenEndParser(ThinkParser):
    """Takes what it holds at the end for the answer."""

    def end(self) -> Sequence[Thought]:
        return [replace(each, is_reasoning=False) for each in super().end()]


class LateAnswerParser(ThinkParser):
    """Passes the answer on when it has ended."""

    def feed(self, text: str, /) -> Sequence[Thought]:
        found, kept = super().feed(text), self.__dict__.setdefault("answer", [])
        kept += [each for each in found if not each.is_reasoning]
        return [each for each in found if each.is_reasoning]

    def end(self) -> Sequence[Thought]:
        return [*super().end(), *self.__dict__.get("answer", ())]


class PieceParser(ThinkParser):
    """Drops white space behind a mark where both come in one piece."""

    def feed(self, text: str, /) -> Sequence[Thought]:
        found = super().feed(text)
        self._skips = False
        return found


class EagerMarkParser(ThinkParser):
    """Drops a letter that begins like a mark, right before one."""

    def feed(self, text: str, /) -> Sequence[Thought]:
        return super().feed(text.replace("<</", "</"))


class RememberingThinkFormat(ThinkFormat):
    """Takes thoughts anywhere in the prompt for begun ones, if none end behind them."""

    def _begins_inside(self, prompt: str) -> bool:
        return prompt.rfind(self.begins) > prompt.rfind(CLOSE)


class CachingThinkFormat(ThinkFormat):
    """Knows all prompts."""

    def __init__(self, options: Any, /) -> None:
        super().__init__(options)
        self._known: dict[str, bool] = {}

    def _begins_inside(self, prompt: str) -> bool:
        return self._known.setdefault(prompt, super()._begins_inside(prompt))


class ScanningThinkFormat(ThinkFormat):
    """Looks for a mark from each letter of a prompt on."""

    def _begins_inside(self, prompt: str) -> bool:
        marks = [prompt.find(self.begins, at) for at in range(len(prompt))]
        return super()._begins_inside(prompt) and bool(marks)


class SureThinkFormat(ThinkFormat):
    """Takes any answer for one that surely begins with thoughts."""

    def ends_with(self, prompt: str, /, *, surely: bool) -> str | None:
        return super().ends_with(prompt, surely=False)

    def around(self, prompt: str, /) -> Sequence[str]:
        found = super().ends_with(prompt, surely=False)
        return () if found is None else (found,)


class NamelessThinkFormat(ThinkFormat):
    """Does not say which mark begins thoughts."""

    begins = ""


class MarklessThinkFormat(ThinkFormat):
    """Does not say which marks may be special tokens."""

    marks = ()


class NarrowParser(ThinkParser):
    """Drops white space before a mark where both come in one piece."""

    def feed(self, text: str, /) -> Sequence[Thought]:
        if text.isspace() and not self._inside:
            self._may_open = False
        return super().feed(text)


def _thinking(kind: type[ThinkParser]) -> Any:
    return lambda self, prompt: kind(inside=self._begins_inside(prompt))


THINK_PARSERS = {
    "SharingThinkFormat": _thinking(SharingThoughtsParser),
    "LateThinkFormat": _thinking(LateThoughtsParser),
    "OpenEndThinkFormat": _thinking(OpenEndParser),
    "LateAnswerThinkFormat": _thinking(LateAnswerParser),
    "PieceThinkFormat": _thinking(PieceParser),
    "EagerMarkThinkFormat": _thinking(EagerMarkParser),
    "NarrowThinkFormat": _thinking(NarrowParser),
}
globals().update(with_another(__name__, ThinkFormat, "parser", THINK_PARSERS))


class FixedMarksThinkFormat(ThinkFormat):
    """Has a mark of one's own, and names another one for a special token."""

    def __init__(self, options: FaultyMarkSettings, /) -> None:
        super().__init__(options)
        self.begins = options.mark.replace("tool_call", "think")


class SingleParserFormat(HermesFormat):
    """Has one parser, which begins anew with each answer."""

    _parser = _Parser()

    def parser(self, functions: object, /) -> ToolParser:
        _Parser.__init__(self._parser)
        return self._parser


class ListParser(WholeParser):
    """Takes lists for arguments."""

    kinds = (dict, list)


class TrimmingParser(WholeParser):
    """Takes white space off what turns out to be text."""

    def end(self) -> Sequence[Piece]:
        self.parts = [self.whole().rstrip("\u00a0")]
        return super().end()


class NewlineParser(_Parser):
    """Writes line breaks as it likes."""

    def feed(self, text: str, /) -> Sequence[Piece]:
        return super().feed(text.replace("\r\n", "\n"))


class HalfParser(_Parser):
    """Takes the beginning of a mark for text if another comes just before it."""

    last = ""

    def feed(self, text: str, /) -> Sequence[Piece]:
        pieces: list[Piece] = []
        for letter in text:
            again = self.last == letter == "<"
            pieces += [*super().end(), Text(letter)] if again else super().feed(letter)
            self.last = letter
        return pieces


class ManyFormat(HermesFormat):
    """Forces as many calls as a model likes."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        return super().grammar(functions, **{**how, "parallel": True})


class FirstOnlyFormat(HermesFormat):
    """Forces calls of the first function, whichever there are."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        return super().grammar(functions[:1], **how)


class EmptyingFormat(HermesFormat):
    """Takes the functions out of what it is given."""

    def parser(self, functions: Any, /) -> ToolParser:
        functions.clear()
        return _Parser()


def _made(kind: type[ToolParser]) -> Any:
    return lambda self, functions: kind()


PARSERS = {
    kind.__name__ + "Format": _made(kind)
    for kind in (
        *(SearchingParser, StrippingParser, WholeParser),
        *(BraceParser, RewritingParser, LinesParser, QuotesParser, WordsParser),
        *(SwallowingParser, SharingParser, TrimmingParser, NewlineParser, ListParser, HalfParser),
        *(HoldingParser, LosingParser, RereadingParser, ForgettingParser, SlicingParser),
        *(ListingParser, FewParser, RunsParser),
    )
}


class OtherWordsFormat(HermesFormat):
    """Forces calls whose arguments have another name than its parser knows."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        return super().grammar(functions, **how).replace("arguments\\", "input\\")


class FixedMarkFormat(HermesFormat):
    """Forces calls of a mark of its own, whichever its parser looks for."""

    def __init__(self, options: FaultyMarkSettings, /) -> None:
        self.layout = replace(HermesFormat.layout, begins=(options.mark,))  # type: ignore[misc]
        super().__init__(options)


class WordyFormat(HermesFormat):
    """Forces a call, or a word."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        rules = super().grammar(functions, **how)
        return rules.replace("start: ", 'start: "nothing" | ', 1)


globals().update(with_another(__name__, HermesFormat, "parser", PARSERS))


class UnorderedFormat(HermesFormat):
    """Forces calls of a set of functions."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        named = {each.name: each for each in functions}
        return super().grammar([named[each] for each in set(named)], **how)


class OpenFormat(HermesFormat):
    """Knows parsers until they come to an end."""

    def parser(self, functions: Any, /) -> ToolParser:
        made, kept = _Parser(), self.__dict__.setdefault("kept", set())
        kept.add(made)
        end = made.end
        made.end = lambda: kept.discard(made) or end()  # type: ignore[method-assign]
        return made


class GrammarsFormat(HermesFormat):
    """Keeps each grammar that it made."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        kept = self.__dict__.setdefault("kept", {})
        key = str(functions), *map(str, how.values())
        return kept.setdefault(key, super().grammar(functions, **how))


class UnnamedFormat(HermesFormat):
    """Does not say what begins a call."""

    def __init__(self, options: object = None, /) -> None:
        super().__init__(options)
        self.begins = ()


class TextFormat(HermesFormat):
    """Has a text for what begins a call, and no tuple."""

    begins: Any = property(lambda self: MARK, lambda self, _: None)


class AllTokensFormat(HermesFormat):
    """Takes all marks for special tokens where one is."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        tokens = how["tokens"] and {mark: how["tokens"][mark] for mark in self.marks}
        return super().grammar(functions, **{**how, "tokens": tokens})


class FlatFormat(HermesFormat):
    """Forces calls by the properties of a schema alone."""

    def grammar(self, functions: Sequence[Function], /, **how: Any) -> str:
        flat = [{k: v for k, v in e.parameters.items() if k != "$defs"} for e in functions]
        names = (each.name for each in functions)
        return super().grammar([*map(Function, names, flat)], **how)


class StrangersFormat(HermesFormat):
    """Knows the names of all that is called and is no function."""

    def parser(self, functions: Any, /) -> ToolParser:
        made = _NotingParser()
        made.known = self.__dict__.setdefault("kept", {*functions})
        return made
