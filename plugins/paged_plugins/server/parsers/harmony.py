"""Harmony, the format of gpt-oss: an answer is a series of messages, each with a channel.

What is on the channel ``analysis``, or goes to a tool that is no function of the request, is
thought; a message to ``functions.f`` is a call; all else is the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from paged_plugins.server.parsers.call_grammar import calls_grammar, literals
from paged_plugins.server.parsers.json_text import held_back, parts
from paged_plugins.server.parsers.marked_calls import Marks, Reader
from paged_plugins.server.parsers.named_calls import NamedReader
from paged_plugins.server.parsers.reasoning_parser import (
    ReasoningFormat,
    ReasoningParser,
    Thought,
)
from paged_plugins.server.parsers.tool_formats import MarkedFormat, Written
from paged_plugins.server.parsers.tool_parser import Function, Functions

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_ROLE = "assistant"
_FINAL = f"{CHANNEL}final{MESSAGE}"
_OUTSIDE = (START, CHANNEL, END, CALL, RETURN)
_BORDER = re.compile("|".join(map(re.escape, _OUTSIDE)))
_LONGEST_HEADER = 512
_HEADER_SO_FAR = re.compile(r"(?:[a-z]*(?=\s|<|$))?\s*(?:t|to|to=[^\s<]*)?\s*(?:<[^{}\n]*)?")
"""Any beginning of a header: a role, a recipient, then marks and what is between them."""
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_FUNCTION = "functions."


class HarmonyParser(ReasoningParser):
    """Reads one answer.

    A call comes out as ``<|channel|>commentary to=functions.f<|message|>...<|call|>``, however its
    header was written.

    Args:
        begun: the part of the first message that the prompt has.
    """

    def __init__(self, begun: str) -> None:
        self._held = ""
        self._mark = ""
        """Mark that began the header."""
        self._header: str | None = None
        """So far, without that; ``None``: it is in a text."""
        self._is_reasoning = self._is_call = False
        self._is_new = False
        """True until there is text in a message."""
        self._said: set[bool] = set()
        """True if there were thoughts; false if there was an answer."""
        if begun:
            self._header = ""
            self.feed(begun.removeprefix(_ROLE))

    def feed(self, text: str, /) -> Sequence[Thought]:
        found: list[Thought] = []
        for part in parts(text):
            self._held += part
            while self._in_text(found) if self._header is None else self._in_header(found):
                pass
        return found

    def end(self) -> Sequence[Thought]:
        found: list[Thought] = []
        is_cut = self._header is not None and (self._mark or "<" in self._header)
        self._add(self._held if is_cut else (self._header or "") + self._held, found)
        self._held, self._header = "", None
        return found

    def _in_text(self, found: list[Thought]) -> bool:
        mark = _BORDER.search(self._held)
        if mark is None:
            sure = len(self._held) - held_back(self._held, *_OUTSIDE)
            self._add(self._held[:sure], found)
            self._held = self._held[sure:]
            return False
        self._add(self._held[: mark.start()], found)
        self._held = self._held[mark.end() :]
        if self._is_call:
            found.append(Thought(CALL, is_reasoning=False))
        self._is_reasoning = self._is_call = False
        if mark[0] in (START, CHANNEL):
            self._mark, self._header = mark[0], ""
        return True

    def _in_header(self, found: list[Thought]) -> bool:
        assert self._header is not None
        self._header, self._held = self._header + self._held, ""
        header, mark, rest = self._header.partition(MESSAGE)
        longest = _LONGEST_HEADER + (0 if mark else len(MESSAGE) - 1)
        if len(header) > longest or not _HEADER_SO_FAR.fullmatch(header):
            self._add(self._mark, found)
            self._held, self._mark, self._header = self._header, "", None
            return True
        if not mark:
            return False
        self._held, self._mark, self._header = rest, "", None
        self._is_new = True
        recipient = _RECIPIENT.search(header)
        self._is_call = recipient is not None and recipient[1].startswith(_FUNCTION)
        is_analysis = "analysis" in header.rpartition(CHANNEL)[2]
        self._is_reasoning = not self._is_call and (recipient is not None or is_analysis)
        if recipient is not None and self._is_call:
            written = f"{CHANNEL}commentary to={recipient[1]}{MESSAGE}"
            found.append(Thought(written, is_reasoning=False))
        return True

    def _add(self, text: str, found: list[Thought]) -> None:
        if not text:
            return
        if self._is_new and not self._is_call and self._is_reasoning in self._said:
            text = "\n" + text  # another message
        if not self._is_call:
            self._said.add(self._is_reasoning)
        self._is_new = False
        found.append(Thought(text, self._is_reasoning))


class HarmonyReasoningFormat(ReasoningFormat):
    """Channels of gpt-oss."""

    marks = _MARKS

    def parser(self, prompt: str, /) -> ReasoningParser:
        return HarmonyParser(self._begun(prompt))

    def ends_with(self, prompt: str, /, *, surely: bool) -> str | None:
        begun = self._begun(prompt)
        return None if begun.endswith(_FINAL) or (surely and not begun) else _FINAL

    def _begun(self, prompt: str) -> str:
        """Return the part of a message that the prompt ends with; empty: it ends with none."""
        _, mark, begun = prompt.rpartition(START)
        has_ended = any(each in begun for each in (END, CALL, RETURN))
        return begun if mark and not has_ended else ""


class GptOssFormat(MarkedFormat):
    """``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>``."""

    layout = Marks(begins=(CHANNEL, START, f" to={_FUNCTION}"), around=(), ends=(CALL, END, RETURN))
    inner_marks = (MESSAGE, CONSTRAIN)
    written = Written(f"{CHANNEL}commentary to={_FUNCTION}{{}} {CONSTRAIN}json{MESSAGE}", "")
    has_thoughts = True
    _heads: Mapping[str, re.Pattern[str]] = {
        begin: re.compile(rf"{before}([^\s<>{{}}\"]+)[^{{]*?{re.escape(MESSAGE)}")
        for begin, before in {
            CHANNEL: r"\s*\w+\s+to=functions\.",
            START: rf"{_ROLE}(?:{re.escape(CHANNEL)}\s*\w*)?\s+to=functions\.",
            f" to={_FUNCTION}": "",
        }.items()
    }

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        return NamedReader(self._heads[mark])

    def beside(self, rule: str, tokens: Mapping[str, int], /) -> str:
        return f"thoughts? {literals(tokens)(_FINAL)} {rule}"

    def grammar(
        self, functions: Sequence[Function], /, *, parallel: bool, tokens: Mapping[str, int]
    ) -> str:
        """Return a grammar of one call: ``<|call|>``, which ends it, ends the answer, too."""
        text = literals(tokens)

        def write(name: str, function: Function) -> Sequence[str]:
            return self.rules(name, function, self.written, text)

        calls = calls_grammar(functions, write, parallel=False, around=("thoughts?", ""))
        end = f"{END}{START}{_ROLE}"
        if {END, START} & tokens.keys():
            inside = rf"/(.|\n)*/ {text(end)}"
        else:
            calls += f"\nthought[suffix={text(end)}]: /(.|\\n)*/"
            inside = "thought"
        return f"{calls}\nthoughts: {text(f'{CHANNEL}analysis{MESSAGE}')} {inside}"
