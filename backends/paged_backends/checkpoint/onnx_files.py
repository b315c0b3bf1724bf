"""The ONNX file of a checkpoint: found by its name, and not opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import damaged, file_inside, read_json_object
from paged_core.errors import CheckpointError, SettingsError
from paged_core.field_rules import shown

GENAI_CONFIG = "genai_config.json"
"""What onnxruntime-genai writes in place of ``config.json``."""
ONNX_FILES = ("model.onnx", "onnx/model.onnx")
"""Where exporters put the graph."""


def find_onnx_file(folder: Path) -> Path | None:
    """Return the file that holds the whole decoder of a checkpoint; ``None``: there is none.

    Raises:
        CheckpointError: ``genai_config.json`` names a file that is not there.
    """
    genai = folder / GENAI_CONFIG
    if genai.is_file():
        path = folder / _decoder_name(genai)
        if not path.is_file():
            raise damaged(f"{genai} names {path.name!r} as its decoder, and there is no such file")
        return path
    return next((folder / name for name in ONNX_FILES if (folder / name).is_file()), None)


def chosen_onnx_file(folder: Path, name: str) -> Path:
    """Return the file of a checkpoint that the option ``file`` of a runner names.

    Raises:
        SettingsError: it is not there, or not in the folder.
    """
    path = file_inside(folder, name)
    if path is None:
        raise SettingsError(
            f"runner.file: {shown(name)} is not in {folder}; give the name of a file in there"
        )
    if not path.is_file():
        found = ", ".join(onnx_files(folder))[:300] or "none"
        raise SettingsError(
            f"runner.file: {folder} has no {shown(name)}; give one of its ONNX files: {found}"
        )
    return path


def onnx_files(folder: Path) -> list[str]:
    """Return the names of all ONNX files of a checkpoint."""
    found = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    return sorted(str(path.relative_to(folder)) for path in found)


def onnx_patterns(folder: Path) -> list[str]:
    """Return patterns of the names under which a hub keeps the decoder and its weights.

    Args:
        folder: where the configuration is already.

    Raises:
        CheckpointError: ``genai_config.json`` names no file.
    """
    genai = folder / GENAI_CONFIG
    names = [_decoder_name(genai)] if genai.is_file() else ONNX_FILES
    return [pattern for name in names for pattern in (name, f"{name}.data", f"{name}_data*")]


def genai_section(path: Path, *names: str) -> Mapping[str, Any]:
    """Return an object in ``genai_config.json``, such as that of ``model`` and ``decoder``.

    Raises:
        CheckpointError: it is not there.
    """
    section: Any = read_json_object(path)
    for name in names:
        section = section.get(name)
        if not isinstance(section, Mapping):
            raise damaged(
                f"{path} does not describe a decoder: {'.'.join(names)} must be an object"
            )
    return section  # type: ignore[no-any-return]


def _decoder_name(genai: Path) -> str:
    decoder = genai_section(genai, "model", "decoder")
    for part, section in genai_section(genai, "model").items():
        if part != "decoder" and isinstance(section, Mapping) and "filename" in section:
            raise CheckpointError(
                f"{genai} names a graph for {shown(part)} beside its decoder, and only a decoder "
                "is served; give a model of text alone"
            )
    if "pipeline" in decoder:
        raise CheckpointError(
            f"{genai} names a pipeline of several graphs; build the model for the CPU or CUDA, "
            "which makes one"
        )
    name = decoder.get("filename", ONNX_FILES[0])
    if file_inside(genai.parent, name) is None:
        raise damaged(f"{genai} names {shown(name)} as its decoder, which is not in its folder")
    return str(name)
