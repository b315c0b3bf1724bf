"""Files of the ``tokenizers`` library, checked for what they expand, and how far decoders look."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from paged_backends.text.tokenizer import library_errors
from paged_backends.text.windowed_detokenizer import MAX_HELD, REPLACEMENT
from paged_core.errors import CheckpointError

_MAX_BYTES = 64 << 20
"""Bytes of a ``tokenizer.json``, at most; the largest has 33 MB."""
_MAX_TOKEN = 1 << 16
"""Characters."""
_MAX_FACTOR = 100
"""By which a tokenizer may multiply the length of a text."""


def load_fast(path: Path) -> FastTokenizer:
    """Read a tokenizer.

    Raises:
        CheckpointError: it is damaged, or expands a text without need.
    """
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        raise CheckpointError(
            f"{path} is no file, or has more than {_MAX_BYTES} bytes; download it again"
        )
    with library_errors(lambda reason: _unreadable(path, reason)):
        fast = FastTokenizer.from_file(str(path))
    check_fast(fast, path)
    return fast


def check_fast(fast: FastTokenizer, path: Path) -> None:
    """Check a tokenizer that was made from the file ``path``; raises as :func:`load_fast`."""
    with library_errors(lambda reason: _unreadable(path, reason)):
        if max(map(len, fast.get_vocab()), default=0) > _MAX_TOKEN:
            raise _unreadable(path, f"a token has more than {_MAX_TOKEN} characters")
        factor = _growth(_state(fast.normalizer)) * _sequences(_state(fast.post_processor))
        if max(factor, _growth(_state(fast.decoder))) > _MAX_FACTOR:
            raise _unreadable(path, f"it makes a text more than {_MAX_FACTOR} times as long")


def reach(fast: FastTokenizer) -> int | None:
    """Return how many characters at the end of a text later tokens may change.

    0: only those of an unfinished character, and the text of a token depends on few before it.
    ``None``: any of them, as far as is known here.
    """
    state = _state(fast.decoder)
    steps = state["decoders"] if state and state["type"] == "Sequence" else [state] if state else []
    found, fused = 0, False
    for number, step in enumerate(steps):
        kind = step["type"]
        if kind == "Fuse" or (kind == "ByteLevel" and not number):
            fused = True
        elif kind == "Strip" and not step["stop"]:  # the library fails on some parts of a text
            found += max(0, step["start"] - 1) if fused else 0
        elif kind == "Replace" and fused:
            text = step["pattern"].get("String")
            if not text or any(text.startswith(text[n:]) for n in range(1, len(text))):
                return None  # whose matches depend on all text before them
            found += len(text) - 1 + (REPLACEMENT in text)
        elif kind == "ByteFallback" and not fused and all(map(_spares_bytes, steps[:number])):
            continue
        elif fused or kind in ("Sequence", "ByteLevel", "ByteFallback", "Strip"):
            return None
        elif kind == "BPEDecoder":  # which ends the last token in another way
            found += 1 + max(map(len, fast.get_vocab()), default=0)
        elif kind == "CTC":  # of which a window may hold no token that is shown
            found += 1
    return (found + MAX_HELD) * _growth(state) if found else 0


def _spares_bytes(step: Mapping[str, Any]) -> bool:
    """Return whether a step of a decoder leaves tokens for single bytes as they are."""
    found = step["pattern"].get("String", "") if step["type"] == "Replace" else ""
    return bool(found) and not set(found + step["content"]) & set("<0x>abcdefABCDEF123456789+")


def _unreadable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a tokenizer that this version of `tokenizers` can read ({reason}); "
        "download it again, or upgrade the library"
    )


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())


def _growth(part: Any) -> int:
    """Return by how much a normalizer or decoder, with all of its parts, may multiply a text."""
    if isinstance(part, list):
        factor = 1
        for each in part:
            factor = min(factor * _growth(each), _MAX_FACTOR + 1)
        return factor
    if not isinstance(part, dict):
        return 1
    if part.get("type") == "Replace":
        found = part["pattern"].get("String") or ""  # a regular expression may match anywhere
        return max(1, -(-len(part["content"]) // max(1, len(found))) + (not found))
    if part.get("type") == "Prepend":
        return 1 + len(part["prepend"])
    return _growth(list(part.values()))


def _sequences(part: Any) -> int:
    """Return how often a post-processor repeats a text."""
    if isinstance(part, dict) and part.get("type") == "TemplateProcessing":
        return sum("Sequence" in piece for piece in part["single"]) + len(part["single"]) // 50
    if isinstance(part, dict):
        part = list(part.values())
    factor = 1
    for each in part if isinstance(part, list) else ():
        factor = min(factor * max(1, _sequences(each)), _MAX_FACTOR + 1)
    return factor
