"""A checkpoint's own tokenizer, once it is loaded.

It encodes prompts, decodes outputs whole or as they are generated, and formats conversations. The
tokens of a byte-level vocabulary are runs of bytes, and are decoded as such.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from paged_backends.checkpoint.json_file import one_line
from paged_backends.text.chat_template import ChatTemplate
from paged_backends.text.windowed_detokenizer import WindowedDetokenizer
from paged_core.errors import CheckpointError, PagedCoreError, RequestError

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
"""Tokens of SentencePiece for single bytes."""
_SAMPLE = '{"a": [1.5, "\u00e9\u4e16"],\n  "b": null}'
_NONE: Mapping[Any, Any] = MappingProxyType({})
_REPLACEMENT = "\ufffd"
_NUM_CONTEXT_BYTES = 4
"""As many as the longest character has: fewer could miss the start of the last one."""


class TokenBytes(dict[int, bytes]):
    """The bytes of each token of a byte-level vocabulary, cached; empty for unknown ids.

    Args:
        added: contents of tokens that are found in a text before it is split: they are that text,
            whatever bytes its letters stand for in the vocabulary.
    """

    def __init__(
        self, id_to_token: Callable[[int], str | None], added: Mapping[int, str] = _NONE
    ) -> None:
        super().__init__()
        self.update({token_id: content.encode() for token_id, content in added.items()})
        self._id_to_token = id_to_token
        self._bytes_by_letter = _bytes_by_letter()

    def __missing__(self, token_id: int) -> bytes:
        token = self._id_to_token(token_id) or ""
        try:
            found = bytes([self._bytes_by_letter[letter] for letter in token])
        except KeyError:  # it was added to the vocabulary itself
            found = token.encode("utf-8")
        self[token_id] = found
        return found


class ByteDetokenizer:
    """Decodes one sequence's growing output by the bytes of its tokens, after its prompt.

    The pieces, joined, are what the decoded output adds to the decoded prompt; the end of a piece
    may be held back until a character is whole, or until :meth:`flush`.

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


@dataclass
class CheckpointTokenizer:
    """Implements :class:`paged_core.interfaces.tokenizer.Tokenizer` for a checkpoint."""

    encode_text: Callable[[str, bool], list[int]]
    """Token ids of a text, with or without the special tokens around a prompt."""
    decode_ids: Callable[[Sequence[int]], str]
    """The text of token ids, special tokens included."""
    special_ids: frozenset[int]
    """Tokens that ``skip_special_tokens`` leaves out."""
    byte_ids: frozenset[int] = frozenset()
    """Tokens for one byte each."""
    template: ChatTemplate = field(default_factory=lambda: ChatTemplate({}, {}))
    vocab_size: int | None = None
    """Number of tokens with added ones, if it is known."""
    is_known: Callable[[int], bool] = lambda _: True
    """Tells if there is a token of this id; the model's vocabulary may be larger."""
    token_bytes: TokenBytes | None = None
    """The bytes of each token, if the tokenizer is byte-level."""
    id_to_token: Callable[[int], str | None] = lambda _: None
    """A token as the vocabulary writes it."""
    reach: int | None = 0
    """See :class:`WindowedDetokenizer`."""

    def info(self) -> dict[str, str]:
        """Return the special tokens by what they are for, and the chat template."""
        found = dict(self.template.special_tokens)
        if (template := self.template.sources.get("default")) is not None:
            found["chat_template"] = template
        return found

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        """Return token ids, by default with the special tokens that belong around a prompt."""
        return self.encode_text(_encodable(text), add_special_tokens)

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Return the text of a whole output."""
        hidden = self.special_ids if skip_special_tokens else frozenset()
        return self.decode_ids([token_id for token_id in token_ids if token_id not in hidden])

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool = True, **options: Any
    ) -> list[int] | str:
        """Return a conversation as the chat template formats it: token ids, or text.

        Args:
            options: of :meth:`ChatTemplate.render`; as in ``transformers``, no answer is begun
                unless ``add_generation_prompt`` is set.

        Raises:
            RequestError: the checkpoint has no chat template, or it refuses these messages.
        """
        text = self.template.render(conversation, **{"add_generation_prompt": False, **options})
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def token_texts(self, size: int, /) -> list[bytes | None]:
        """Return the bytes that each token below ``size`` adds to a text; ``None``: it adds none.

        Raises:
            RequestError: the tokens are no pieces of text.
        """
        if self.token_bytes is not None:
            found: list[bytes | None] = [self.token_bytes[token_id] for token_id in range(size)]
        elif self.byte_ids:
            found = [_piece_bytes(self.id_to_token(token_id)) for token_id in range(size)]
        else:
            found = [None] * size
        texts = [None if n in self.special_ids else text or None for n, text in enumerate(found)]
        ids = self.encode(_SAMPLE, add_special_tokens=False)
        read = b"".join([(texts[token_id] if token_id < size else None) or b"" for token_id in ids])
        if read.lstrip() != _SAMPLE.encode():  # some put a space before a text
            raise RequestError("the tokens of its tokenizer are no pieces of text")
        return texts

    def detokenizer(
        self,
        prompt: Sequence[int],
        /,
        *,
        skip_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
    ) -> ByteDetokenizer | WindowedDetokenizer:
        """Return a new detokenizer for output that follows ``prompt``."""
        hidden = self.special_ids.difference(shown_ids) if skip_special_tokens else frozenset()
        if self.token_bytes is not None:
            return ByteDetokenizer(self.token_bytes, prompt, hidden_ids=hidden)

        def shows(token_id: int) -> bool:
            return token_id not in hidden and self.is_known(token_id)

        return WindowedDetokenizer(
            self.decode_ids, prompt, shows=shows, byte_ids=self.byte_ids, reach=self.reach
        )


def _encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds half of a surrogate pair at character {error.start}, which is not "
            "valid Unicode; send whole characters"
        ) from error
    return text


def _piece_bytes(piece: str | None) -> bytes:
    """Return the bytes of a piece of SentencePiece, which writes a space as U+2581."""
    if piece is None:
        return b""
    if len(piece) == 6 and piece in BYTES:
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode("utf-8", "replace")


class FastCodec:
    """A tokenizer of the ``tokenizers`` library as a :class:`CheckpointTokenizer` calls it.

    Args:
        token_bytes: of a byte-level vocabulary.
        same: tokens with the text of another, by their ids.
        clean: changes each decoded text.
    """

    def __init__(
        self,
        fast: FastTokenizer,
        token_bytes: TokenBytes | None = None,
        same: Mapping[int, int] = _NONE,
        clean: Callable[[str], str] | None = None,
    ) -> None:
        self._fast, self._token_bytes, self._same, self._clean = fast, token_bytes, same, clean

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""
        with library_errors(cannot_encode):
            # A batch of one: `encode` keeps all other threads waiting, and looks for offsets, too.
            (found,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids: list[int] = found.ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        if self._token_bytes is not None:
            data = b"".join([self._token_bytes[each] for each in token_ids])
            return data.decode("utf-8", "replace")
        ids = [self._same.get(each, each) for each in token_ids]
        with library_errors(cannot_decode):
            text: str = self._fast.decode(ids, skip_special_tokens=False)
        return text if self._clean is None else self._clean(text)


@contextmanager
def library_errors(make: Callable[[str], PagedCoreError]) -> Iterator[None]:
    """Turn whatever the library raises into what ``make`` makes of the reason.

    It raises bare ``Exception``, and for what its authors thought impossible a ``PanicException``,
    which is not even one of those.
    """
    try:
        yield
    except PagedCoreError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise make(one_line(error)) from error


def cannot_encode(reason: str) -> RequestError:
    """Return the error of a text that the library refuses."""
    return RequestError(
        f"the model's tokenizer cannot encode the text ({reason}); change it, or give token ids"
    )


def cannot_decode(reason: str) -> CheckpointError:
    """Return the error of tokens that the library cannot turn into text."""
    return CheckpointError(
        f"the model's tokenizer cannot decode its own tokens ({reason}); download it again, or set "
        "`tokenizer` to another model's"
    )
