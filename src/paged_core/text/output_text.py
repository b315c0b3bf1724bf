"""The text of one sequence as it grows, and the stop string that may end it."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.interfaces.tokenizer import Detokenizer


class OutputText:
    """Turns one sequence's tokens into text and looks for its stop strings.

    Feed it each drawn token with :meth:`append`, which names the stop string that is complete with
    it, if any; call :meth:`finish` when the sequence ends for another reason. ``text`` is then
    final: cut before the stop string, or after it if that is to be kept. Of several stop strings
    the one that is complete first counts, and of those the one that starts first: so the result
    does not depend on how the text was split into tokens.

    For streaming, :meth:`take` hands out text that no later token can take back: it is whole
    characters, and it does not end in what may become a stop string.
    """

    __slots__ = (
        "_detokenizer",
        "_keep_stop",
        "_min_tokens",
        "_num_taken",
        "_searched",
        "_stop",
        "finished",
        "num_tokens",
        "text",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Start without any text.

        Args:
            stop: non-empty strings.
            include_stop_str_in_output: keep the stop string in the text.
            min_tokens: a stop string that is complete within this many tokens does not count.
        """
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._keep_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._searched = 0
        """Characters of the text in which no stop string ends that counts."""
        self._num_taken = 0
        self.text = ""
        """The text so far, cut where a stop string was found."""
        self.num_tokens = 0
        """Tokens taken in; those after a stop string are not."""
        self.finished = False
        """A stop string was found or :meth:`finish` was called: the text is final."""

    def append(self, token_ids: Sequence[int], /) -> str | None:
        """Take new tokens, up to the one that completes a stop string; return that string.

        Raises:
            ValueError: the text is final already; nothing has changed.
        """
        if self.finished:
            raise ValueError("this output is finished and takes no more tokens")
        if not self._stop:
            self.num_tokens += len(token_ids)
            self.text += self._detokenizer.append(token_ids)
            return None
        for token_id in token_ids:
            self.num_tokens += 1
            self.text += self._detokenizer.append((token_id,))
            found = self._search()
            if found is not None:
                return found
        return None

    def finish(self) -> str | None:
        """Take in what the detokenizer held back; return a stop string if that completes one.

        The sequence has ended in another way: at its length, at a stop token, or given up. Calling
        it again, or after a stop string was found, changes nothing.
        """
        if self.finished:
            return None
        self.text += self._detokenizer.flush()
        found = self._search()
        self.finished = True
        return found

    def take(self) -> str:
        """Return the text that has become safe to hand out since the last call."""
        end = self.num_safe
        piece = self.text[self._num_taken : end]
        self._num_taken = end
        return piece

    @property
    def num_safe(self) -> int:
        """Leading characters of ``text`` that will not be taken back; it never falls."""
        if self.finished or not self._stop:
            return len(self.text)
        return len(self.text) - max(_overlap(self.text, stop) for stop in self._stop)

    def _search(self) -> str | None:
        """Look for stop strings that end in the text not searched yet; cut the text at one."""
        start_of_new, self._searched = self._searched, len(self.text)
        if self.num_tokens <= self._min_tokens:
            return None
        found: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = self.text.find(stop, max(0, start_of_new - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                found = candidate if found is None else min(found, candidate)
        if found is None:
            return None
        end, start, stop = found
        self.text = self.text[: end if self._keep_stop else start]
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
