"""Texts for parsers, and what holds for each parser, of calls or of thoughts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import chain, groupby, product, zip_longest
from random import Random
from typing import Any, ClassVar, cast

from pydantic import ValidationError

from paged_core.plugins.registry import Registry
from paged_testing import ComponentConformance
from paged_testing.chance import decisions_elsewhere
from paged_testing.telling import told
from paged_testing.use import instructions, items
from paged_testing.work import Work

MARKS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>"),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name": "weather", "parameters": {}}'),
    *('{"name": "f"', '"arguments": ', '{"a": [tru', "[f(a=1)]", "[weather(", "f(x='y')"),
    *("[", "]", "{", "}", ",", ";", " ", "\n", '"', "\\", "<", "te", "1.5", "null", "("),
    *("\u4e16", "\u0130"),
)
PLAIN = (
    *("", "Hello.", "a < b and c > d", "1, 2, 3", "\n\n  indented\n", "\u4e16\u754c \U0001f600"),
    *("\u00a0a\r\nb \r\n\u3000", "\ufeff\ta\u2028\x1c", "\u0130\u0130 \ufb01\xdf"),
    *('{"city": "Paris"}', "[1, 2]", "<b>bold</b>", "tool_call", "an answer {"),
)
"""Texts without a call."""
_SPACES = ("", " ", "\n", "\r\n", "\t", "\u00a0", "\u2028", "\u3000", "\ufeff", "\x1c")


def cut_texts(written: Sequence[str] = ()) -> Iterator[list[str]]:
    """Texts of marks, of beginnings of calls, of white space and other things, in pieces."""
    drawn = Random(0)
    for number in range(250 if written else 150):
        begin = drawn.choice(written) if number >= 150 else ""
        if begin and number % 3 == 0:  # a letter that is two in lower case
            place = drawn.randint(0, len(begin))
            begin = f"{begin[:place]}\u0130{begin[place:]}"
        begin = begin[: drawn.randint(0, len(begin))]
        whole = begin + "".join(drawn.choices(MARKS, k=drawn.randint(0, 2 if begin else 10)))
        whole += drawn.choice(_SPACES) if begin else ""
        cuts = sorted(drawn.randint(0, len(whole)) for _ in range(drawn.randint(0, 8)))
        yield [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


_TIMES = 4
"""Longer text by the shorter one, of which the work is compared."""
_SHORT = 24
"""Letters of the shorter of two texts of which the work is compared, at least."""


_AHEAD = 512
"""Letters that are more than what most parsers look ahead."""
_BEYOND = (1024, 4096)
"""Letters of texts that are longer than what a parser may look ahead."""


def check_linear(read: Callable[[str], object], texts: Iterable[str], package: str) -> None:
    """Check that reading takes instructions in proportion to the length of a text.

    The text that most is looked through again is also read where it is long.
    """
    growing = list[tuple[float, str]]()
    with told(package):
        for text in filter(None, texts):
            whole = text * -(-_SHORT // len(text))
            short, long = whole, whole * _TIMES
            before = Work.items
            few = instructions(partial(read, short), package)
            most, scanned = 2 * _TIMES * few + 400, Work.items - before
            many = instructions(partial(read, long), package, most=most)
            if many > most:  # unless it is within what a parser may look ahead
                whole = (text * _AHEAD)[:_AHEAD]
                short, long = whole, whole * _TIMES
                few = instructions(partial(read, short), package, most=64 * most)
                most = 2 * _TIMES * few + 400
                many = instructions(partial(read, long), package, most=most)
            assert many <= most, (
                f"{len(long)} letters of {text!r} in a row take {many} instructions or more, "
                f"{len(short)} take {few}: the work may grow in proportion to the text"
            )
            growing.append(((Work.items - before) / (scanned + len(short)), text))
        _, text = max(growing)
        few, many = (items(partial(read, (text * n)[:n]), package) for n in _BEYOND)
        assert many <= 2 * _TIMES * few, (
            f"of {_BEYOND[1]} letters of {text!r} in a row built-ins go through {many} items, of "
            f"{_BEYOND[0]} through {few}: each may be looked at and copied only a few times"
        )


def by_letters(parsed: Callable[..., object], begin: str, text: str) -> object:
    return parsed(begin, *text, "\u4e16")


def given_by(parser: Any, pieces: Iterable[str]) -> list[Any]:
    """Return what a parser makes of pieces of an answer, each of which stays as it was given."""
    given, found = list[Any](), list[list[Any]]()
    for step in (*(partial(parser.feed, piece) for piece in pieces), parser.end):
        given.append(step())
        found.append([*given[-1]])
    changed = [(*then, now) for *then, now in zip(found, map(list, given), strict=True)]
    assert all(then == now for then, now in changed), (
        f"what feed() returned was changed later: {next(e for e in changed if e[0] != e[1])}"
    )
    return [*chain.from_iterable(found)]


class ParserCases(ComponentConformance):
    written: ClassVar[Mapping[Any, Any]] = {}
    example: ClassVar[str]
    """Form of :attr:`written`, as code."""

    def is_written(self, key: Any, value: Any) -> bool:
        """Return whether an item of :attr:`written` has the form of the example."""
        raise NotImplementedError

    def test_written_has_answers_and_how_they_are_read(self) -> None:
        kind = type(self).__name__
        assert self.written, f"{kind} says nothing of the form: set `written`, {self.example}"
        for item in self.written.items():
            assert self.is_written(*item), f"`written` of {kind} has {item}: set {self.example}"

    def build(self, parts: object = None) -> Any:
        """Build the component: its factory gets the options alone."""
        made = self.record.load()(self.options)
        assert not isinstance(made.marks, str), "`marks` is a text: write (mark,) with a comma"
        return made

    def answers(self) -> Iterable[tuple[Any, str]]:
        """Answers, each with what its parser is asked for with."""
        raise NotImplementedError

    num_uses: ClassVar[int] = 40
    bytes_free: ClassVar[int] = 2 << 10

    def anew(self, asked: Any, number: int) -> Any:
        """Return the like of what a parser is asked for with, which none was asked with before."""
        raise NotImplementedError

    def uses(self) -> Callable[[int], object]:
        """Answers are read to their end, and to the middle, as of clients that go."""
        made, answers = self.build(), list(self.answers())

        def use(number: int) -> None:
            for asked, text in answers:
                parser = made.parser(self.anew(asked, number))
                parser.feed(f"{text} {number:06}")
                parser.feed("")
                parser.end()
                made.parser(self.anew(asked, number)).feed(f"{number:06} {text[: len(text) // 2]}")

        return use

    def alike(self) -> Iterable[tuple[Any, str]]:
        """Answers to what is like what others are asked for with, and not the same."""
        raise NotImplementedError

    @staticmethod
    def said(made: Any, asked: Any) -> list[Any]:
        """Return what else a component says of what a parser is asked for with."""
        raise NotImplementedError

    def test_reads_the_same_after_others_and_in_another_process(self) -> None:
        """In which each answer has a component of its own, and strings have other hashes."""
        made, answers = self.build(), [*self.answers(), *self.alike()]
        settings = {self.slot: self._table}
        read = partial(_read_alone, self.said, answers)
        alone = decisions_elsewhere(read, self.registry, self.slot, settings)
        for number, answer in enumerate([*answers, *answers[::-1]]):
            found = _read(made, self.said, answer)
            there = alone[str(min(number, 2 * len(answers) - 1 - number))]
            assert found == there, (
                f"of {answer} it makes {found}, in another process, where it read no other answer, "
                f"{there}: nothing may follow from the order of a set, or from other answers, of "
                "which what is kept has too small a key"
            )

    def test_answers_beside_each_other_are_read_as_alone(self) -> None:
        """Parsers of one component share nothing: a server reads many answers at a time."""
        made, answers = self.build(), list(self.answers())
        alone = [read_together(made, each)[0] for each in answers]
        for one, other in product(range(len(answers)), repeat=2):
            found = read_together(made, answers[one], answers[other])
            assert found == [alone[one], alone[other]], (
                f"{answers[one]} is read otherwise while another parser reads {answers[other]}"
            )

    def other_settings(self) -> list[dict[str, Any]]:
        """Also other texts, such as marks."""
        found, kind = super().other_settings(), type(self.options)
        for name, field in kind.model_fields.items():
            text = field.default
            if name not in self._table and isinstance(text, str) and text:
                table = {**self._table, name: f"{text[0]}{text[:2]}+({text[2:]}"}
                with suppress(ValidationError):
                    kind(**table)
                    found.append({"component": table})
        return found

    def test_goes_by_its_own_options_beside_another(self) -> None:
        made, answers = self.build(), list(self.answers())
        alone = [read_together(made, each) for each in answers]
        for each in self.other_settings()[:2]:
            other = self.record.load()(self.record.settings(**each["component"]))
            for answer in answers:
                read_together(other, answer)
            found = [read_together(made, answer) for answer in answers]
            assert found == alone, f"beside one of the options {each} it reads {found}, not {alone}"

    def test_reads_the_marks_of_other_options(self) -> None:
        """In the answers that are written, in place of its own."""
        made, answers = self.build(), list(self.answers())
        for table in (each["component"] for each in self.other_settings()):
            other = self.record.load()(self.record.settings(**table))
            changes = {getattr(self.options, name): each for name, each in table.items()}
            changes = {
                old: new
                for old, new in changes.items()
                if isinstance(old, str) and any(old in mark for mark in made.marks) and old != new
            }
            for answer in answers if len(changes) == 1 else ():
                ((old, new),) = changes.items()
                wanted = [
                    (kind, text.replace(old, new))
                    for kind, text in _by_kind(read_together(made, answer)[0])
                ]
                changed = tuple(
                    each.replace(old, new) if isinstance(each, str) else each for each in answer
                )
                found = _by_kind(read_together(other, cast("Any", changed))[0])
                assert found == wanted, (
                    f"with the options {table} {changed} gives {found}, and with its own {answer} "
                    f"gives the same of {old!r}: {wanted}"
                )


def _by_kind(pieces: Iterable[Any]) -> list[tuple[object, str]]:
    """Return pieces with those of one kind that follow each other joined."""

    def kind(piece: Any) -> object:
        return type(piece), getattr(piece, "is_reasoning", None), getattr(piece, "name", None)

    return [
        (one, "".join(getattr(each, "text", "") for each in same))
        for one, same in groupby(pieces, kind)
    ]


def read_together(made: Any, *answers: tuple[Any, str]) -> list[list[Any]]:
    """Return the pieces of answers that come at a time, a letter of each in turn."""
    turns = [_turns(made.parser(asked), text) for asked, text in answers]
    rounds = zip_longest(*turns, fillvalue=())
    return [list(chain(*pieces)) for pieces in zip(*rounds, strict=True)]


def _read(made: Any, said: Callable[[Any, Any], list[Any]], answer: tuple[Any, str]) -> list[Any]:
    asked, text = deepcopy(answer)  # a component may change it
    return [*said(made, asked), *read_together(made, (asked, text))[0]]


def _read_alone(
    said: Callable[[Any, Any], list[Any]],
    answers: Sequence[tuple[Any, str]],
    registry: Registry,
    slot: str,
    settings: Mapping[str, Any],
) -> dict[str, list[Any]]:
    """Return what a component of each answer's own makes of it."""
    record, found = registry.get(slot, settings[slot]["name"]), dict[str, list[Any]]()
    for number, answer in enumerate(answers):
        made = record.load()(record.settings(**settings[slot]))
        found[str(number)] = _read(made, said, answer)
    return found


def _turns(parser: Any, text: str) -> Iterator[Iterable[Any]]:
    yield from map(parser.feed, text)
    yield parser.end()
