"""Slot ``tool_parser``: how a model writes calls of tools into its text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is no part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call of the function ``name``; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of the call that began last: an object of JSON, as the model writes it;
    the server mends it."""

    text: str


Piece = Text | CallBegins | Arguments


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called."""

    name: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments, an object in any case: also where none was said."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", {**self.parameters, "type": "object"})


Functions = Mapping[str, Mapping[str, Any]]
"""By name, the JSON schemas of the arguments of functions."""


class ToolParser(ABC):
    """Reads one answer as it grows.

    What it returns, joined, does not depend on where the text was cut. Text without calls comes out
    as it went in, and so does what looks like a call and is none.
    """

    @abstractmethod
    def feed(self, text: str, /) -> Sequence[Piece]:
        """Take more text; what may be the beginning of a call is held back."""

    @abstractmethod
    def end(self) -> Sequence[Piece]:
        """Return what was held back: the answer has ended."""


class ToolFormat(ABC):
    """A way to write calls. Its factory gets the options alone."""

    begins: tuple[str, ...] = ()
    """Marks that begin a call wherever they are, in thoughts that do not end, too."""
    marks: tuple[str, ...] = ()
    """All marks that are special tokens in some vocabularies: these tokens stay in the text."""
    has_thoughts: ClassVar[bool] = False
    """True if the grammar has the thoughts before a call: it is that of the whole answer."""

    def __init__(self, options: object = None, /) -> None:  # noqa: B027 - few have any
        """Take the options."""

    @abstractmethod
    def parser(self, functions: Functions, /) -> ToolParser:
        """Return a parser for an answer that may call these functions."""

    @abstractmethod
    def grammar(
        self, functions: Sequence[Function], /, *, parallel: bool, tokens: Mapping[str, int]
    ) -> str:
        """Return a grammar, in Lark's notation, of answers that consist of a call, or of several.

        Args:
            parallel: whether there may be several.
            tokens: ids of those of :attr:`marks` that are special tokens: the grammar has
                ``<[id]>`` where they are.
        """

    def beside(self, rule: str, tokens: Mapping[str, int], /) -> str:
        """Return, as the grammar writes it, an answer that is no call and follows a rule."""
        return rule
