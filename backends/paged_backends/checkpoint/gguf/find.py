"""The GGUF file of a folder."""

from __future__ import annotations

from pathlib import Path

from paged_core.errors import CheckpointError

_OTHERS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file in ``folder``, or ``None``: there is none, or there are other weights.

    Raises:
        CheckpointError: there are several.
    """
    found = sorted(path for path in folder.glob("*.gguf") if path.is_file())
    if not found or any(True for pattern in _OTHERS for _ in folder.glob(pattern)):
        return None
    if len(found) > 1:
        listed = ", ".join(path.name for path in found[:10]) + (", ..." if len(found) > 10 else "")
        raise CheckpointError(
            f"{folder} holds {len(found)} GGUF files ({listed}); set `model` to one of them"
        )
    return found[0]
