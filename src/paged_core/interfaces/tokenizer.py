"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Detokenizer(Protocol):
    """Decodes one sequence's output as it grows; it never emits part of a character."""

    def append(self, token_ids: Sequence[int], /) -> str:
        """Take new tokens and return the text that no later token can change."""

    def flush(self) -> str:
        """Return the text held back; the sequence has ended."""


class Tokenizer(Protocol):
    """A model's tokenizer."""

    def encode(self, text: str, /) -> list[int]:
        """Return token ids, with the special tokens that the model expects around a prompt."""

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Return the text of a whole output."""

    def chat(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """Return the token ids of a conversation, formatted by the model's chat template.

        Raises:
            RequestError: the checkpoint has no chat template, or it refuses these messages.
        """

    def detokenizer(
        self, prompt: Sequence[int], /, *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """Return a new detokenizer for output that follows ``prompt``."""
