"""Slot ``grammar``: which tokens may come next, so that an output gets the form that it must have.

A form is compiled once and shared; each sequence has a matcher, which follows its tokens. A mask is
a row of bits: bit ``t % 32`` of word ``t // 32`` says whether token ``t`` may come next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from paged_core.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CANNOT_GO_ON = "structured_outputs cannot be followed any further"
"""First words of an executor where the form itself, and no fault of a component, ends a sequence:
no token is left, or the form takes more than the component allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a model, as far as a grammar must know them."""

    token_bytes: Sequence[bytes | None]
    """Bytes that each token adds to a text, in UTF-8 cut anywhere; ``None``: it is no part
    of a text, such as a special token, and may never come within a form."""
    eos_token_ids: frozenset[int]
    """Tokens that end a sequence; there is one at least."""
    encode: Callable[[str], list[int]]
    """The token ids of a text, without special ones."""


@runtime_checkable
class SupportsVocabulary(Protocol):
    """A tokenizer whose tokens are pieces of text."""

    def token_texts(self, size: int, /) -> list[bytes | None]:
        """Return the bytes of the tokens below ``size``, as :class:`Vocabulary` has them.

        Raises:
            RequestError: its tokens are no pieces of text.
        """


class Matcher(ABC):
    """Follows one sequence; used by one thread at a time."""

    @abstractmethod
    def accept(self, token_id: int, /) -> None:
        """Go on by a token, which is none that ends the sequence.

        Raises:
            ValueError: it may not come here.
            RequestError: the form takes more from here on than the component allows.
        """

    @property
    @abstractmethod
    def is_at_end(self) -> bool:
        """True if what was accepted is whole, so that the sequence may end here."""


class CompiledGrammar(ABC):
    """A form, compiled for one vocabulary. Any thread may use it."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """Return a matcher that has accepted nothing yet."""


class GrammarBackend(ABC):
    """Compiles forms for one vocabulary, and fills masks."""

    @abstractmethod
    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        """Compile a form; ``form.after`` is none of its business. Any thread may call it.

        What the form says is either all enforced, or refused.

        Raises:
            RequestError: it cannot be; the message says which part of it.
        """

    @abstractmethod
    def fill(self, matchers: Sequence[Matcher], masks: NDArray[np.int32], /) -> Mapping[int, str]:
        """Write the mask of each matcher to its row of ``masks`` [R, ceil(V / 32)], in one call.

        Tokens that end a sequence are set where the matcher is at an end, and nowhere else.

        Returns:
            By row, why its form cannot be followed any further: its sequence fails.
        """
