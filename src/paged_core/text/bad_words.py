"""What words that may not be generated are made of."""

from __future__ import annotations

from collections.abc import Iterable

from paged_core.interfaces.tokenizer import Tokenizer


def bad_words_ids(words: Iterable[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the token ids of words, each on its own and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        for written in (bare, f" {bare}"):
            found[tuple(tokenizer.encode(written, add_special_tokens=False))] = None
    return [token_ids for token_ids in found if token_ids]
