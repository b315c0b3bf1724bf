"""The text of one sequence as it grows, and the stop string that may end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paged_core.interfaces.tokenizer import Detokenizer


@dataclass(slots=True, eq=False)
class OutputText:
    """Turns one sequence's tokens into text and looks for its stop strings.

    Give each generated token to :meth:`append`, which returns the stop string that it completes, if
    any; call :meth:`finish` when the sequence ends for another reason. ``text`` is then final. Of
    several stop strings the one that is complete first counts, and of those the one that starts
    first, so that the result does not depend on how the text was split into tokens.

    For streaming, :meth:`take` returns text that no later token can take back: it is whole
    characters, and does not end in what may become a stop string.
    """

    detokenizer: Detokenizer
    stop: Sequence[str] = ()
    """Non-empty strings."""
    include_stop_str_in_output: bool = field(default=False, kw_only=True)
    """Cut the text after the stop string, not before it."""
    min_tokens: int = field(default=0, kw_only=True)
    """A stop string that is complete within this many tokens does not count."""
    text: str = field(default="", init=False)
    """The text so far, cut where a stop string was found."""
    num_tokens: int = field(default=0, init=False)
    """Tokens taken in; those after a stop string are not."""
    finished: bool = field(default=False, init=False)
    """A stop string was found or :meth:`finish` was called: the text is final."""
    _num_searched: int = field(default=0, init=False)
    """Leading characters of ``text`` in which no stop string ends that counts."""
    _num_taken: int = field(default=0, init=False)
    """Leading characters of ``text`` that :meth:`take` has returned."""

    def append(self, token_ids: Sequence[int], /) -> str | None:
        """Take new tokens, up to the one that completes a stop string; return that string.

        Raises:
            ValueError: the text is final already; nothing has changed.
        """
        if self.finished:
            raise ValueError("this output is finished and takes no more tokens")
        pieces = [(token_id,) for token_id in token_ids] if self.stop else [token_ids]
        for piece in pieces:
            self.num_tokens += len(piece)
            self.text += self.detokenizer.append(piece)
            found = self._search()
            if found is not None:
                return found
        return None

    def finish(self) -> str | None:
        """Take in what the detokenizer held back; return a stop string if that completes one.

        Calling it again, or after a stop string was found, changes nothing.
        """
        if self.finished:
            return None
        self.text += self.detokenizer.flush()
        found = self._search()
        self.finished = True
        return found

    def take(self) -> str:
        """Return the text that has become safe to return since the last call."""
        end = len(self.text)
        if not self.finished:
            end -= max((_overlap(self.text, stop) for stop in self.stop), default=0)
        piece = self.text[self._num_taken : end]
        self._num_taken = end
        return piece

    def _search(self) -> str | None:
        """Look for stop strings that end in the text not searched yet; cut the text at one."""
        start_of_new, self._num_searched = self._num_searched, len(self.text)
        if self.num_tokens <= self.min_tokens:
            return None
        found: list[tuple[int, int, str]] = []
        for stop in self.stop:
            start = self.text.find(stop, max(0, start_of_new - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        end, start, stop = min(found)
        self.text = self.text[: end if self.include_stop_str_in_output else start]
        self.finished = True
        return stop


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop`` without filling it."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
