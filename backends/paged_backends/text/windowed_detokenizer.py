"""Incremental detokenization of any tokenizer: windows of tokens are decoded as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
MAX_HELD = 3
"""A tail of up to three bytes may be an unfinished character, shown as that many U+FFFD at most."""
_CONTEXT = 12
"""Tokens kept before new ones: more than the bytes that can be held back, so that none is lost."""
_SHORT_CONTEXT = 4
"""The same if single bytes have tokens, because those tokens are held back themselves."""


class WindowedDetokenizer:
    """Decodes one sequence's growing output, given the prompt that it follows.

    The pieces, joined, are what the decoded output adds to the decoded prompt. Only a short window
    of tokens is decoded at a time: tokens that were turned into text long ago cannot change what a
    new one looks like, while the few before it can (a leading space is dropped at the start of a
    text only; the bytes of one character may be spread over several tokens).

    Held back until certain, or until :meth:`flush`: U+FFFD at the end, which may be a character
    whose other bytes follow; and tokens for single bytes (SentencePiece's byte
    fallback), because a run of them is decoded as a whole, and invalid as a whole.

    A decoder that looks across tokens has a ``reach``: so many characters are held back, and the
    window grows until its text is that of all tokens for twice as many before them.
    """

    __slots__ = (
        *("_base", "_byte_ids", "_context", "_decode", "_num_emitted", "_reach", "_shows"),
        "_window",
    )

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt: Sequence[int],
        *,
        shows: Callable[[int], bool],
        byte_ids: frozenset[int] = frozenset(),
        reach: int | None = 0,
    ) -> None:
        """Start after ``prompt``.

        Args:
            decode: returns the text of a whole output.
            shows: whether a token is shown in the text.
            byte_ids: tokens for one byte each.
            reach: characters at the end of a text that later tokens may change, beside those of
                an unfinished one; ``None``: any.
        """
        self._decode = decode
        self._reach = reach
        self._shows = shows
        self._byte_ids = byte_ids
        self._context = (_SHORT_CONTEXT if byte_ids else _CONTEXT) + 3 * (reach or 0)
        self._window = self._end_of(prompt) if reach == 0 else list(filter(shows, prompt))
        self._base = decode(self._window) if self._window else ""
        self._num_emitted: int | None = None
        """Characters of the window's text that were emitted, or are the prompt's; ``None``: the
        prompt's last character may still be unfinished."""

    def append(self, token_ids: Sequence[int], /) -> str:
        """Take new tokens and return the text that no later token can change."""
        shown = list(filter(self._shows, token_ids))
        self._window += shown
        if not shown or shown[-1] in self._byte_ids or self._reach is None:
            return ""
        text = self._decode(self._window)
        held = min(self._reach, len(text)) or _held(text)
        piece = self._advance(text, len(text) - held, ended=False)
        if len(self._window) > 2 * self._context and self._num_emitted is not None:
            window, left = self._end_of(self._window), len(text) - self._num_emitted
            kept, same = self._decode(window), left + 2 * self._reach
            if same <= len(text) and kept.endswith(text[len(text) - same :]):
                self._window, self._num_emitted = window, len(kept) - left
        return piece

    def flush(self) -> str:
        """Return the text held back; the sequence has ended."""
        text = self._decode(self._window) if self._window else ""
        return self._advance(text, len(text), ended=True)

    def _end_of(self, token_ids: Sequence[int]) -> list[int]:
        """Return the last shown tokens, which do not begin within a run of bytes."""
        context: list[int] = []
        for token_id in reversed(token_ids):
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
    tail = text[-MAX_HELD:]
    return len(tail) - len(tail.rstrip(REPLACEMENT))


def _num_shared(base: str, text: str, end: int) -> int:
    """Return how many leading characters ``base`` and ``text[:end]`` have in common.

    A run of bytes that is invalid with those of the output has a U+FFFD for each of ``base`` too.
    """
    if text.startswith(base) and end >= len(base):
        return len(base)
    count = 0
    for one, other in zip(base, text[:end], strict=False):
        if one != other:
            break
        count += 1
    left = base[count:]
    marks = "" if REPLACEMENT in left else REPLACEMENT * len(left.encode(errors="replace"))
    return count + len(marks) if text.startswith(marks, count) else count
