"""The conformance class of reasoning parsers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

from paged_plugins.server.parsers.reasoning_parser import ReasoningFormat, Thought
from paged_plugins.server.parsers.testing.parser_cases import (
    MARKS,
    PLAIN,
    ParserCases,
    by_letters,
    check_linear,
    cut_texts,
    given_by,
)
from paged_testing.use import items

_LONG, _BETWEEN = "and so on " * 1000, ("", "\n" * 100)
_PIECES, _WORDS = 40, "word " * 40
_LIKE_A_TOKEN = re.compile(r"<\S+>")


class ReasoningParserConformance(ParserCases):
    """Subclass it for a parser of thoughts, and say how they are marked::

    class TestMyParser(ReasoningParserConformance):
        component = "my_parser"
        written = {("", "[why]because[/why]so"): ("because", "so")}
    """

    slot: ClassVar[str] = "reasoning_parser"
    written: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {}
    """By prompt and answer: the thoughts, and the rest."""
    example = (
        'such as {("", "[why]because[/why]so"): ("because", "so")}: by prompt and answer, both'
    )

    def is_written(self, key: Any, value: Any) -> bool:
        """Return whether it is a prompt with an answer, and two texts."""
        pairs = (key, value)
        return all(type(p) is tuple and list(map(type, p)) == [str, str] for p in pairs)

    def answers(self) -> Iterable[tuple[Any, str]]:
        return (*self.written, *((prompt, "why</think>so") for prompt in ("", "x\n<think>\n")))

    def anew(self, asked: Any, number: int) -> Any:
        """Return a prompt with more text before it."""
        return f"{number:06} {asked}"

    def alike(self) -> Iterable[tuple[str, str]]:
        """Answers to prompts that are as long, and begin and end alike."""
        for (prompt, text), between in product(self.written, _BETWEEN):
            for each in (prompt, "x" * len(prompt)):
                yield f"{'x ' * 50}{each}{between}", text

    @staticmethod
    def said(made: Any, asked: str) -> list[Any]:
        """Return the marks."""
        return [*_ends(made, asked), made.around(asked)]

    def uses(self) -> Callable[[int], object]:
        """Servers also ask for the marks."""
        made, read = self.build(), super().uses()

        def use(number: int) -> None:
            read(number)
            for asked, _ in self.answers():
                prompt = self.anew(asked, number)
                self.said(made, prompt)

        return use

    def parsed(self, prompt: str, *pieces: str) -> list[Thought]:
        """Pieces that a parser makes of a text, those of a kind joined."""
        made = self.build()
        assert isinstance(made, ReasoningFormat)
        joined: list[Thought] = []
        for each in given_by(made.parser(prompt), pieces):
            assert each.text, "a piece without text"
            if joined and joined[-1].is_reasoning == each.is_reasoning:
                joined[-1] = replace(each, text=joined[-1].text + each.text)
            else:
                joined.append(each)
        return joined

    def test_reads_the_thoughts_that_are_written(self) -> None:
        for (prompt, text), (thoughts, rest) in self.written.items():
            expected = [Thought(thoughts, is_reasoning=True), Thought(rest, is_reasoning=False)]
            for pieces in ([text], list(text)):
                found = self.parsed(prompt, *pieces)
                assert found == [each for each in expected if each.text], (
                    f"{text!r} in {len(pieces)} pieces gives {found}, `written` says {expected}"
                )

    def test_thoughts_that_a_prompt_has_ended_do_not_matter(self) -> None:
        """Thoughts of earlier answers in a conversation, and those that a template has ended."""
        made, written = self.build(), self.written.items()
        for (begin, earlier), (thoughts, rest) in written:
            if not thoughts or not rest:
                continue
            for (end, text), said in written:
                named = [each for each in made.marks if "|" not in each]  # users write no tokens
                asks = [f"What is {mark} for?\nNo idea.\n" for mark in named]
                for before in (f"{begin}{earlier}\nNow?\n", *asks):
                    prompt = f"{_LONG}{before}{_LONG}{end}"
                    found, marks = self.parsed(prompt, text), _ends(made, prompt)
                    assert (found, marks) == (self.parsed(end, text), _ends(made, end)), (
                        f"after the prompt ...{prompt[-200:]!r} {text!r} gives {found}, `written` "
                        f"says {said} of {end!r}; ends_with() returns {marks} if it is surely "
                        f"there or not, of {end!r} {_ends(made, end)}"
                    )
            ended = begin + earlier[: earlier.rfind(rest)]
            found = self.parsed(ended, rest)
            assert _ends(made, ended)[1] is not None or not any(t.is_reasoning for t in found), (
                f"after {ended!r} {rest!r} gives {found}, and ends_with() says that the answer has "
                "no thoughts"
            )

    def test_thoughts_that_do_not_end_are_kept(self) -> None:
        """And passed on as they come, as the answer is: it may be as long as is allowed."""
        for (prompt, text), (thoughts, rest) in self.written.items():
            at = text.find(thoughts) if thoughts else -1
            for said in (thoughts, thoughts[:-1], _WORDS) if at >= 0 else ():
                parser = self.build().parser(prompt)
                given = [piece for letter in text[:at] + said for piece in parser.feed(letter)]
                late = sum(len(piece.text) for piece in given) < len(said) - 100
                assert not late, f"of {len(said)} letters of thoughts, {given} came before the end"
                given += parser.end()
                found = "".join(piece.text for piece in given if piece.is_reasoning)
                assert found.strip() == said.strip(), f"{text[:at] + said!r} gives {given}"
            if rest and text.endswith(rest):
                parser = self.build().parser(prompt)
                given = [each for letter in f"{text}{_WORDS}" for each in parser.feed(letter)]
                shown = sum(len(each.text) for each in given if not each.is_reasoning)
                assert shown > len(_WORDS) - 100, f"of {text + _WORDS!r} only {given} came early"
            mark = self.build().ends_with(prompt, surely=False) or ""
            for end in range(1, len(mark)) if mark in text[at:] and at >= 0 else ():
                cut = self.parsed(prompt, text[:at] + thoughts, mark[:end])
                assert all(piece.is_reasoning for piece in cut), (
                    f"{text[:at] + thoughts + mark[:end]!r}, cut within {mark!r}, gives {cut}"
                )

    def test_names_the_mark_at_the_end_of_thoughts(self) -> None:
        """Surely only of a prompt after which text without a mark is thoughts."""
        made = self.build()
        for (prompt, text), (thoughts, rest) in self.written.items():
            mark = made.ends_with(prompt, surely=False) if thoughts and rest else ""
            assert mark is not None, f"ends_with({prompt!r}, surely=False) returns None"
            assert mark in text, f"ends_with() returns {mark!r}, not in {text!r}"
            shown, *others = (self.begun(f"{prompt}{space}") for space in ("", "\n", " \t\r\n"))
            for spaced in others:
                assert shown == spaced or shown[1] != spaced[1], (
                    f"after {prompt!r} text is thoughts, ends_with(surely=True): {shown}; with "
                    f"white space behind it {spaced}"
                )
        is_inside, surely = self.begun("")
        assert is_inside == (surely is not None), (
            f"after no prompt text is thoughts: {is_inside}; ends_with(surely=True): {surely!r}"
        )

    def test_names_the_marks_around_thoughts(self) -> None:
        """By those that answers need: without the first one, they have no thoughts."""
        made = self.build()
        openings = dict[str, str]()
        for (prompt, text), (thoughts, rest) in self.written.items():
            head = text.partition(thoughts)[0] if thoughts and rest and thoughts in text else ""
            bare = self.parsed(prompt, text.removeprefix(head))
            if head.strip() and not any(each.is_reasoning for each in bare):
                openings[head.strip()] = prompt
        for opening, prompt in openings.items():
            assert made.begins in openings, (
                f"an answer to {prompt!r} has thoughts behind {opening!r} alone, and `begins` is "
                f"{made.begins!r}: stop strings would count within them"
            )
            around = tuple(made.around(prompt))
            wanted = (made.begins, made.ends_with(prompt, surely=False))
            assert around == wanted, f"around({prompt!r}) returns {around}, and is to be {wanted}"
        _check_marks(made, *openings, *(_ends(made, prompt)[1] for prompt, _ in self.written))

    def test_a_part_of_the_mark_right_before_it_is_a_thought(self) -> None:
        made = self.build()
        for (prompt, text), (thoughts, rest) in self.written.items():
            mark = made.ends_with(prompt, surely=False) or ""
            for part in (mark[:1], mark[:-1]):
                is_clear = part and (part + mark).find(mark) == len(part)
                if not (is_clear and thoughts and rest):
                    continue
                if not text.partition(mark)[0].rstrip().endswith(thoughts.rstrip()):
                    continue
                longer = text.replace(mark, part + mark, 1)
                for pieces in ([longer], [*longer]):
                    given = self.parsed(prompt, *pieces)
                    found = "".join(each.text for each in given if each.is_reasoning).rstrip()
                    assert found.endswith(part) and not found.endswith(mark), (
                        f"{longer!r} after {prompt!r}, in {len(pieces)} pieces, gives the thoughts "
                        f"{found!r}, to end with {part!r}: a letter that ends no mark may begin one"
                    )

    def check_written(self) -> None:
        """Also after prompts that begin the thoughts with the mark of other options."""
        super().check_written()
        made = self.build()
        _check_marks(made, made.begins, _ends(made, "")[1])
        for between in _BETWEEN if made.begins else ():
            assert self.begun(f"x{made.begins}{between}")[0], (
                f"after a prompt that ends with {made.begins!r} and {between!r} nothing is thoughts"
            )

    def begun(self, prompt: str) -> tuple[bool, str | None]:
        """Return whether text after a prompt is thoughts, and the mark at their end if it surely
        is; around() has that mark alone."""
        made = self.build()
        is_inside = all(each.is_reasoning for each in self.parsed(prompt, "because"))
        surely, around = made.ends_with(prompt, surely=True), made.around(prompt)
        assert (surely is not None) >= is_inside, f"ends_with({prompt!r}, surely=True) is None"
        assert (len(around) == 1) == (surely is not None), (
            f"around({prompt!r}) returns {around}, ends_with(surely=True) {surely!r}"
        )
        return is_inside, surely

    def test_the_work_grows_in_proportion_to_the_text(self) -> None:
        """And none of it is copied at each letter."""
        texts = [*(text for _, text in self.written), *PLAIN, *MARKS]
        for prompt in ("", "x\n<think>\n"):
            check_linear(partial(by_letters, self.parsed, prompt), texts, self.package)
        prompts = [prompt for prompt, _ in self.written if prompt]
        some = dict.fromkeys([*texts[:2], *texts[-1:], PLAIN[1], " ", *prompts])
        check_linear(lambda text: self.parsed("", f"{text}\u4e16"), some, self.package)
        made = self.build()
        check_linear(
            lambda text: [
                (made.parser(prompt), self.said(made, prompt)) for prompt in (text, f"{text}\u4e16")
            ],
            some,
            self.package,
        )
        one, many, usual = (
            items(partial(by_letters, self.parsed, prompt, text), self.package)
            for prompt, text in ((_LONG, "a"), (_LONG, "a" * _PIECES), ("", "a" * _PIECES))
        )
        assert many <= 2 * one + 2 * usual, (
            f"{_PIECES} pieces of an answer take {many} items of built-ins after a prompt of "
            f"{len(_LONG)} letters, one takes {one}: look at a prompt once"
        )

    def test_where_a_text_is_cut_does_not_matter(self) -> None:
        """Also where white space is beside the marks."""
        texts = [
            each
            for (_, text), both in self.written.items()
            for each in (f" \n{text}", text * 2, *(text.replace(s, f" {s}\n") for s in both if s))
        ]
        prompts = ("", "x\n<think>\n")
        for pieces, prompt in product(cut_texts(), prompts):
            self.check_cuts(pieces, prompt)
            whole = "".join(pieces)
            said = "".join(each.text for each in self.parsed(prompt, whole))
            marks = whole.count("<think>") + whole.count("</think>")
            assert marks or "".join(said.split()) == "".join(whole.split()), "text was lost"
        letters = [[*text] for text in texts]
        for pieces, prompt in product((*cut_texts(texts), *letters) if texts else (), prompts):
            self.check_cuts(pieces, prompt)

    def check_cuts(self, pieces: Sequence[str], prompt: str) -> None:
        """Check that pieces give what the whole gives."""
        whole = "".join(pieces)
        found, cut = self.parsed(prompt, whole), self.parsed(prompt, *pieces)
        assert cut == found, f"{whole!r} gives {found}, in the pieces {pieces} {cut}"


def _check_marks(made: ReasoningFormat, *marks: str | None) -> None:
    for mark in marks:
        is_like_one = mark and _LIKE_A_TOKEN.fullmatch(mark)
        assert not is_like_one or any(each in str(mark) for each in made.marks), (
            f"`marks` are {made.marks}, without {mark!r}: where it is a special token, the text "
            "that the parser reads would be without it"
        )


def _ends(made: ReasoningFormat, prompt: str) -> list[str | None]:
    return [made.ends_with(prompt, surely=surely) for surely in (True, False)]
