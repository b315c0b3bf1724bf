"""A JSON file of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paged_core.errors import CheckpointError


def read_json_object(path: Path) -> Mapping[str, Any]:
    """Return the object in ``path``.

    Raises:
        CheckpointError: the file cannot be read, or does not hold a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({error}); download the checkpoint again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; download the checkpoint again")
    return content
