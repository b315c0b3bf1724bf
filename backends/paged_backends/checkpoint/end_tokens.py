"""Tokens that end a sequence: all that any file of a checkpoint calls so."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import is_integer, read_json_object
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown


def end_tokens(checkpoint: Checkpoint, usual: int | None = None) -> frozenset[int]:
    """Return what ``config.json``, ``generation_config.json`` and the tokenizer name as ends.

    Args:
        usual: the architecture's, where no file names one.

    Raises:
        CheckpointError: one is neither a token id nor a list of them.
    """
    config = checkpoint.config
    path = checkpoint.config_path
    named = [(path, config), (path, config.get("text_config"))]
    named.append((path.with_name("generation_config.json"), checkpoint.generation_config))
    found = [
        _token_ids(place, each.get("eos_token_id"))
        for place, each in named
        if isinstance(each, dict)
    ]
    if checkpoint.gguf is None:
        found.append(_of_tokenizer(checkpoint.folder))
    ends: frozenset[int] = frozenset().union(*found)
    return ends or _token_ids(path, config.get("eos_token_id", usual))


def _token_ids(place: Path, value: object) -> frozenset[int]:
    ids: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if value is None:
        return frozenset()
    if not all(is_integer(item, 0) for item in ids):
        raise CheckpointError(
            f"{place} says that eos_token_id is {shown(value)}; it must be a "
            "token id or a list of them"
        )
    return frozenset(ids)


def _of_tokenizer(folder: Path) -> frozenset[int]:
    """Return the id of the ``eos_token`` that a tokenizer's own files name.

    Files that are damaged are refused where the tokenizer is loaded, if it is.
    """
    with suppress(CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError):
        path = folder / "tokenizer_config.json"
        config = read_json_object(path) if path.exists() else {}
        token = config.get("eos_token")
        content = token["content"] if isinstance(token, dict) else token
        if isinstance(content, str):
            return frozenset(_ids_of(folder, config.get("added_tokens_decoder") or {}, content))
    return frozenset()


def _ids_of(folder: Path, listed: dict[str, Any], content: str) -> Iterable[int]:
    known = [int(token) for token, entry in listed.items() if entry["content"] == content]
    path = folder / "tokenizer.json"
    if known or not path.exists():
        return known
    added = read_json_object(path).get("added_tokens") or ()
    return [entry["id"] for entry in added if entry["content"] == content]
