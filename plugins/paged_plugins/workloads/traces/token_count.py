"""How many tokens a text has."""

from __future__ import annotations

from collections.abc import Callable

TokenCount = Callable[[str], int]
"""Counts with a model's tokenizer, or estimates."""

CHARACTERS_PER_TOKEN = 4
"""Of English text, roughly, with vocabularies of 30,000 to 200,000 tokens."""


def estimated_tokens(text: str) -> int:
    """Return the tokens of a text without a tokenizer: its characters by four, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)
