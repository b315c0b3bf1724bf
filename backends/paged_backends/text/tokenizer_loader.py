"""Tokenizers of checkpoints, loaded.

A ``tokenizer.json`` that counts alone is read by the ``tokenizers`` library, and nothing heavier is
imported. Many classes of ``transformers`` build the tokenizer anew, from the vocabulary in that
file and their own options: those, and older formats, are loaded by that library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from paged_backends.checkpoint.folder import resolve_checkpoint
from paged_backends.checkpoint.json_file import damaged, is_integer, read_json_object
from paged_backends.text.chat_template import ChatTemplate
from paged_backends.text.cleaned_spaces import clean_up, reach_of_clean
from paged_backends.text.fast_tokenizer import check_fast, load_fast, reach
from paged_backends.text.gguf_tokenizer import GgufTokenizer
from paged_backends.text.tokenizer import (
    CheckpointTokenizer,
    FastCodec,
    TokenBytes,
    cannot_decode,
    cannot_encode,
    library_errors,
)
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown

_OTHER_FORMATS = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "*.tiktoken",
)
_OF_PIECES = _OTHER_FORMATS[:3]
_PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take ``tokenizer.json`` as it is."""
_RENAMED = {
    *("qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp"),
    *("hyperclovax_vision_v2", "siglip2"),
}
"""Types of models for which ``transformers`` uses another class than those."""
_OLD = ("special_tokens_map.json", "added_tokens.json")
"""Files with tokens that newer configurations list themselves."""
_RARE = ("fix_mistral_regex", "model_specific_special_tokens")
"""Keys of a configuration that are left to ``transformers``."""
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def load_tokenizer(model: str, *, trust_remote_code: bool = False) -> CheckpointTokenizer | None:
    """Return the tokenizer of ``model`` (``demo``, a folder, a hub id), or ``None``: it has none.

    Args:
        trust_remote_code: run the checkpoint's own tokenizer code, if it has any.

    Raises:
        CheckpointError: there is no such model, or its tokenizer cannot be read.
    """
    folder = resolve_checkpoint(model, trust_remote_code=trust_remote_code)
    if folder.is_file():
        return _from_gguf(folder)
    config = _read(folder / "tokenizer_config.json")
    listed = config.get("auto_map")
    own_code = trust_remote_code and isinstance(listed, Mapping) and "AutoTokenizer" in listed
    path = folder / "tokenizer.json"
    if path.exists() and not own_code:
        return _from_file(folder, config)
    others = (path for pattern in _OTHER_FORMATS for path in folder.glob(pattern))
    if own_code or any(path.is_file() for path in others):
        return _from_transformers(folder, config, trust_remote_code)
    return None


def _from_file(folder: Path, config: Mapping[str, Any]) -> CheckpointTokenizer:
    """Return the tokenizer of a ``tokenizer.json``, or what ``transformers`` makes of it."""
    fast, model = load_fast(folder / "tokenizer.json"), _read(folder / "config.json")
    kind = model.get("model_type")
    declared = config.get("tokenizer_class") or model.get("tokenizer_class") or kind or _PLAIN[0]
    is_old = "added_tokens_decoder" not in config and any((folder / name).exists() for name in _OLD)
    is_old = is_old or any(config.get(key) for key in _RARE)
    if declared in _PLAIN and kind not in _RENAMED and not is_old:
        return _from_tokenizers(folder, fast, config)
    return _from_transformers(folder, config, trust_remote_code=False)


def _from_gguf(path: Path) -> CheckpointTokenizer | None:
    """Return the tokenizer of a GGUF file; a ``tokenizer.json`` beside it takes precedence."""
    from paged_backends.checkpoint.gguf.reader import read_header  # imports the package ``gguf``

    stored, beside = GgufTokenizer(read_header(path)), path.parent / "tokenizer.json"
    if beside.exists():
        config = {**stored.templates(), **_read(path.parent / "tokenizer_config.json")}
        return _from_file(path.parent, config)
    if stored.kind in ("none", "no_vocab"):
        return None
    fast, config = stored.fast(), dict(stored.config())
    stored.refuse_unread()
    _surround(fast, config)
    return _from_tokenizers(path.parent, fast, config, stored.same())


def _from_tokenizers(
    folder: Path,
    fast: FastTokenizer,
    config: Mapping[str, Any],
    same: Mapping[int, int] = MappingProxyType({}),
) -> CheckpointTokenizer:
    """Return the tokenizer of a ``tokenizer.json``.

    As in ``transformers``, that file alone says which tokens a prompt is put between; what
    ``tokenizer_config.json`` says as ``add_bos_token`` and ``add_eos_token`` is for older formats.

    Args:
        same: tokens with the text of another, by their ids.
    """
    padding: Mapping[str, Any] = fast.padding or {}
    named = _named_tokens(
        {name: padding[name] for name in padding if name == "pad_token"} | dict(config)
    )
    with library_errors(lambda reason: _contradictory(folder, reason)):
        _add_tokens(fast, named.values(), config)
        fast.encode_special_tokens = bool(config.get("split_special_tokens"))
    clean = clean_up if _cleans(fast, config.get) else None
    texts = {name: content for name, token in named.items() if (content := _content(token))}
    return _served(fast, ChatTemplate.find(folder, config, texts), same, clean)


_CLEANS = "clean_up_tokenization_spaces"


def _cleans(fast: FastTokenizer, get: Callable[[str], Any]) -> bool:
    """Return whether ``transformers`` would remove spaces from what is decoded."""
    forced = get(f"{_CLEANS}_for_bpe_even_though_it_will_corrupt_output")
    return bool(get(_CLEANS) and (forced or not isinstance(fast.model, BPE)))


def _served(
    fast: FastTokenizer,
    template: ChatTemplate,
    same: Mapping[int, int] = MappingProxyType({}),
    clean: Callable[[str], str] | None = None,
) -> CheckpointTokenizer:
    fast.no_truncation()  # a prompt that is too long is refused, never truncated silently
    fast.no_padding()
    if getattr(fast.model, "dropout", None):
        fast.model.dropout = None  # for training: it splits a text by chance
    added = fast.get_added_tokens_decoder()
    contents = {token_id: token.content for token_id, token in added.items()}

    def token_of(token_id: int) -> str | None:
        token: str | None = fast.id_to_token(same.get(token_id, token_id))
        return token

    is_bytes = isinstance(fast.decoder, ByteLevel) and clean is None
    token_bytes = TokenBytes(token_of, contents) if is_bytes else None
    codec = FastCodec(fast, token_bytes, same, clean)
    return CheckpointTokenizer(
        codec.encode,
        codec.decode,
        special_ids=_skipped(fast),
        byte_ids=_byte_ids(fast.get_vocab()),
        template=template,
        vocab_size=fast.get_vocab_size(),
        is_known=lambda token_id: token_of(token_id) is not None,
        token_bytes=token_bytes,
        id_to_token=token_of,
        reach=reach(fast) if clean is None else reach_of_clean(reach(fast)),
    )


def _skipped(fast: FastTokenizer) -> frozenset[int]:
    """Return the added tokens that the library leaves out of a text, whatever their flags say."""
    decoder, fast.decoder = fast.decoder, None
    skipped = (token for token in fast.get_added_tokens_decoder() if not fast.decode([token]))
    found = frozenset(skipped)
    fast.decoder = decoder
    return found


def _add_tokens(fast: FastTokenizer, named: Iterable[Any], config: Mapping[str, Any]) -> None:
    """Add the tokens that only ``tokenizer_config.json`` knows, or knows with other flags, in the
    order of transformers."""
    listed = config.get("added_tokens_decoder") or {}
    adding: list[Any] = [_added_token(listed[token_id]) for token_id in sorted(listed, key=int)]
    known = {*map(str, adding), *map(str, fast.get_added_tokens_decoder().values())}
    named = list(named)
    for given in (*named, *_extra_tokens(config, list)):
        token = given if isinstance(given, str) else _added_token(given)
        if token is not None and str(token) not in known and token not in adding:
            adding.append(token)
    special = set(map(_content, named))
    for token in adding:
        made = AddedToken(token, special=True) if isinstance(token, str) else token
        made.special = made.special or made.content in special
        fast.add_tokens([made])


def _extra_tokens(config: Mapping[str, Any], kind: type) -> Any:
    """Return special tokens without a name (``list``), or with the model's own names (``dict``)."""
    given = (config.get("extra_special_tokens"), config.get("additional_special_tokens"))
    return next((each for each in given if each and isinstance(each, kind)), kind())


def _added_token(given: Any) -> AddedToken | None:
    """Return a token given as a dictionary; ``None``: it is none."""
    content = _content(given)
    if content is None or not isinstance(given, Mapping):
        return None
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(content, **{name: bool(given[name]) for name in names if name in given})


def _surround(fast: FastTokenizer, config: Mapping[str, Any]) -> None:
    """Put the tokens around a prompt that a GGUF file asks for."""
    bos = config.get("bos_token") if config.get("add_bos_token") else None
    eos = config.get("eos_token") if config.get("add_eos_token") else None
    single = " ".join(part for part in (bos, "$A", eos) if part)
    around = [(token, fast.token_to_id(token)) for token in (bos, eos) if token]
    fast.post_processor = TemplateProcessing(single=single, special_tokens=around)


def _byte_ids(vocab: Mapping[str, int]) -> frozenset[int]:
    """Return the tokens that a decoder may take for single bytes; there need not be one of each."""
    shape = (6, "<0x", ">")
    return frozenset(
        token_id for token, token_id in vocab.items() if (len(token), token[:3], token[5:]) == shape
    )


def _from_transformers(
    folder: Path, config: Mapping[str, Any], trust_remote_code: bool
) -> CheckpointTokenizer:
    """Let transformers build a tokenizer: by its class, or by the checkpoint's code."""
    from transformers import AutoTokenizer, TokenizersBackend
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    def cannot_load(reason: str) -> CheckpointError:
        if (problem := _sentencepiece_problem(folder)) is not None:
            return CheckpointError(problem)
        return CheckpointError(
            f"the tokenizer in {folder} cannot be loaded ({reason}); save it as tokenizer.json "
            f"with a version of transformers that knows it, with {_PLAIN[0]} as tokenizer_class in "
            "tokenizer_config.json, or set `tokenizer` to another model's"
        )

    for path in (folder / name for name in _OLD if "added_tokens_decoder" not in config):
        if not all(is_integer(each, 0) or path.name == _OLD[0] for each in _read(path).values()):
            raise damaged(f"{path}: the ids of tokens must be whole numbers")
    with library_errors(cannot_load):  # each class of tokenizers has its own checks
        for name in ("tokenizer_config.json", "config.json"):
            declared = _read(folder / name).get("tokenizer_class")
            kind = tokenizer_class_from_name(declared) if isinstance(declared, str) else None
            is_missing = hasattr(kind, "_backends")  # for want of a package
            if not (kind is None or is_missing or hasattr(kind, "convert_ids_to_tokens")):
                raise cannot_load(
                    f"{name} names {shown(declared)}, which is no class of tokenizers"
                )
        made = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    named = {key: str(value) for key, value in made.special_tokens_map.items()}
    template = ChatTemplate.find(folder, config, named)
    kind, usual = type(made), TokenizersBackend
    if isinstance(made, usual) and (kind.encode, kind._encode_plus) == (
        usual.encode,
        usual._encode_plus,
    ):
        check_fast(fast := made.backend_tokenizer, folder)
        cleans = _cleans(fast, lambda name: getattr(made, name))
        return _served(fast, template, clean=made.clean_up_tokenization if cleans else None)

    def encode_text(text: str, add_special_tokens: bool) -> list[int]:
        with library_errors(cannot_encode):
            return list(made.encode(text, add_special_tokens=add_special_tokens))

    def decode_ids(token_ids: Sequence[int]) -> str:
        with library_errors(cannot_decode):
            return str(made.decode(token_ids, skip_special_tokens=False))

    vocab, added = made.get_vocab(), made.added_tokens_decoder
    special = frozenset(
        number for number, token in added.items() if token.special and isinstance(made, usual)
    )
    return CheckpointTokenizer(
        encode_text,
        decode_ids,
        special_ids=special.union(made.all_special_ids),
        byte_ids=_byte_ids(vocab),
        template=template,
        vocab_size=len(made),
        id_to_token=made.convert_ids_to_tokens,
        reach=reach_of_clean(0) if getattr(made, _CLEANS, False) else 0,
    )


def _sentencepiece_problem(folder: Path) -> str | None:
    """Return why a model of SentencePiece cannot be read, if that is a likely cause."""
    path = next((path for name in _OF_PIECES if (path := folder / name).is_file()), None)
    if path is None or (folder / "tokenizer.json").exists():
        return None
    with path.open("rb") as file:
        begin = file.read(200)
    if begin[:1] == b"\n":  # the first field of its message: a piece
        if find_spec("sentencepiece") is not None:
            return None
        return (
            f"{path} is a model of SentencePiece, and the package that reads it is not installed: "
            "`pip install sentencepiece`, or save the tokenizer as tokenizer.json"
        )
    if re.match(rb"[A-Za-z0-9+/]+=* \d+\n", begin):
        return None
    return (
        f"{path} is damaged: it is neither a model of SentencePiece nor a list of tokens and ranks "
        "(tiktoken); download it again"
    )


def _named_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``bos_token`` and the like, then the model's own, such as ``image_token``."""
    usual = {f"{kind}_token": config.get(f"{kind}_token") for kind in _NAMED}
    typed = {
        name: token
        for name, token in config.items()
        if isinstance(token, Mapping) and token.get("__type") == "AddedToken"
    }
    texts = {name: token for name, token in config.items() if isinstance(token, str)}
    own = {name: token for name, token in (typed | texts).items() if name.endswith("_token")}
    return usual | own | dict(_extra_tokens(config, dict))


def _content(token: Any) -> str | None:
    """Return the text of a token given as such or as a dictionary."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read(path: Path) -> Mapping[str, Any]:
    return read_json_object(path) if path.exists() else {}


def _contradictory(folder: Path, reason: str) -> CheckpointError:
    return damaged(
        f"{folder / 'tokenizer_config.json'} and tokenizer.json do not belong together ({reason})"
    )
