"""The weight files of a checkpoint: one file, or the shards that an index names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import read_json_object
from paged_backends.checkpoint.safetensors_header import StoredTensor, read_header
from paged_core.errors import CheckpointError

_MAX_NAME = 200
"""Characters of the name of a weight file."""


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
        raise CheckpointError(f"{index} names no weight files; download the checkpoint again")
    files = [_inside(index, shard) for shard in sorted(set(map(_text, shards.values())))]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(files)} weight files ({listed}); download the "
            "checkpoint again"
        )
    return files


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
            raise CheckpointError(
                f"{path} holds {min(twice)}, which another weight file of {path.parent} holds too; "
                "download the checkpoint again"
            )
        tensors.update(header)
    return tensors


def _text(shard: Any) -> str:
    """Return what an index says; what is no text is refused later, as no name of a file."""
    return shard if isinstance(shard, str) else ""


def _inside(index: Path, shard: str) -> Path:
    """Return the path of a shard.

    A link to a file is followed: a hub cache consists of them, and an index cannot make one. A
    link to a folder is not, because an index could name anything in there.
    """
    folder = index.parent
    path = folder / shard
    plain = shard.isprintable() and len(shard) < _MAX_NAME and ".." not in path.parts
    if not plain or not path.parent.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(
            f"{index} names {shard[:100]!r} as a weight file, which is not in its folder; download "
            "the checkpoint again"
        )
    return path
