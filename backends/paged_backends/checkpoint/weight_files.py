"""The weight files of a checkpoint, and which tensors safetensors hold, by their headers.

The format: eight bytes of length, a header in JSON, then the data of all tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import (
    damaged,
    file_inside,
    one_line,
    parse_json_object,
    read_json_object,
)
from paged_core.errors import CheckpointError
from paged_core.field_rules import shown

_MAX_BYTES = 32 << 20
"""A tensor takes some hundred bytes of it."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Type, shape and place of one tensor."""

    dtype: str
    """As safetensors spells it: ``F32``, ``BF16``, ``I64``."""
    shape: tuple[int, ...]
    begin: int = 0
    """Bytes before it in the file."""


def read_header(path: Path) -> Mapping[str, StoredTensor]:
    """Return the tensors of a file by name, all checked against its size and each other.

    The safetensors library checks that dtypes are known, that every shape fits its bytes, and that
    the tensors fill the file without gaps and overlaps.

    Raises:
        CheckpointError: the file is truncated, corrupt, or a git-lfs pointer.
    """
    from safetensors import SafetensorError, safe_open

    try:
        header, start = _parse(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); check who may read it") from error
    try:
        with safe_open(path, framework="np"):
            pass
        return {
            name: StoredTensor(
                entry["dtype"], tuple(entry["shape"]), start + entry["data_offsets"][0]
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        size = path.stat().st_size
        expected = start + _end(header)
        if expected > size:
            raise CheckpointError(
                f"{path} has {size} bytes where its header promises {expected}; download it again"
            ) from error
        raise CheckpointError(
            f"{path} has a corrupt safetensors header ({_reason(error)}); download it again"
        ) from error


def _parse(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and how many bytes come before its data."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if prefix.startswith(b"version "):
            raise CheckpointError(
                f"{path} is a git-lfs pointer, not the weights; run `git lfs pull` there"
            )
        if not 0 < length <= size - 8:
            raise CheckpointError(
                f"{path} is truncated or not a safetensors file ({size} bytes); download it again"
            )
        if length > _MAX_BYTES:
            raise CheckpointError(
                f"{path} has a corrupt safetensors header ({length} bytes, and at most "
                f"{_MAX_BYTES} are read); download it again"
            )
        content = file.read(length)
    try:
        return parse_json_object(path, content), 8 + length
    except CheckpointError as error:
        raise CheckpointError(
            f"{path} has a corrupt safetensors header ({_reason(error.__cause__ or error)}); "
            "download it again"
        ) from error


def _end(header: Mapping[str, Any]) -> int:
    """Return where the last tensor ends, as far as the header can be understood."""
    offsets = [entry.get("data_offsets") for entry in header.values() if isinstance(entry, dict)]
    ends = [pair[1] for pair in offsets if isinstance(pair, list) and len(pair) == 2]
    return max((end for end in ends if isinstance(end, int)), default=0)


def _reason(error: BaseException) -> str:
    return one_line(str(error).removeprefix("Error while deserializing header: "))


def find_weight_files(folder: Path, name: str) -> list[Path]:
    """Return ``name`` in ``folder`` or else the shards of its index, sorted; empty: there is none.

    Raises:
        CheckpointError: the index cannot be read, names a file that is missing, or one outside of
            the folder.
    """
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    shards = read_json_object(index).get("weight_map")
    if not isinstance(shards, Mapping) or not shards:
        raise damaged(f"{index} names no weight files")
    files: set[Path] = set()
    for shard in {each if isinstance(each, str) else None for each in shards.values()}:
        path = file_inside(folder, shard)
        if path is None:
            raise damaged(
                f"{index} names {shown(shard)} as a weight file, which is not in its folder"
            )
        files.add(path)
    missing = [path.name for path in sorted(files) if not path.is_file()]
    if missing:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise damaged(f"{folder} lacks {len(missing)} of {len(files)} weight files ({listed})")
    return sorted(files)


def read_headers(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return the tensors of safetensors files, which together are one checkpoint.

    Raises:
        CheckpointError: a file is corrupt, or two of them hold a tensor of the same name.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        header = read_header(path)
        twice = header.keys() & tensors.keys()
        if twice:
            raise damaged(
                f"{path} holds {min(twice)}, which another weight file of {path.parent} holds too"
            )
        tensors.update(header)
    return tensors
