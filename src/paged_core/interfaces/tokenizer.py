"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol


class Detokenizer(Protocol):
    """Decodes one sequence's output as it grows; it never emits part of a character."""

    def append(self, token_ids: Sequence[int], /) -> str:
        """Take new tokens and return the text that no later token can change."""

    def flush(self) -> str:
        """Return the text held back; the sequence has ended."""


class Tokenizer(Protocol):
    """A model's tokenizer."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        """Return token ids, by default with the special tokens that belong around a prompt."""

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Return the text of a whole output."""

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], /, *, tokenize: bool = True, **options: Any
    ) -> list[int] | str:
        """Return a conversation as the model's chat template formats it: token ids, or text.

        Raises:
            RequestError: the checkpoint has no chat template, or it refuses these messages.
        """

    def detokenizer(
        self,
        prompt: Sequence[int],
        /,
        *,
        skip_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
    ) -> Detokenizer:
        """Return a new detokenizer for output that follows ``prompt``.

        Args:
            shown_ids: special tokens that are in the text all the same.
        """
