"""Tokenizers of GGUF files, made for the ``tokenizers`` library.

Two kinds are read: ``gpt2``, byte-level pairs with merges, and ``llama``, SentencePiece's pairs
with scores, where the pair is merged first whose result has the highest score. A file of the first
kind names, as llama.cpp does, the rules by which the model that its tokenizer was made for splits a
text before pairs are merged; the regular expressions are those of that model's ``tokenizer.json``.
``default`` stands for files that name none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isnan
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split

from paged_backends.checkpoint.gguf.header import GgufHeader
from paged_backends.checkpoint.json_file import MISSING
from paged_backends.text.fast_tokenizer import check_fast
from paged_backends.text.tokenizer import library_errors
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown


@dataclass(frozen=True, slots=True)
class PreTokenizerRules:
    """Rules that llama.cpp derives from a name."""

    patterns: tuple[str, ...]
    """Regular expressions; each splits the pieces that the one before it left."""
    ignores_merges: bool = False
    """A piece that is a token is one, even if no merges lead to it."""
    adds_bos: bool = False
    """A prompt begins with ``bos``, if the file does not say."""

    def make(self) -> PreTokenizer:
        """Return a pre-tokenizer of the library."""
        splits = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence(
            [*splits, ByteLevel(add_prefix_space=False, use_regex=False)]
        )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_AROUND_NUMBERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_default = PreTokenizerRules((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_gpt2 = PreTokenizerRules((_GPT2,))
_single_digits = PreTokenizerRules((r"\p{N}", _GPT2))
_qwen2 = PreTokenizerRules((r"|\p{N}|".join(_AROUND_NUMBERS),))
_smaug = PreTokenizerRules((r"|\p{N}{1,3}|".join(_AROUND_NUMBERS),))
_llama3 = PreTokenizerRules(_smaug.patterns, ignores_merges=True, adds_bos=True)
_tekken = PreTokenizerRules(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    ignores_merges=True,
    adds_bos=True,
)

PRE_TOKENIZERS: Mapping[str, PreTokenizerRules] = {
    "default": _default,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "roberta-bpe"), _gpt2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "minerva-7b"), _single_digits),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _qwen2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _llama3),
    "smaug-bpe": _smaug,
    "tekken": _tekken,
}
"""By the value of ``tokenizer.ggml.pre``."""


_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
"""Types of tokens."""
_NAMED = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "seperator": "sep_token",
    "padding": "pad_token",
    "mask": "mask_token",
}
"""Names of special tokens in a file, as llama.cpp spells them, and in ``tokenizer_config.json``."""
_WITHOUT_EFFECT = {
    *("pre", "scores", "merges", "add_space_prefix", "token_type_count", "eos_token_ids"),
    *(f"{name}_token_id" for name in ("eot", "eom", "cls", "prefix", "suffix", "middle")),
    *(f"fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")),
}
"""Values of the other kind, those that the configuration is read from, and names of tokens."""
_NEUTRAL = {
    "add_sep_token": False,
    "remove_extra_whitespaces": False,
    "normalizer.lowercase": False,
    "normalizer.strip_accents": False,
}
"""Values by which a step that is not covered is left out."""
_OF_LLAMA = {"bos_token": 1, "eos_token": 2, "unk_token": 0}
"""Tokens that a file of the kind ``llama`` need not name."""
_SPACE = "\u2581"
"""SentencePiece's."""
_AGAIN = "\ufffe"
"""Letter of no text: makes the name of a token that has another's text."""
_MAX_PIECE = 256
"""Characters of a token that pairs are merged to."""
_MAX_TOKENS = 1 << 20
"""Tokens of a GGUF file, at most; the largest vocabularies have a quarter of it."""
_MAX_MERGES = 4
"""For each token; the vocabularies of models have 2 to 3."""


class GgufTokenizer:
    """The tokenizer of one file.

    Every method raises :class:`CheckpointError` if the file describes none that can be made.
    """

    def __init__(self, header: GgufHeader) -> None:
        self._path = header.path
        self._metadata = header.metadata

    @property
    def kind(self) -> str:
        """Name of the kind in the file; ``no_vocab`` or ``none``: there is no tokenizer."""
        return self._metadata.text(f"{_PREFIX}model", "none")

    def fast(self) -> FastTokenizer:
        """Return the tokenizer, without the tokens around a prompt."""
        makers = {"gpt2": self._byte_level, "llama": self._sentence_pieces}
        if self.kind not in makers:
            raise self._unknown(f"its kind is {shown(self.kind)}")
        with library_errors(self._unknown):
            tokens = self._tokens()
            fast = makers[self.kind](tokens)
            types = self._types(len(tokens))
            special = {_CONTROL, _UNKNOWN}
            fast.add_special_tokens(_added(tokens, types, special))
            fast.add_tokens(_added(tokens, types, {_USER_DEFINED}))
        check_fast(fast, self._path)
        return fast

    def config(self) -> Mapping[str, Any]:
        """Return what would be in ``tokenizer_config.json``."""
        tokens = self._tokens()
        ids: dict[str, int] = dict(_OF_LLAMA) if self.kind == "llama" else {}
        for name, ours in _NAMED.items():
            key = f"{_PREFIX}{name}_token_id"
            if self._metadata.has(key):
                ids[ours] = self._metadata.integer(key, least=0, most=len(tokens) - 1)
        named = {name: tokens[token] for name, token in ids.items() if token < len(tokens)}
        adds_bos = self.kind == "llama" or (
            self.kind == "gpt2" and PRE_TOKENIZERS[self._pre_name()].adds_bos
        )
        return {
            **named,
            "add_bos_token": self._metadata.flag(f"{_PREFIX}add_bos_token", adds_bos),
            "add_eos_token": self._metadata.flag(f"{_PREFIX}add_eos_token", False),
            **self.templates(),
        }

    def refuse_unread(self) -> None:
        """Refuse values that neither :meth:`fast` nor :meth:`config` has read."""
        values = self._metadata.within(_PREFIX)
        for name in values.unread():
            neutral = _NEUTRAL.get(name, MISSING)
            if name not in _WITHOUT_EFFECT and values.any(name, None) is not neutral:
                raise self._unknown(f"{_PREFIX}{name[:100]} may change the tokens of a text")

    def same(self) -> Mapping[int, int]:
        """Return tokens that have the text of another, which is used in their place."""
        return _same(self._tokens())

    def templates(self) -> Mapping[str, Any]:
        """Return the chat templates, as ``tokenizer_config.json`` holds them."""
        key, sources = "tokenizer.chat_template", {}
        if self._metadata.has(key):
            sources["default"] = self._metadata.text(key)
        if self._metadata.has(f"{key}s"):
            for name in self._metadata.texts(f"{key}s"):
                sources[name] = self._metadata.text(f"{key}.{name}")
        listed = [{"name": name, "template": source} for name, source in sources.items()]
        return {"chat_template": listed} if listed else {}

    # ------------------------------------------------------------------ the two kinds

    def _byte_level(self, tokens: Sequence[str]) -> FastTokenizer:
        pre_tokenizer = PRE_TOKENIZERS[self._pre_name()]
        merges = self._metadata.texts(f"{_PREFIX}merges")
        fast = FastTokenizer(
            models.BPE(
                _ids(tokens),
                _counted(map(_pair, merges), tokens),
                ignore_merges=pre_tokenizer.ignores_merges,
            )
        )
        fast.pre_tokenizer = pre_tokenizer.make()
        fast.decoder = decoders.ByteLevel()
        return fast

    def _sentence_pieces(self, tokens: Sequence[str]) -> FastTokenizer:
        types = self._types(len(tokens))
        scores = self._metadata.numbers(f"{_PREFIX}scores", len(tokens))
        if any(map(isnan, scores)):
            raise ValueError(f"{_PREFIX}scores holds what is no number")
        scored = {
            token: score
            for token, kind, score in zip(tokens, types, scores, strict=True)
            if kind in (_NORMAL, _UNUSED)
        }
        unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN]
        fast = FastTokenizer(
            models.BPE(
                _ids(tokens),
                _counted(_merges(scored), tokens),
                unk_token=unknown[0] if unknown else None,
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        prefixed = self._metadata.flag(f"{_PREFIX}add_space_prefix", True)
        prefix = [normalizers.Prepend(_SPACE)] if prefixed else []
        fast.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
        strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
        fast.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return fast

    # ------------------------------------------------------------------ values of the file

    def _tokens(self) -> Sequence[str]:
        tokens = self._metadata.texts(f"{_PREFIX}tokens")
        if len(tokens) > _MAX_TOKENS:
            raise self._unknown(f"it has {len(tokens)} tokens, and at most {_MAX_TOKENS} are read")
        return tokens

    def _types(self, count: int) -> Sequence[int]:
        name = f"{_PREFIX}token_type"
        if not self._metadata.has(name):
            return [_NORMAL] * count
        return [int(kind) for kind in self._metadata.numbers(name, count)]

    def _pre_name(self) -> str:
        name = self._metadata.text(f"{_PREFIX}pre", "default")
        if name not in PRE_TOKENIZERS:
            raise self._unknown(f"it splits text by the rules called {shown(name)}")
        return name

    def _unknown(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"the tokenizer in {self._path} cannot be made ({reason}); put the model's "
            "tokenizer.json beside the file, or set `tokenizer` to another model's"
        )


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    """Return the ids of tokens; one whose text another has later is never found in a text."""
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    for token_id in _same(tokens):
        ids[f"{tokens[token_id]}{_AGAIN}{token_id}"] = token_id
    return ids


def _same(tokens: Sequence[str]) -> dict[int, int]:
    """Return tokens with the text of a later one, by its id: llama.cpp finds that in a text."""
    last = {token: token_id for token_id, token in enumerate(tokens)}
    return {
        token_id: last[token] for token_id, token in enumerate(tokens) if last[token] != token_id
    }


def _added(tokens: Sequence[str], types: Sequence[int], kinds: set[int]) -> list[AddedToken]:
    """Return the tokens of these kinds, which are found in a text before it is split."""
    return [
        AddedToken(token, normalized=False, special=_USER_DEFINED not in kinds)
        for token, kind in zip(tokens, types, strict=True)
        if kind in kinds
    ]


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    if cut < 0:
        raise ValueError(f"{shown(merge)} is no merge of two tokens")
    return merge[:cut], merge[cut + 1 :]


def _counted(merges: Iterator[tuple[str, str]], tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Return merges, if they are not too many for so many tokens."""
    most = _MAX_MERGES * len(tokens)
    made = list(islice(merges, most + 1))
    if len(made) > most:
        raise ValueError(
            f"its {len(tokens)} tokens are merged in more than {_MAX_MERGES} ways each"
        )
    return made


def _merges(scored: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Return all pairs whose result is a token, first those of the highest score."""
    if max(map(len, scored), default=0) > _MAX_PIECE:
        raise ValueError(f"a token has more than {_MAX_PIECE} characters")
    by_score = sorted(scored, key=lambda token: scored[token], reverse=True)
    same = {token: token for token in scored}  # one object for each text
    for token in by_score:
        for cut in range(1, len(token)):
            one, other = same.get(token[:cut]), same.get(token[cut:])
            if one is not None and other is not None:
                yield one, other
