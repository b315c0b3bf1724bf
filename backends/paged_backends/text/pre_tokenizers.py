"""How byte-level tokenizers split a text before pairs are merged, by the names of llama.cpp.

A GGUF file names the rules of the model that its tokenizer was made for; the regular expressions
are those of that model's ``tokenizer.json``. ``default`` stands for files that name none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split


@dataclass(frozen=True, slots=True)
class PreTokenizerRules:
    """What llama.cpp derives from a name."""

    patterns: tuple[str, ...]
    """Regular expressions; each splits the pieces that the one before it left."""
    ignores_merges: bool = False
    """A piece that is a token is one, even if no merges lead to it."""
    adds_bos: bool = False
    """A prompt begins with ``bos``, if the file does not say."""

    def make(self) -> PreTokenizer:
        """Return a pre-tokenizer of the library."""
        splits = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


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
