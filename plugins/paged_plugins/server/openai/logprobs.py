"""Log-probabilities in both of OpenAI's formats, and in vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paged_core.text.outputs import Logprob
from paged_plugins.server.openai.protocol import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from paged_plugins.server.service import NO_CHARACTER, TokenBytes

_LOWEST = -9999.0
"""For minus infinity, which JSON does not have."""

Entries = Sequence[dict[int, Logprob] | None]
"""Per token, by token id: the token itself first, then the best; ``None``: nothing predicts it."""


class LogprobFormat:
    """Writes log-probabilities as one request wants them.

    Args:
        texts: of tokens; ``None``: there are none, or the request wants ``token_id:17``.
        top: how many best tokens it wants to see; -1: all.
        pieces: the bytes of tokens.
    """

    def __init__(
        self, texts: Mapping[int, str] | None, top: int, pieces: TokenBytes | None = None
    ) -> None:
        self._texts, self._top, self._pieces = texts, None if top == -1 else top, pieces

    def completion(
        self, entries: Entries, token_ids: Sequence[int], start: int, text: str
    ) -> tuple[CompletionLogprobs, int]:
        """Return the format of completions, and how many characters are before the next token.

        Args:
            token_ids: beside ``entries``.
            start: characters before the first token.
            text: what is shown from there on.
        """
        first = start
        found = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in zip(token_ids, entries, strict=True):
            token = self._text(token_id)
            found.tokens.append(token)
            found.text_offset.append(start)
            start += self._width(token_id, token, text, start - first)
            found.token_logprobs.append(None if entry is None else finite(entry[token_id].logprob))
            found.top_logprobs.append(
                None
                if entry is None
                else {self._text(key): finite(each.logprob) for key, each in entry.items()}
            )
        return found, start

    def _width(self, token_id: int, token: str, text: str, place: int) -> int:
        """Return how many characters of the text begin with a token."""
        if self._pieces is None or text.startswith(token, place):
            return len(token)
        if NO_CHARACTER in token:
            return len([byte for byte in self._pieces.of(token_id, token) if byte & 0xC0 != 0x80])
        return 0 if self._pieces.is_special(token_id) else len(token)

    def chat(self, entries: Entries) -> ChatLogprobs:
        """Return the format of chat."""
        return ChatLogprobs(content=[self._token(entry) for entry in entries if entry])

    def _token(self, entry: dict[int, Logprob]) -> TokenLogprob:
        token_id, chosen = next(iter(entry.items()))
        best = sorted(entry.items(), key=lambda item: -item[1].logprob)[: self._top]
        text = self._text(token_id)
        return TokenLogprob(
            token=text,
            logprob=finite(chosen.logprob),
            bytes=self._bytes(token_id, text),
            top_logprobs=[
                TopLogprob(token=text, logprob=finite(each.logprob), bytes=self._bytes(key, text))
                for key, text, each in ((key, self._text(key), each) for key, each in best)
            ],
        )

    def _bytes(self, token_id: int, text: str) -> list[int]:
        return list(text.encode() if self._pieces is None else self._pieces.of(token_id, text))

    def _text(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._texts is None else self._texts[token_id]


def prompt_logprobs(entries: Entries | None) -> PromptLogprobs | None:
    """Return the log-probabilities of a prompt, as vLLM writes them."""
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            token_id: PromptLogprob(
                logprob=finite(found.logprob), rank=found.rank, decoded_token=found.decoded_token
            )
            for token_id, found in entry.items()
        }
        for entry in entries
    ]


def finite(logprob: float) -> float:
    """Return a number that JSON has."""
    return max(_LOWEST, logprob)  # in this order for NaN
