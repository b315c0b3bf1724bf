"""Log-probabilities in both of OpenAI's formats, and in vLLM's for prompts."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paged_core.text.outputs import Logprob
from paged_plugins.server.openai.protocol import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from paged_plugins.server.service import TokenPieces

_LOWEST = -9999.0
"""For minus infinity, which JSON does not have."""

Entries = Sequence[dict[int, Logprob] | None]
"""Per token, by token id: the token itself first, then the best; ``None``: nothing predicts it."""


class LogprobFormat:
    """Writes log-probabilities as one request wants them.

    In completions the texts of the tokens of a sequence, joined, are its text: a token within a
    character has none, and the one that completes the character has all of it. In chats, where the
    bytes of tokens are beside them, such tokens are named by these.

    Args:
        pieces: of tokens; ``None``: there is no tokenizer.
        top: how many best tokens it wants to see; -1: all.
        as_ids: tokens are written as ``token_id:17``.
    """

    def __init__(self, pieces: TokenPieces | None, top: int, *, as_ids: bool) -> None:
        self._pieces, self._top = pieces, None if top == -1 else top
        self._as_ids = as_ids or pieces is None
        self._places: dict[int, _Place] = {}
        """Where each sequence is, by its index."""

    def completion(
        self, index: int, entries: Entries, token_ids: Sequence[int], text: str, *, ends: bool
    ) -> CompletionLogprobs:
        """Return the format of completions.

        Args:
            index: of the sequence, of which these are the next tokens.
            token_ids: beside ``entries``.
            text: what they add to it.
            ends: they are its last ones.
        """
        place = self._places.setdefault(index, _Place())
        first = place.characters
        found = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        last = len(token_ids) - 1
        for number, (token_id, entry) in enumerate(zip(token_ids, entries, strict=True)):
            texts = self._texts(place, token_id, entry or (), ends=ends and number == last)
            token = texts[token_id]
            found.tokens.append(token)
            found.text_offset.append(place.characters)
            if not self._is_special(token_id) or text.startswith(token, place.characters - first):
                place.characters += len(token)
            found.token_logprobs.append(None if entry is None else finite(entry[token_id].logprob))
            found.top_logprobs.append(
                None
                if entry is None
                else {
                    name: finite(entry[key].logprob)
                    for key, name in self._told_apart(texts, token_id).items()
                }
            )
        return found

    def chat(self, entries: Entries) -> ChatLogprobs:
        """Return the format of chat."""
        return ChatLogprobs(content=[self._token(entry) for entry in entries if entry])

    def _token(self, entry: dict[int, Logprob]) -> TokenLogprob:
        token_id, chosen = next(iter(entry.items()))
        best = sorted(entry.items(), key=lambda item: -item[1].logprob)[: self._top]
        ids = dict.fromkeys([token_id, *(key for key, _ in best)])
        texts = self._told_apart({key: self._text(_Place(), key, ends=True) for key in ids})
        return TokenLogprob(
            token=texts[token_id],
            logprob=finite(chosen.logprob),
            bytes=list(self._bytes(token_id, texts[token_id])),
            top_logprobs=[
                TopLogprob(
                    token=texts[key],
                    logprob=finite(each.logprob),
                    bytes=list(self._bytes(key, texts[key])),
                )
                for key, each in best
            ],
        )

    def _texts(
        self, place: _Place, token_id: int, others: Iterable[int], *, ends: bool
    ) -> dict[int, str]:
        """Return the texts of a sequence's next token, first, and of those in its place."""
        before = place.part
        found = {token_id: self._text(place, token_id, ends=ends)}
        for each in others:
            if each != token_id:
                found[each] = self._text(_Place(before), each, ends=ends)
        return found

    def _text(self, place: _Place, token_id: int, *, ends: bool) -> str:
        if self._as_ids or self._pieces is None:
            return f"token_id:{token_id}"
        data = self._pieces[token_id]
        if self._pieces.is_special(token_id):
            return data.decode("utf-8", "replace")
        decoder = getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(place.part + data, ends)
        place.part = decoder.getstate()[0]
        return text

    def _told_apart(self, texts: Mapping[int, str], chosen: int | None = None) -> dict[int, str]:
        """Return the texts of tokens, or names as OpenAI and vLLM have them, no two the same."""
        named: dict[str, int] = {}
        for token_id, text in texts.items():
            data = self._bytes(token_id, text)
            if token_id != chosen and not self._as_ids and text.encode() != data:
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            named.setdefault(text if text not in named else f"token_id:{token_id}", token_id)
        return {token_id: name for name, token_id in named.items()}

    def _bytes(self, token_id: int, text: str) -> bytes:
        return text.encode() if self._pieces is None else self._pieces[token_id]

    def _is_special(self, token_id: int) -> bool:
        return self._pieces is not None and self._pieces.is_special(token_id)


@dataclass(slots=True)
class _Place:
    """Place in the text of a sequence."""

    part: bytes = b""
    """Bytes of a character that is not whole yet."""
    characters: int = 0
    """Characters before it."""


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
