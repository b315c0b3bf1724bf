"""Tokenizers of the ``tokenizers`` library, read from a file and checked for what they expand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from paged_backends.text.tokenizer import library_errors
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
