"""Download of a checkpoint from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paged_backends.checkpoint.onnx_files import onnx_patterns
from paged_core.errors import CheckpointError

_METADATA = ("*.json", "*.txt", "*.model", "*.jinja")
_IGNORED = ("*/*", "consolidated*")
"""Other formats of the same weights."""


def download(model: str, *, allow_pickle: bool, trust_remote_code: bool) -> Path:
    """Return the folder of ``model``, a hub id; what is in the local cache is not fetched again.

    An ONNX file is fetched only where there are no other weights.

    Args:
        allow_pickle: also fetch weights in pickle form if there are no safetensors.
        trust_remote_code: also fetch the model's own code.

    Raises:
        CheckpointError: the hub has no such model, does not give it, or cannot be reached.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    patterns = [*_METADATA, "*.safetensors", *(["*.py"] if trust_remote_code else [])]
    try:
        folder = _fetch(model, patterns)
        if allow_pickle and not any(folder.glob("*.safetensors")):
            folder = _fetch(model, [*patterns, "pytorch_model*.bin"])
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
            folder = _fetch(model, onnx_patterns(folder), ignored=())
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(_problem(model, error)) from error
    return folder


def download_file(model: str, name: str) -> Path:
    """Return one GGUF file of ``model``, a hub id; as :func:`download`, and with its errors."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    if not name.lower().endswith(".gguf"):
        raise CheckpointError(
            f"{model}:{name} does not name a GGUF file; write {model}:NAME.gguf, or {model}"
        )
    try:
        return Path(hf_hub_download(model, name))
    except (EntryNotFoundError, HFValidationError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(_problem(model, error)) from error


def _fetch(model: str, patterns: list[str], *, ignored: Sequence[str] = _IGNORED) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(model, allow_patterns=patterns, ignore_patterns=list(ignored))
    return Path(folder)


def _problem(model: str, error: Exception) -> str:
    """Return what ``error`` means and what to do; the narrowest kinds of errors come first."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    if isinstance(error, HFValidationError):
        return (
            f"{model!r} is neither a folder nor a hub id; set `model` to a folder, to a hub id "
            "such as Qwen/Qwen3-0.6B, or to `demo`"
        )
    if isinstance(error, GatedRepoError):
        return (
            f"the hub gives {model} only to users who accepted its terms; accept them on its page "
            "and log in with `hf auth login`, or give a folder"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no folder {model} here and no model {model} on the hub (or it is private: "
            "log in with `hf auth login`); check the spelling"
        )
    if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return (
            f"there is no folder {model} here, and the hub cannot be reached to look for a model "
            "of that name (offline?), nor was it downloaded before; give a folder, or use `demo`, "
            "which needs no network"
        )
    if isinstance(error, EntryNotFoundError):
        return f"{model} on the hub has no file of that name; check the spelling"
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"downloading {model} from the hub failed ({reason}); try again, or give a folder"
