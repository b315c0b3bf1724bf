"""Tells one state of a checkpoint's files from another, without reading them."""

from __future__ import annotations

import hashlib

from paged_backends.checkpoint.folder import Checkpoint


def fingerprint(checkpoint: Checkpoint) -> str:
    """Return 16 hexadecimal digits that change whenever a weight file or the configuration does.

    What a file is, how long, and when it was last changed is asked of the file system, as git and
    make do: to read a file costs as much as to quantise it. A copy of a checkpoint therefore has
    another fingerprint. The configuration says which weights are stacked, and in which order.
    """
    known = hashlib.sha256()
    files = [] if checkpoint.gguf else [*checkpoint.weight_files, *checkpoint.pickle_files]
    for path in (checkpoint.config_path, *files):
        found = path.stat()
        state = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known.update(f"{path.name} {state}\n".encode())
    return known.hexdigest()[:16]
