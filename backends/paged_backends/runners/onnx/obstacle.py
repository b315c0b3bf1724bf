"""Whether ONNX Runtime is installed; nothing of it is imported."""

from __future__ import annotations

from importlib.util import find_spec

_INSTALL = "`pip install 'paged-core[onnx]'`"


def obstacle() -> str | None:
    """Return why not, or ``None``."""
    for package in ("onnxruntime", "onnx"):
        if find_spec(package) is None:
            return f"{package} is not installed: {_INSTALL}"
    return None
