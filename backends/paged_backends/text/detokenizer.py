"""Incremental detokenization: text from tokens as they are generated, in whole characters.

For byte-level tokenizers, a token is a run of bytes; for others, windows of tokens are decoded.
"""

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
    """Like :class:`IncrementalDetokenizer`, by way of bytes.

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


_MAX_HELD = 3
"""A tail of up to three bytes may be an unfinished character, shown as that many U+FFFD at most."""
_CONTEXT = 12
"""Tokens kept before new ones: more than the bytes that can be held back, so that none is lost."""
_SHORT_CONTEXT = 4
"""The same if single bytes have tokens, because those tokens are held back themselves."""


class IncrementalDetokenizer:
    """Decodes one sequence's growing output, given the prompt that it follows.

    The pieces, joined, are what the decoded output adds to the decoded prompt. Only a short window
    of tokens is decoded at a time: tokens that were turned into text long ago cannot change what a
    new one looks like, while the few before it can (a leading space is dropped at the start of a
    text only; the bytes of one character may be spread over several tokens).

    Held back until certain, or until :meth:`flush`: U+FFFD at the end, which may be a character
    whose other bytes follow; and tokens for single bytes (SentencePiece's byte
    fallback), because a run of them is decoded as a whole, and invalid as a whole.
    """

    __slots__ = ("_base", "_byte_ids", "_context", "_decode", "_num_emitted", "_shows", "_window")

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt: Sequence[int],
        *,
        shows: Callable[[int], bool],
        byte_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Start after ``prompt``.

        Args:
            decode: returns the text of a whole output.
            shows: whether a token is shown in the text.
            byte_ids: tokens for one byte each.
        """
        self._decode = decode
        self._shows = shows
        self._byte_ids = byte_ids
        self._context = _SHORT_CONTEXT if byte_ids else _CONTEXT
        self._window = self._end_of(prompt)
        self._base = decode(self._window) if self._window else ""
        self._num_emitted: int | None = None
        """Characters of the window's text that were emitted, or are the prompt's; ``None``: the
        prompt's last character may still be unfinished."""

    def append(self, token_ids: Sequence[int], /) -> str:
        """Take new tokens and return the text that no later token can change."""
        shown = list(filter(self._shows, token_ids))
        self._window += shown
        if not shown or shown[-1] in self._byte_ids:
            return ""
        text = self._decode(self._window)
        held = _held(text)
        piece = self._advance(text, len(text) - held, ended=False)
        if len(self._window) > 2 * self._context and self._num_emitted is not None:
            window = self._window[-self._context :]
            kept = self._decode(window)
            if kept.endswith(text[len(text) - held :]):
                self._window, self._num_emitted = window, len(kept) - held
        return piece

    def flush(self) -> str:
        """Return the text held back; the sequence has ended."""
        text = self._decode(self._window) if self._window else ""
        return self._advance(text, len(text), ended=True)

    def _end_of(self, prompt: Sequence[int]) -> list[int]:
        """Return the last shown tokens, from before any run of bytes that ends the prompt."""
        context: list[int] = []
        for token_id in reversed(prompt):
            if not self._shows(token_id):
                continue
            if len(context) >= self._context and context[-1] not in self._byte_ids:
                break
            context.append(token_id)
        context.reverse()
        return context

    def _advance(self, text: str, end: int, *, ended: bool) -> str:
        """Emit ``text`` as far as ``end``."""
        if self._num_emitted is None:
            num_shared = _num_shared(self._base, text, end)
            if num_shared == end < len(self._base) and not ended:
                return ""
            self._num_emitted = num_shared
        piece = text[self._num_emitted : end]
        self._num_emitted = max(self._num_emitted, end)
        return piece


def _held(text: str) -> int:
    """Count the U+FFFD at the end, as far as they may be one unfinished character."""
    tail = text[-_MAX_HELD:]
    return len(tail) - len(tail.rstrip(_REPLACEMENT))


def _num_shared(base: str, text: str, end: int) -> int:
    """Return how many leading characters ``base`` and ``text[:end]`` have in common."""
    if text.startswith(base) and end >= len(base):
        return len(base)
    count = 0
    for one, other in zip(base, text[:end], strict=False):
        if one != other:
            break
        count += 1
    return count
