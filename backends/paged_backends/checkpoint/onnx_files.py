"""The ONNX file of a checkpoint: found by its name, and not opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import read_json_object
from paged_core.errors import CheckpointError

GENAI_CONFIG = "genai_config.json"
"""What onnxruntime-genai writes in place of ``config.json``."""
ONNX_FILES = ("model.onnx", "onnx/model.onnx")
"""Where exporters put the graph."""

_MAX_NAME = 200


def find_onnx_file(folder: Path) -> Path | None:
    """Return the file that holds the whole decoder of a checkpoint; ``None``: there is none.

    Raises:
        CheckpointError: ``genai_config.json`` names a file that is not there.
    """
    genai = folder / GENAI_CONFIG
    if genai.is_file():
        return _named_by(genai)
    return next((folder / name for name in ONNX_FILES if (folder / name).is_file()), None)


def genai_section(path: Path, *names: str) -> Mapping[str, Any]:
    """Return an object in ``genai_config.json``, such as that of ``model`` and ``decoder``.

    Raises:
        CheckpointError: it is not there.
    """
    section: Any = read_json_object(path)
    for name in names:
        section = section.get(name)
        if not isinstance(section, Mapping):
            raise CheckpointError(
                f"{path} does not describe a decoder: {'.'.join(names)} must be an object; "
                "download the checkpoint again"
            )
    return section  # type: ignore[no-any-return]


def _named_by(genai: Path) -> Path:
    decoder = genai_section(genai, "model", "decoder")
    if "pipeline" in decoder:
        raise CheckpointError(
            f"{genai} names a pipeline of several graphs; build the model for the CPU or CUDA, "
            "which makes one"
        )
    name = decoder.get("filename", "model.onnx")
    plain = isinstance(name, str) and name.isprintable() and 0 < len(name) < _MAX_NAME
    if not plain or Path(name).is_absolute() or ".." in Path(name).parts:
        raise CheckpointError(
            f"{genai} names {str(name)[:100]!r} as its decoder, which is not in its folder; "
            "download the checkpoint again"
        )
    path = genai.parent / name
    if not path.resolve().parent.is_relative_to(genai.parent.resolve()) and not path.is_symlink():
        raise CheckpointError(
            f"{genai} names {name!r} as its decoder, which is not in its folder; download the "
            "checkpoint again"
        )
    if not path.is_file():
        raise CheckpointError(
            f"{genai} names {name!r} as its decoder, and there is no such file; download the "
            "checkpoint again"
        )
    return path
