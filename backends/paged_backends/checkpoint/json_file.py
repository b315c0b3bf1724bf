"""JSON files of a checkpoint, within bounds of size and depth, and fields of the right types."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from paged_core.errors import CheckpointError
from paged_core.field_rules import shown

MISSING: Any = object()
"""As a default: there must be a value."""
MAX_INTEGER = 2**31 - 1
_MIN_NUMBER, _MAX_NUMBER = 1e-30, 1e30
"""Far enough from what float32 rounds to zero or infinity to compute with."""

NUMBER = f"a number from {_MIN_NUMBER} to {_MAX_NUMBER}"

_MAX_BYTES = 32 << 20
"""The largest known index of weight files takes 15 MB."""
_MAX_DEPTH = 50
_MAX_NAME = 200
"""Characters of the name of a file."""


_OBJECT, _TEXT, _FLAG = "an object", "a string", "true or false"
_LIST = "a list or an object"
_TOKEN = "a string, or an object with a string as its content"
_ADDED = "an object of objects by token ids, each with a string as its content"
_INDEX = {"metadata": _OBJECT}
_SPECIAL = {
    "additional_special_tokens": _LIST,
    **{f"{name}_token": _TOKEN for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")},
}
_KINDS: Mapping[str, Mapping[str, str]] = {
    "config.json": {
        **dict.fromkeys(("text_config", "quantization_config", "compression_config"), _OBJECT),
        **dict.fromkeys(("auto_map", "id2label", "label2id"), _OBJECT),
        **dict.fromkeys(("dtype", "torch_dtype", "tokenizer_class"), _TEXT),
    },
    "tokenizer_config.json": {
        "added_tokens_decoder": _ADDED,
        "auto_map": _OBJECT,
        "split_special_tokens": _FLAG,
        "tokenizer_class": _TEXT,
        "extra_special_tokens": _LIST,
        **_SPECIAL,
    },
    "special_tokens_map.json": _SPECIAL,
    "model.safetensors.index.json": _INDEX,
    "pytorch_model.bin.index.json": _INDEX,
}
"""Types of the values that are handed to libraries, which do not check them, by file and name."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is :data:`NUMBER`; NaN is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return _MIN_NUMBER <= value <= _MAX_NUMBER


def is_integer(value: object, least: int, most: int = MAX_INTEGER) -> TypeGuard[int]:
    """Return whether ``value`` is a whole number of at least ``least`` and at most ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def damaged(problem: str) -> CheckpointError:
    """Return the error for a file of a checkpoint that is not as it was published."""
    return CheckpointError(f"{problem}; download the checkpoint again")


def one_line(error: object, most: int = 200) -> str:
    """Return what an error of a library says, in one line of so many characters."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def file_inside(folder: Path, name: object) -> Path | None:
    """Return the path of a file that is named in a file of ``folder``; ``None``: it leads outside.

    A link to a file is followed: a hub cache consists of them, and what names a file cannot make
    one. A link to a folder is not, because anything in there could be named.
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
        return None
    path, parts = folder / name, Path(name)
    if parts.is_absolute() or ".." in parts.parts:
        return None
    return path if path.parent.resolve().is_relative_to(folder.resolve()) else None


class TypedFields(ABC):
    """Values by name, checked for their types.

    Every method returns a value, ``default`` if it is missing, and raises
    :class:`CheckpointError` if there is neither, or it is of another type.
    """

    def integer(
        self, name: str, default: int = MISSING, *, least: int = 1, most: int = MAX_INTEGER
    ) -> int:
        """Return a whole number of at least ``least`` and at most ``most``."""
        value = self.given(name, default)
        if not is_integer(value, least, most):
            raise self.wrong(name, f"a whole number of at least {least} and at most {most}")
        return int(value)

    def number(self, name: str, default: float = MISSING) -> float:
        """Return a positive number that float32 can compute with."""
        value = self.given(name, default)
        if not is_number(value):
            raise self.wrong(name, NUMBER)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.given(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str = MISSING) -> str:
        """Return a string."""
        value = self.given(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    @abstractmethod
    def given(self, name: str, default: Any) -> Any:
        """Return a value as it is; raise if there is none and ``default`` is :data:`MISSING`."""

    @abstractmethod
    def wrong(self, name: str, kind: str) -> CheckpointError:
        """Return the error for a value that is not of this kind."""


def read_json_object(path: Path) -> Mapping[str, Any]:
    """Return the object in ``path``.

    Raises:
        CheckpointError: the file cannot be read, is too large or nested too deeply, or does not
            hold a JSON object, or one that gives a name two values, or one of another type to a
            name that libraries take unseen.
    """
    content = parse_json_object(path, read_text(path))
    for name, kind in _KINDS.get(path.name, {}).items():
        value = content.get(name)
        if value is not None and not _IS[kind](value):
            raise damaged(f"{path}: {name} must be {kind}, not {shown(value)}")
    return content


def read_text(path: Path) -> str:
    """Return the text of ``path``, in UTF-8.

    Raises:
        CheckpointError: it is no file, too large, or cannot be read.
    """
    try:
        if not path.is_file():
            raise damaged(f"{path} is not a file")
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise damaged(
                f"{path} has {size} bytes, and no such file of a checkpoint needs more than "
                f"{_MAX_BYTES}"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise damaged(f"{path} cannot be read as text ({error})") from error


def parse_json_object(path: Path, text: str | bytes) -> dict[str, Any]:
    """Return the object in ``text``, which was read from ``path``; raise as the above."""
    try:
        content = json.loads(text, object_pairs_hook=_unambiguous)
        deep = not _is_shallow(content)
    except RecursionError:
        deep = True
    except ValueError as error:
        raise damaged(f"{path} cannot be read as JSON ({error})") from error
    if deep:
        raise damaged(f"{path} is nested more than {_MAX_DEPTH} levels deep")
    if not isinstance(content, dict):
        raise damaged(f"{path} does not hold a JSON object")
    return content


def _is_token(value: object) -> bool:
    return isinstance(value.get("content") if isinstance(value, dict) else value, str)


def _are_added(value: object) -> bool:
    return isinstance(value, dict) and all(
        token.isdecimal()
        and token == str(int(token))
        and isinstance(entry, dict)
        and _is_token(entry)
        for token, entry in value.items()
    )


_IS: Mapping[str, Callable[[object], bool]] = {
    _OBJECT: lambda value: isinstance(value, dict),
    _TEXT: lambda value: isinstance(value, str),
    _FLAG: lambda value: isinstance(value, bool),
    _LIST: lambda value: isinstance(value, list | dict),
    _TOKEN: _is_token,
    _ADDED: _are_added,
}


def _unambiguous(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        for name, value in pairs:
            if content[name] != value:
                raise ValueError(f"{name[:100]!r} is given twice, with different values")
    return content


def _is_shallow(content: Any) -> bool:
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return True
    return False
