"""The weight files of a checkpoint: one file, or the shards that an index names."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from paged_backends.checkpoint.json_file import read_json_object
from paged_core.errors import CheckpointError


def find_weight_files(folder: Path, name: str) -> list[Path]:
    """Return ``name`` in ``folder`` or else the shards of its index, sorted; empty: there is none.

    Raises:
        CheckpointError: the index cannot be read, or names a file that is missing.
    """
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    shards = read_json_object(index).get("weight_map")
    if not isinstance(shards, Mapping) or not shards:
        raise CheckpointError(f"{index} names no weight files; download the checkpoint again")
    files = [folder / shard for shard in sorted(set(shards.values()))]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(files)} weight files ({listed}); download the "
            "checkpoint again"
        )
    return files


def check_safetensors(path: Path) -> None:
    """Compare a file's size with its header: eight bytes of length, JSON, then the data.

    Raises:
        CheckpointError: the file is truncated, corrupt, or a git-lfs pointer.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= size - 8:
            if prefix.startswith(b"version "):
                raise CheckpointError(
                    f"{path} is a git-lfs pointer, not the weights; run `git lfs pull` there"
                )
            raise CheckpointError(
                f"{path} is truncated or not a safetensors file ({size} bytes); download it again"
            )
        try:
            header = json.loads(file.read(length))
            ends = [
                entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
            ]
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{path} has a corrupt safetensors header; download it again"
            ) from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise CheckpointError(
            f"{path} has {size} bytes where its header promises {expected}; download it again"
        )
