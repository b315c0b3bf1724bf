"""Tokenising a prompt of any length in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paged_core.errors import RequestError

_CHARACTERS_PER_TOKEN = 4
_SLACK = 64
"""Tokens at the end of a part that may become fewer with what follows."""


def encode_within(
    encode: Callable[[str], Sequence[int]], text: str, max_tokens: int
) -> tuple[int, ...]:
    """Return the token ids of ``text``, without reading all of one that has far too many.

    Raises:
        RequestError: its beginning has more than ``max_tokens`` already.
    """
    end = _CHARACTERS_PER_TOKEN * max_tokens
    while end < len(text):
        if len(encode(text[:end])) > max_tokens + _SLACK:
            raise RequestError(
                f"the prompt has {len(text)} characters, of which the first {end} are more than "
                f"the {max_tokens} tokens that a sequence may have; shorten it"
            )
        end *= 4
    return tuple(encode(text))
