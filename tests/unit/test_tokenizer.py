"""The checkpoint's tokenizer: text as it grows, chat templates, and what is loaded from where."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer
from transformers.models.auto import tokenization_auto

from paged_backends.text import tokenizer_loader
from paged_backends.text.tokenizer import (
    CheckpointTokenizer,
    TokenBytes,
    cannot_decode,
    library_errors,
)
from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core.errors import CheckpointError, RequestError
from properties.covering import pairwise_rows

CORPUS = ["The quick brown fox jumps over the lazy dog, and the dog does not mind. "] * 4 + [
    "Zażółć gęślą jaźń; 数独は楽しい; 👩‍👩‍👧 and naïve café"
]
MISSING = object()
SPECIAL = ["<s>", "</s>", "<unk>"]


def byte_level() -> Tokenizer:
    """As in GPT-2, Llama 3 and Qwen: any token may end within a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As in Llama 2 and Gemma: words with a marked space, and bytes for what is in no word."""
    pieces = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyzTé.,", "▁t", "▁th", "▁the", "th", "he", "▁a"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    merges = [("▁", "t"), ("t", "h"), ("▁t", "h"), ("▁th", "e"), ("h", "e"), ("▁", "a")]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """As in T5: the space belongs to the word after it."""
    vocab = [("<unk>", 0.0), ("▁", -2.0)] + [(letter, -3.0) for letter in "abcdefgé👍.,"]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "metaspace": metaspace,
}


def save(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def load(folder: Path) -> CheckpointTokenizer:
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers_by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckpointTokenizer]:
    folder = tmp_path_factory.mktemp("kinds")
    loaded = {
        kind: load(save(folder / kind, make(), bos_token="<s>", eos_token={"content": "</s>"}))
        for kind, make in KINDS.items()
    }
    assert loaded["byte_level"].token_bytes is not None
    loaded["byte_level_by_windows"] = replace(loaded["byte_level"], token_bytes=None)
    return loaded


def added_by_output(prompt: str, whole: str) -> str:
    """The rest of ``whole`` after what it has in common with ``prompt``.

    Marks for the bytes of its last characters, which are invalid beside others, are the prompt's.
    """
    count = 0
    while count < min(len(prompt), len(whole)) and prompt[count] == whole[count]:
        count += 1
    left = prompt[count:]
    marks = "" if "\ufffd" in left else "\ufffd" * len(left.encode())
    return whole[count:].removeprefix(marks)


def pieces_of(
    tokenizer: CheckpointTokenizer,
    prompt: Sequence[int],
    chunks: Iterable[Sequence[int]],
    skip_special_tokens: bool = True,
) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip_special_tokens)
    pieces = [detokenizer.append(chunk) for chunk in chunks]
    pieces.append(detokenizer.flush())
    assert detokenizer.flush() == ""
    return pieces


# --- text as it grows -----------------------------------------------------------------------------

unicode_texts = st.text(
    st.characters(exclude_categories=["Cs"])
    | st.sampled_from(list("the a.,é👍👩\u200d👧\u0301\ufffd 数")),
    max_size=30,
)


@pytest.mark.parametrize("kind", ["byte_level", "byte_level_by_windows", "byte_fallback"])
@settings(max_examples=150, deadline=None)
@given(prompt=unicode_texts, text=unicode_texts)
def test_any_text_comes_back_in_whole_characters(
    kind: str, prompt: str, text: str, tokenizers_by_kind: dict[str, CheckpointTokenizer]
) -> None:
    tokenizer = tokenizers_by_kind[kind]
    prompt_ids, ids = tokenizer.encode(prompt), tokenizer.encode(text)
    pieces = pieces_of(tokenizer, prompt_ids, [[token_id] for token_id in ids])
    whole = tokenizer.decode(prompt_ids + ids)
    assert "".join(pieces) == added_by_output(tokenizer.decode(prompt_ids), whole)
    if kind != "byte_fallback":
        assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_bytes_that_make_those_of_the_prompt_invalid_have_a_mark_each(
    tokenizers_by_kind: dict[str, CheckpointTokenizer],
) -> None:
    tokenizer = tokenizers_by_kind["byte_fallback"]
    invalid = tokenizer.encode("ç")[1:2]  # the first of its two bytes
    assert "".join(pieces_of(tokenizer, tokenizer.encode("abΩ"), [invalid] * 3)) == "\ufffd" * 3


@pytest.mark.parametrize("kind", [*KINDS, "byte_level_by_windows"])
@settings(max_examples=200, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_pieces_of_any_tokens_join_to_the_whole(
    kind: str, data: st.DataObject, skip: bool, tokenizers_by_kind: dict[str, CheckpointTokenizer]
) -> None:
    """Tokens as a random model draws them: broken characters, special tokens, unknown ids."""
    tokenizer = tokenizers_by_kind[kind]
    assert tokenizer.vocab_size is not None
    token_ids = st.integers(0, tokenizer.vocab_size + 3)
    if tokenizer.byte_ids:
        token_ids = token_ids | st.sampled_from(sorted(tokenizer.byte_ids))
    prompt = data.draw(st.lists(token_ids, max_size=20))
    chunks = data.draw(st.lists(st.lists(token_ids, max_size=3), max_size=50))
    ids = [token_id for chunk in chunks for token_id in chunk]
    base = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    expected = added_by_output(base, whole)
    assert "".join(pieces_of(tokenizer, prompt, chunks, skip)) == expected
    assert "".join(pieces_of(tokenizer, prompt, [[one] for one in ids], skip)) == expected


PIECES = [
    *("<s>", "a", "b", "ab", "aa", "<", "/w", ">", "</w>", "a</w>", "b</w>", "<0x41>", "<0xE4>"),
    *("<0xb8>", "<0x96>", "##b", "\u2581", "\u2581a", " ", " .", "|", "\u0120a", "\u4e16"),
    "\ufffd",
]
_steps = st.one_of(
    st.builds(
        decoders.Replace,
        st.sampled_from(["\u2581", "aa", "aba", "</w>", "<0x", "\ufffd", Regex("a+b"), " "]),
        st.sampled_from([" ", "", "ab", "a", "</w>"]),
    ),
    st.builds(decoders.Fuse),
    st.builds(decoders.ByteFallback),
    st.builds(decoders.Strip, st.sampled_from(" a"), st.sampled_from([0, 1, 20]), st.just(0)),
    st.builds(decoders.Strip, st.sampled_from(" a"), st.just(0), st.just(1)),
    st.builds(decoders.Metaspace, st.just("\u2581"), st.sampled_from(["always", "first", "never"])),
    st.builds(decoders.BPEDecoder, st.sampled_from(["</w>", "b"])),
    st.builds(decoders.CTC, st.just("a"), st.just("|"), st.booleans()),
    st.builds(decoders.WordPiece, st.just("##"), st.booleans()),
    st.builds(decoders.ByteLevel),
)
_usual = st.lists(_steps, max_size=2).map(
    lambda more: [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *more]
)


@settings(max_examples=120, deadline=None)
@given(data=st.data(), steps=_steps | _usual | st.lists(_steps, min_size=1, max_size=4))
def test_pieces_join_to_the_whole_with_any_decoder(
    data: st.DataObject, steps: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The whole is what the ``tokenizers`` library decodes."""
    theirs = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(PIECES)}, "<s>"))
    theirs.decoder = decoders.Sequence(steps) if isinstance(steps, list) else steps
    ours = load(save(tmp_path_factory.mktemp("any"), theirs))
    some = st.sampled_from(data.draw(st.lists(st.integers(0, len(PIECES)), min_size=1)))
    for size in (3, 90):
        prompt = data.draw(st.lists(some, max_size=size))
        ids = data.draw(st.lists(some, min_size=1, max_size=2 * size))
        try:
            with library_errors(cannot_decode):
                expected = added_by_output(theirs.decode(prompt), theirs.decode(prompt + ids))
        except CheckpointError:  # it strips what is empty
            reject()
        assert "".join(pieces_of(ours, prompt, [[one] for one in ids])) == expected


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.BPEDecoder()],
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("</w>", " ")],
    ],
)
def test_text_streams_with_a_decoder_that_looks_across_tokens(steps: Any, tmp_path: Path) -> None:
    theirs = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(PIECES)}, "<s>"))
    theirs.decoder = decoders.Sequence(steps)
    tokenizer, ids, decoded = load(save(tmp_path, theirs)), [PIECES.index("a</w>")] * 500, [0]

    def decode(some: Sequence[int]) -> str:
        decoded.append(len(some))
        return tokenizer.decode_ids(some)

    pieces = pieces_of(replace(tokenizer, decode_ids=decode), ids, [[one] for one in ids])
    assert len("".join(pieces[:-1])) > 900
    assert max(decoded[50:]) < 150, "all tokens are decoded at each"


SPACED = [
    "<s>",
    "<unk>",
    "a",
    "##b",
    "\u2581",
    *".?!,'ns",
    "n't",
    "'m",
    "'s",
    "'re",
    "\u2581'",
    "'ve",
]


@pytest.mark.parametrize("model", ["unigram", "word_level", "word_piece", "bpe"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_spaces_are_removed_where_transformers_removes_them(
    model: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    vocab = {piece: number for number, piece in enumerate(SPACED)}
    made: dict[str, Any] = {
        "unigram": lambda: models.Unigram([(piece, -1.0) for piece in SPACED], unk_id=1),
        "word_level": lambda: models.WordLevel(vocab, "<unk>"),
        "word_piece": lambda: models.WordPiece(vocab, unk_token="<unk>"),
        "bpe": lambda: models.BPE(vocab, []),
    }
    theirs = Tokenizer(made[model]())
    if model == "unigram":
        theirs.decoder = decoders.Metaspace()
    if model == "word_piece":
        theirs.decoder = decoders.WordPiece(cleanup=False)
    asked = {"clean_up_tokenization_spaces": True, "tokenizer_class": "TokenizersBackend"}
    if data.draw(st.booleans()):
        asked["clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"] = True
    folder = save(tmp_path_factory.mktemp("spaced"), theirs, **asked)
    whole, ours = AutoTokenizer.from_pretrained(folder).decode, load(folder)
    some = st.sampled_from(data.draw(st.lists(st.integers(2, len(SPACED) - 1), min_size=1)))
    for size in (4, 120):
        prompt = data.draw(st.lists(some, max_size=size))
        ids = data.draw(st.lists(some, min_size=1, max_size=2 * size))
        assert ours.decode(ids) == whole(ids)
        expected = added_by_output(whole(prompt), whole(prompt + ids))
        assert "".join(pieces_of(ours, prompt, [[one] for one in ids])) == expected


@pytest.mark.parametrize(
    ("prompt", "output", "text"),
    [
        (b"\xed\xa0", b"", ""),  # half a surrogate: two U+FFFD of the prompt's
        (b"\xed\xa0", b"\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd".encode(), "\ufffd"),
        (b"\xed", b"\x9f\xbf", "\ud7ff"),
        (b"\xf0\x9f", b"a", "a"),
        (b"\xf0\x9f", "\ufffd".encode(), "\ufffd"),
    ],
)
def test_what_the_prompt_shows_of_a_broken_character_is_not_output(
    prompt: bytes, output: bytes, text: str, tokenizers_by_kind: dict[str, CheckpointTokenizer]
) -> None:
    for kind in ("byte_level", "byte_level_by_windows"):
        tokenizer = tokenizers_by_kind[kind]
        by_bytes = TokenBytes(byte_level().id_to_token)
        ids = {by_bytes[number]: number for number in range(tokenizer.vocab_size or 0)}
        first, then = ([ids[bytes([byte])] for byte in part] for part in (prompt, output))
        whole = tokenizer.decode(first + then)
        assert added_by_output(tokenizer.decode(first), whole) == text
        assert "".join(pieces_of(tokenizer, first, [[each] for each in then])) == text


def test_work_per_token_does_not_grow(tokenizers_by_kind: dict[str, CheckpointTokenizer]) -> None:
    for kind in ("byte_level", "byte_level_by_windows", "byte_fallback"):
        tokenizer = tokenizers_by_kind[kind]
        num_decoded = 0

        def decode(ids: Sequence[int], tokenizer: CheckpointTokenizer = tokenizer) -> str:
            nonlocal num_decoded
            num_decoded += len(ids)
            return tokenizer.decode_ids(ids)

        for text in ("the dog, the fox. " * 100, "𓀀" * 400 + "a", "the 𓀀 " * 200):
            ids = tokenizer.encode(text)
            num_decoded = 0
            counted = replace(tokenizer, decode_ids=decode, token_bytes=None)
            detokenizer = counted.detokenizer([])
            for token_id in ids:
                detokenizer.append([token_id])
            assert num_decoded < 30 * len(ids)


# --- encoding and loading -------------------------------------------------------------------------


KEYS: dict[str, tuple[Any, ...]] = {
    "add_bos_token": (MISSING, None, True, False),
    "add_eos_token": (MISSING, None, True, False),
    "bos_token": ("<s>", {"__type": "AddedToken", "content": "<s>"}, "<other>"),
    "eos_token": (MISSING, None, "</s>"),
    "additional_special_tokens": (
        *(MISSING, ["<x>", "fox"]),
        [{"__type": "AddedToken", "content": "<x>", "rstrip": True}, "</s>"],
    ),
    "extra_special_tokens": (MISSING, {"image_token": "dog"}, ["mind"]),
    "audio_token": (
        *(MISSING, "quick", {"__type": "AddedToken", "content": " mind", "lstrip": True}),
        {"content": "mind"},
    ),
    "model_specific_special_tokens": (MISSING, {"video_token": "lazy"}),
    "added_tokens_decoder": (
        *(MISSING, {"900": {"content": "the dog", "special": False}}),
        {"0": {"content": "<s>", "lstrip": True}},
        {"1": {"content": "</s>", "special": False, "single_word": True}},
        {
            "5": {"content": "fox", "rstrip": True},
            "99": {"content": "fox"},
            "7": {"content": "<s>"},
        },
    ),
    "model_max_length": (MISSING, 4),
    "split_special_tokens": (MISSING, False, True),
    "clean_up_tokenization_spaces": (MISSING, True),
    "legacy": (MISSING, True, False),
    "add_prefix_space": (MISSING, True, False),
    "tokenizer_class": (
        *("PreTrainedTokenizerFast", "TokenizersBackend", MISSING, "LlamaTokenizerFast"),
        *("LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "GPT2TokenizerFast", "T5Tokenizer"),
        *("CodeLlamaTokenizer", "CohereTokenizerFast", "GPTNeoXTokenizerFast", "XGLMTokenizer"),
        *("BloomTokenizerFast", "NoSuchTokenizer", "LukeTokenizer", "WhisperTokenizer"),
    ),
}
"""Values in ``tokenizer_config.json``."""
FILES: dict[str, tuple[Any, ...]] = {
    "kind": (*KINDS,),
    "processor": (True, False),
    "config.json": (MISSING, *({"model_type": kind} for kind in ("llama", "qwen2", "gpt2", "t5"))),
    "special_tokens_map.json": (MISSING, {"mask_token": "<x>", "audio_token": "mind"}),
    "added_tokens.json": (MISSING, {"<x>": 900}),
}
"""Checkpoints in which ``tokenizer.json`` adds a token by itself or not, and other files."""
TOKENS_OF_MODELS = "{{ bos_token }}:{{ image_token }}:{{ audio_token }}:{{ video_token }}"
TEXTS = ("does not mind quick <s>", "the dog <s> fox</s>", "<x>dog  , \u00e9", "<other>the dog", "")


@pytest.mark.parametrize("drawn", pairwise_rows(KEYS | FILES, lambda *_: True))
def test_ids_are_those_of_transformers(drawn: Mapping[str, Any], tmp_path: Path) -> None:
    chosen = {name: value for name, value in drawn.items() if value is not MISSING}
    tokenizer = KINDS[chosen["kind"]]()
    if chosen["processor"]:
        bos = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", bos)]
        )
    config = {name: value for name, value in chosen.items() if name in KEYS}
    folder = save(tmp_path / "model", tokenizer, **config)
    for name in {name for name in chosen if name.endswith(".json")}:
        (folder / name).write_text(json.dumps(chosen[name]), encoding="utf-8")
    theirs = outcome(AutoTokenizer.from_pretrained, folder)
    if theirs is None:
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load(folder)
        return
    ours = load(folder)
    for text, special in product(TEXTS, (True, False)):
        expected = outcome(theirs.encode, text, add_special_tokens=special)
        found = outcome(ours.encode, text, add_special_tokens=special)
        assert found == expected, text
        if chosen["kind"] != "metaspace" and expected is not None:
            assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    options = {"chat_template": TOKENS_OF_MODELS, "tokenize": False}
    said = [{"role": "user", "content": "a"}]
    assert ours.apply_chat_template(said, **options) == theirs.apply_chat_template(said, **options)


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what the call returns; ``None``: it refuses."""
    with suppress(Exception):
        return call(*args, **options)


def test_types_of_models_whose_class_counts_more_than_a_plain_one() -> None:
    auto = tokenization_auto
    classes = auto.TOKENIZER_MAPPING_NAMES
    types = auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    mapped = {kind for kind in types if classes[kind] not in (None, "TokenizersBackend")}
    assert mapped == tokenizer_loader._RENAMED


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "PreTrainedConfig", "RagTokenizer", "pipeline"]
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_a_class_that_is_no_tokenizer_is_refused_by_name(
    file: str, name: str, tmp_path: Path
) -> None:
    save(tmp_path, byte_level())
    (tmp_path / file).write_text(json.dumps({"tokenizer_class": name}))
    with pytest.raises(CheckpointError, match=rf"{file} names '{name}'"):
        load(tmp_path)


def test_special_tokens_of_a_class_with_an_encoding_of_its_own(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|end|>"])
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LukeTokenizer"}
    made = load(save(tmp_path, tokenizer, **names))
    assert made.decode(made.encode("fox<|end|>")) == "fox"


def test_an_added_token_is_its_text(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<\u00e9t\u00e9>", "\u4e16"])
    made = load(save(tmp_path / "model", tokenizer))
    for text in ("<\u00e9t\u00e9>", "the \u4e16\u00e9"):
        assert made.decode(made.encode(text)) == text
        assert "".join(pieces_of(made, [], [[each] for each in made.encode(text)])) == text


def test_a_special_token_that_is_normalised_is_hidden_where_transformers_hides_it(
    tmp_path: Path,
) -> None:
    tokenizer = byte_fallback()
    tokenizer.add_special_tokens([AddedToken("<x>", normalized=True), AddedToken("<y>")])
    folder = save(tmp_path / "model", tokenizer)
    made, ids = load(folder), tokenizer.encode("the<x> a<y>").ids
    expected = AutoTokenizer.from_pretrained(folder).decode(ids, skip_special_tokens=True)
    assert made.decode(ids) == expected
    assert "".join(pieces_of(made, [], [[each] for each in ids])) == expected


def test_a_prompt_is_never_truncated_or_padded(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=64, pad_id=0, pad_token="<s>")
    tokenizer.model.dropout = 0.9
    loaded = load(save(tmp_path / "short", tokenizer))
    assert loaded.info() == {"pad_token": "<s>"}
    assert len({tuple(loaded.encode("quick brown fox")) for _ in range(9)}) == 1
    assert loaded.decode(loaded.encode("quick brown fox" * 3)) == "quick brown fox" * 3


def test_tokens_that_only_the_configuration_lists(tmp_path: Path) -> None:
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    listed = {
        str(size + 1): {"content": "<call>", "special": False},
        str(size): {"content": "<|end|>", "special": True},
        "0": {"__type": "AddedToken", "content": "<s>"},
    }
    folder = save(tmp_path / "listed", tokenizer, added_tokens_decoder=listed, pad_token="<pad>")
    loaded = load(folder)
    assert loaded.encode("<call><|end|><pad>") == [size + 1, size, size + 2]
    assert loaded.decode([size + 1, size, size + 2]) == "<call>"


def test_half_a_surrogate_pair_is_refused(
    tokenizers_by_kind: dict[str, CheckpointTokenizer],
) -> None:
    with pytest.raises(RequestError, match="surrogate pair at character 1"):
        tokenizers_by_kind["byte_level"].encode("a\ud83d")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\n\x05\n\x03<s>", "SentencePiece, and .* not installed: `pip install sentencepiece`"),
        (b"\x00\x01garbage", "is damaged: it is neither .* nor .*; download it again"),
        (b"", "is damaged"),
        (b"IQ== 0\nIg== 1\n", "tiktoken"),
    ],
)
def test_other_formats_that_cannot_be_read_are_told_apart(
    content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_loader, "find_spec", lambda _: None)
    (tmp_path / "tokenizer.model").write_bytes(content)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(CheckpointError, match=reason):
        load_tokenizer(str(tmp_path))


def test_a_broken_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CheckpointError, match="does not hold a JSON object"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "read as JSON"), ("[1]", "a JSON object"), ('{"bos_token": [1]}', "must be")],
)
@pytest.mark.parametrize("name", tokenizer_loader._OLD)
def test_a_broken_file_of_older_tokens_is_named(
    name: str, content: str, reason: str, tmp_path: Path
) -> None:
    save(tmp_path, byte_level())
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"{name}.*({reason}).*; download"):
        load(tmp_path)


def test_an_older_format_goes_through_transformers(tmp_path: Path) -> None:
    byte_level().model.save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"}', encoding="utf-8"
    )
    loaded = load(tmp_path)
    text = "the dog 👩‍👧 naïve"
    ids = loaded.encode(text)
    assert loaded.decode([*ids, *loaded.special_ids]) == text
    assert "".join(pieces_of(loaded, [], [[token_id] for token_id in ids])) == text


def test_ranks_need_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    (tmp_path / "tiktoken.model").write_text("IQ== 0\nIg== 1\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TikTokenTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="pip install tiktoken"):
        load_tokenizer(str(tmp_path))


# --- chat -----------------------------------------------------------------------------------------

CHATML = """{{ bos_token }}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant'] %}
{{- raise_exception('unknown role ' + message.role) }}
{%- endif %}
{%- if message.role == 'assistant' %}
{{- '[assistant]' }}{% generation %}{{ message.content }}{% endgeneration %}{{ eos_token }}
{%- else %}
{{- '[' + message.role + ']' + message.content }}
{%- endif %}
{%- if message.content == 'last' %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}
{%- if thinking is defined %}{{ thinking }}{% endif %}"""


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> CheckpointTokenizer:
    folder = tmp_path_factory.mktemp("chat") / "model"
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    return load(save(folder, byte_level(), chat_template=CHATML, **config))


def rendered(tokenizer: CheckpointTokenizer, messages: Any, **options: Any) -> str:
    options = {"add_generation_prompt": "continue_final_message" not in options, **options}
    ids = tokenizer.apply_chat_template(messages, **options)
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert isinstance(ids, list)
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_the_last_message_may_be_left_open(chatty: CheckpointTokenizer) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is "}]
    text = rendered(chatty, messages, continue_final_message=True)
    assert text == "<s>[user]x[assistant]It is "
    with pytest.raises(RequestError, match="contradict"):
        rendered(chatty, messages, continue_final_message=True, add_generation_prompt=True)


def test_an_open_message_ends_as_transformers_leaves_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save(tmp_path / "open", byte_level(), eos_token="</s>")
    theirs, ours = transformers.PreTrainedTokenizerFast.from_pretrained(folder), load(folder)
    contents = ("It is ", "It is \n\n", "  it", "", " ", "It is\u3000", "a </s> ")
    shown = ("content", "content | trim", "content.strip() + ' '", "content.lstrip()", "role")
    shown = (*shown, "content[:4] + message.content[4:] | trim", "content | upper | trim")
    for content, form, end in product(contents, shown, ("", " ", "\n</s>")):
        template = f"{{% for message in messages %}}{{{{ message.{form} }}}}{end}{{% endfor %}}"
        asked = {"continue_final_message": True, "tokenize": False, "chat_template": template}
        messages = [{"role": "user", "content": "Hi "}, {"role": "assistant", "content": content}]
        try:
            expected = theirs.apply_chat_template(messages, **asked)
        except ValueError:
            expected = None
        with pytest.raises(RequestError) if expected is None else nullcontext():
            text = ours.apply_chat_template(messages, add_generation_prompt=False, **asked)
            assert text == expected, (content, form, end)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "oracle", "content": "x"}], "refused these messages: unknown role oracle"),
        ([{"role": "user", "content": None}], "refused these messages"),
        ([{"content": "x"}], "has no role"),
        ([], "empty"),
        ([{"role": "user", "content": object()}], "plain data"),
    ],
)
def test_messages_that_are_refused(
    chatty: CheckpointTokenizer, messages: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        chatty.apply_chat_template(messages)


def test_a_template_is_sandboxed(chatty: CheckpointTokenizer) -> None:
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(RequestError, match="unsafe"):
        chatty.apply_chat_template([{"role": "user", "content": "x"}], chat_template=escape)
    with pytest.raises(RequestError, match="not valid Jinja"):
        chatty.apply_chat_template([{"role": "user", "content": "x"}], chat_template="{% if %}")


def test_where_templates_are_found(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    by_name = {each["name"]: each["template"] for each in named}
    folder = save(tmp_path / "by_name", byte_level(), chat_template=by_name)
    assert load(folder).template.sources == by_name
    folder = save(tmp_path / "named", byte_level(), chat_template=named)
    assert rendered(load(folder), messages) == "one"
    assert rendered(load(folder), messages, tools=[{}]) == "two"
    assert rendered(load(folder), messages, chat_template="tool_use") == "two"
    of_processor = save(tmp_path / "processor", byte_level())
    (of_processor / "chat_template.json").write_text('{"chat_template": "three"}', encoding="utf-8")
    assert rendered(load(of_processor), messages) == "three"
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%Y')[0] }}!", encoding="utf-8")
    assert rendered(load(folder), messages) == "2!"
    bare = load(save(tmp_path / "bare", byte_level()))
    with pytest.raises(RequestError, match="no chat template"):
        bare.apply_chat_template(messages)


def test_templates_agree_with_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    folder = save(tmp_path / "both", tokenizer, chat_template=CHATML, **config)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [
        {"role": "system", "content": " sys\n"},
        {"role": "user", "content": "ü"},
        {"role": "assistant", "content": "last"},
        {"role": "user", "content": "never"},
    ]
    shown = "{% for each in messages %}{{ each.content }}{{ each }}{% endfor %}"
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {}}]}
    thoughts = [{"reasoning": "1"}, {"thinking": "2"}, {"reasoning_content": "3", "thinking": "4"}]
    for said in [call, *({"role": "assistant", "content": "x", **each} for each in thoughts)]:
        asked: Any = {"chat_template": shown, "tokenize": False}
        talk = [{"role": "user", "content": "x"}, said]
        expected = theirs.apply_chat_template(talk, **asked)
        assert load(folder).apply_chat_template(talk, **asked) == expected
    for options in ({}, {"tools": [{"a": "ü"}]}, {"thinking": "x"}):
        expected = theirs.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, **options
        )
        ours = load(folder).apply_chat_template(messages, add_generation_prompt=True, **options)
        assert ours == expected
