"""Incremental detokenization for byte-level tokenizers, where a token is a run of bytes."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
_NUM_CONTEXT_BYTES = 4
"""As many as the longest character has: fewer could miss the start of the last one."""


class TokenBytes(dict[int, bytes]):
    """The bytes of each token of a byte-level vocabulary, cached; empty for unknown ids."""

    def __init__(self, id_to_token: Callable[[int], str | None]) -> None:
        super().__init__()
        self._id_to_token = id_to_token
        self._bytes_by_letter = _bytes_by_letter()

    def __missing__(self, token_id: int) -> bytes:
        token = self._id_to_token(token_id) or ""
        try:
            found = bytes([self._bytes_by_letter[letter] for letter in token])
        except KeyError:  # an added token: its text is its content
            found = token.encode("utf-8")
        self[token_id] = found
        return found


class ByteDetokenizer:
    """Like :class:`~paged_backends.text.detokenizer.IncrementalDetokenizer`, by way of bytes.

    Invalid bytes become U+FFFD by the same rule (one for each maximal part of a character) in
    Python and in the tokenizers library, so that the pieces join to what that library decodes.
    """

    __slots__ = ("_decoder", "_hidden_ids", "_num_shown", "_token_bytes")

    def __init__(
        self, token_bytes: TokenBytes, prompt: Sequence[int], *, hidden_ids: frozenset[int]
    ) -> None:
        """Start after ``prompt``; ``hidden_ids`` are left out of the text."""
        self._token_bytes = token_bytes
        self._hidden_ids = hidden_ids
        self._decoder = getincrementaldecoder("utf-8")("replace")
        context = b""
        for token_id in reversed(prompt):
            if len(context) >= _NUM_CONTEXT_BYTES:
                break
            if token_id not in hidden_ids:
                context = token_bytes[token_id] + context
        self._decoder.decode(context)
        dangling = self._decoder.getstate()[0]
        self._num_shown = len(dangling.decode("utf-8", "replace"))
        """U+FFFD shown for the bytes within a character that end the prompt: not output. (Two, if
        they are the first of a surrogate.)"""

    def append(self, token_ids: Sequence[int], /) -> str:
        """Take new tokens and return the text that no later token can change."""
        hidden, token_bytes = self._hidden_ids, self._token_bytes
        data = b"".join([token_bytes[token] for token in token_ids if token not in hidden])
        return self._own(self._decoder.decode(data))

    def flush(self) -> str:
        """Return the text held back; the sequence has ended."""
        return self._own(self._decoder.decode(b"", final=True))

    def _own(self, piece: str) -> str:
        """Return a piece without the U+FFFD of the prompt, with which only the first may begin."""
        if piece and self._num_shown:
            shown = _REPLACEMENT * self._num_shown
            self._num_shown = 0
            return piece.removeprefix(shown)
        return piece


def _bytes_by_letter() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are written as themselves, others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update((chr(0x100 + number), byte) for number, byte in enumerate(others))
    return letters
