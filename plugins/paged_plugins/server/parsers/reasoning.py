"""Thoughts between tags, as most models that think write them."""

from __future__ import annotations

from collections.abc import Sequence

from paged_plugins.server.parsers.json_text import held_back
from paged_plugins.server.parsers.reasoning_parser import (
    ReasoningFormat,
    ReasoningParser,
    Thought,
)

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser(ReasoningParser):
    """Reads one answer; white space around the thoughts is dropped.

    Args:
        inside: the answer begins with thoughts.
    """

    def __init__(self, *, inside: bool) -> None:
        self._held = ""
        self._spaces: list[str] = []
        """White space behind it, which is looked at when something else comes."""
        self._inside = self._skips = inside
        self._may_open = True
        """True while nothing but white space has come: the first mark may follow."""

    def feed(self, text: str, /) -> Sequence[Thought]:
        if (self._may_open or self._inside) and not self._held.strip() and not text.strip():
            self._spaces.append(text)
            return []
        self._take(text)
        found: list[Thought] = []
        while self._step(found):
            pass
        if self._held.isspace():
            self._spaces, self._held = [self._held], ""
        return found

    def end(self) -> Sequence[Thought]:
        self._take("")
        found: list[Thought] = []
        self._add(self._held, found)
        self._held = ""
        return found

    def _take(self, text: str) -> None:
        self._held = "".join((self._held, *self._spaces, text))
        self._spaces.clear()

    def _step(self, found: list[Thought]) -> bool:
        """Pass on what is sure; whether to look again."""
        if self._may_open:
            bare = self._held.lstrip()
            if bare.startswith(OPEN):
                self._held, self._inside, self._skips = bare[len(OPEN) :], True, True
            elif OPEN.startswith(bare):  # or nothing at all
                return False
            self._may_open = False
            return True
        if not self._inside:
            self._add(self._held, found)
            self._held = ""
            return False
        before, mark, after = self._held.partition(CLOSE)
        if mark:
            self._add(before.rstrip(), found)
            self._held, self._inside, self._skips = after, False, True
            return True
        kept = held_back(before, CLOSE)
        bare = before[: len(before) - kept].rstrip()
        self._add(bare, found)  # white space before the mark is dropped
        self._held = before[len(bare) :]
        return False

    def _add(self, text: str, found: list[Thought]) -> None:
        if self._skips:
            text = text.lstrip()
            self._skips = not text
        if text:
            found.append(Thought(text, self._inside))


class ThinkFormat(ReasoningFormat):
    """Marks that the model or the prompt writes: ``qwen3`` and many others."""

    begins = OPEN
    marks = (OPEN, CLOSE)
    always = False
    """True if an answer begins with thoughts although no mark says so."""

    def parser(self, prompt: str, /) -> ThinkParser:
        return ThinkParser(inside=self._begins_inside(prompt))

    def ends_with(self, prompt: str, /, *, surely: bool) -> str | None:
        if self._begins_inside(prompt):
            return CLOSE
        is_closed = prompt.rstrip().endswith(CLOSE)
        return None if surely or is_closed else CLOSE

    def _begins_inside(self, prompt: str) -> bool:
        end = prompt.rstrip()
        return end.endswith(OPEN) or (self.always and not end.endswith(CLOSE))


class DeepseekR1Format(ThinkFormat):
    """The first mark may be missing everywhere."""

    always = True


class NoReasoningFormat(ReasoningFormat):
    """A model that does not think, or whose thoughts are a part of its answer."""

    def parser(self, prompt: str, /) -> ReasoningParser:
        return _NoThoughts()

    def ends_with(self, prompt: str, /, *, surely: bool) -> str | None:
        return None


class _NoThoughts(ReasoningParser):
    def feed(self, text: str, /) -> Sequence[Thought]:
        return [Thought(text, is_reasoning=False)] if text else []

    def end(self) -> Sequence[Thought]:
        return []
