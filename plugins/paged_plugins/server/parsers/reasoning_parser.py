"""Slot ``reasoning_parser``: how a model marks what it thinks before it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of an answer."""

    text: str
    is_reasoning: bool


class ReasoningParser(ABC):
    """Reads one answer as it grows; what it returns does not depend on where the text was cut."""

    @abstractmethod
    def feed(self, text: str, /) -> Sequence[Thought]:
        """Take more text; what may be a part of a mark is held back."""

    @abstractmethod
    def end(self) -> Sequence[Thought]:
        """Return what was held back: the answer has ended."""


class ReasoningFormat(ABC):
    """A way to mark thoughts. Its factory gets the options alone."""

    begins: str = ""
    """Mark that a model writes at the beginning of an answer that begins with thoughts."""
    marks: tuple[str, ...] = ()
    """Marks that are special tokens in some vocabularies: these tokens stay in the text."""

    def __init__(self, options: object = None, /) -> None:  # noqa: B027 - few have any
        """Take the options."""

    @abstractmethod
    def parser(self, prompt: str, /) -> ReasoningParser:
        """Return a parser for an answer to ``prompt``, which may have begun the thoughts."""

    @abstractmethod
    def ends_with(self, prompt: str, /, *, surely: bool) -> str | None:
        """Return the mark at the end of the thoughts in an answer to ``prompt``; ``None``: it has
        none.

        Args:
            surely: only if the prompt shows that the answer begins with thoughts.
        """

    def around(self, prompt: str, /) -> Sequence[str]:
        """Return the marks around the thoughts with which an answer to ``prompt`` may begin: one if
        it begins within them, none if an answer without thoughts cannot be told from one with."""
        if (mark := self.ends_with(prompt, surely=True)) is not None:
            return (mark,)
        mark = self.ends_with(prompt, surely=False)
        return () if mark is None or not self.begins else (self.begins, mark)
