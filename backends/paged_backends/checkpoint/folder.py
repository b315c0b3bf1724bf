"""A model's folder: where it is, what its configuration says, and whether its weights are whole.

Nothing here imports torch or transformers: availability checks and the tokenizer use it too.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paged_core.errors import CheckpointError

DEMO = "demo"
"""The name of the model that is shipped with the package."""

_METADATA = ["*.json", "*.txt", "*.model", "*.jinja"]
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SAFE = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a readable ``config.json``; weights are looked at only when asked for."""

    folder: Path
    config: Mapping[str, Any]
    """``config.json``; what it leaves out has the architecture's default."""
    generation_config: Mapping[str, Any]
    """``generation_config.json``, or nothing."""

    @classmethod
    def open(
        cls, model: str, *, allow_pickle: bool = False, trust_remote_code: bool = False
    ) -> Checkpoint:
        """Find ``model`` (see :func:`resolve_checkpoint`) and read its configuration.

        Raises:
            CheckpointError: there is no such model, or its configuration cannot be read.
        """
        folder = resolve_checkpoint(
            model, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
        )
        path = folder / "config.json"
        if not path.is_file():
            raise CheckpointError(
                f"{folder} has no config.json, so it is not a model; give the folder that "
                "`save_pretrained` wrote, or a hub id"
            )
        generation = folder / "generation_config.json"
        return cls(folder, _read(path), _read(generation) if generation.is_file() else {})

    @property
    def model_type(self) -> str:
        """What transformers calls the architecture: ``llama``, ``gpt2``."""
        return str(self.config.get("model_type", "unknown"))

    @property
    def architectures(self) -> list[str]:
        """Classes that the checkpoint was saved from."""
        return list(self.config.get("architectures") or ())

    @cached_property
    def weight_files(self) -> list[Path]:
        """The safetensors files, in the order of their names; empty: there are none.

        Raises:
            CheckpointError: the index cannot be read or names a file that is missing.
        """
        return self._files(*_SAFE)

    @cached_property
    def pickle_files(self) -> list[Path]:
        """The same for weights in pickle form."""
        return self._files(*_PICKLED)

    def check_weights(self, *, allow_pickle: bool) -> None:
        """See that the weights are there, whole, and in a form that may be loaded.

        Raises:
            CheckpointError: they are not; the message says which file and what to do.
        """
        if self.weight_files:
            for path in self.weight_files:
                _check_safetensors(path)
            return
        if self.pickle_files and allow_pickle:
            return
        if self.pickle_files:
            raise CheckpointError(
                f"{self.folder} holds its weights in pickle form only "
                f"({self.pickle_files[0].name}), and loading a pickle can run any code; convert "
                "them to safetensors, or set allow_pickle if you trust their source"
            )
        raise CheckpointError(
            f"{self.folder} has a configuration but no weights: expected model.safetensors, or "
            "model.safetensors.index.json and the files that it names; download the checkpoint "
            "again"
        )

    def _files(self, single: str, index: str) -> list[Path]:
        if (self.folder / single).is_file():
            return [self.folder / single]
        if not (self.folder / index).is_file():
            return []
        shards = _read(self.folder / index).get("weight_map")
        if not isinstance(shards, Mapping) or not shards:
            raise CheckpointError(
                f"{self.folder / index} names no weight files; download the checkpoint again"
            )
        files = [self.folder / name for name in sorted(set(shards.values()))]
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise CheckpointError(
                f"{self.folder} lacks {len(missing)} of {len(files)} weight files "
                f"({_some(missing)}); download the checkpoint again"
            )
        return files


def resolve_checkpoint(
    model: str, *, allow_pickle: bool = False, trust_remote_code: bool = False
) -> Path:
    """Return the folder of ``model``: ``demo``, a folder, or a hub id.

    A hub id is downloaded unless it is in the local cache already; nothing else uses the network.

    Args:
        model: ``demo``, a path to a folder, or an id such as ``Qwen/Qwen3-0.6B``.
        allow_pickle: also fetch weights in pickle form where there are no others.
        trust_remote_code: also fetch the model's own code.

    Raises:
        CheckpointError: there is no such folder, or the hub does not have it or was not reached.
    """
    if model == DEMO:
        folder = Path(__file__).parents[1] / DEMO
        if not folder.is_dir():
            raise CheckpointError(
                f"this installation lacks the demo model ({folder}); install the package again, "
                "or set `model` to a folder or a hub id"
            )
        return folder
    path = Path(model).expanduser()
    if model and path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{model} is a file; set `model` to the folder that it lies in")
    if _looks_like_path(model):
        raise CheckpointError(
            f"there is no folder {model}; set `model` to a folder that holds config.json and "
            "safetensors, to a hub id such as Qwen/Qwen3-0.6B, or to `demo`"
        )
    return _download(model, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)


def _looks_like_path(model: str) -> bool:
    return (
        not model
        or model.startswith((".", "~", "/"))
        or model.endswith("/")
        or "\\" in model
        or model.count("/") > 1
    )


def _download(model: str, *, allow_pickle: bool, trust_remote_code: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    def fetch(patterns: Iterable[str]) -> Path:
        return Path(
            snapshot_download(
                model,
                allow_patterns=list(patterns),
                ignore_patterns=["*/*", "consolidated*"],  # other formats of the same weights
            )
        )

    patterns = [*_METADATA, "*.safetensors"]
    if trust_remote_code:
        patterns.append("*.py")
    try:
        folder = fetch(patterns)
        if allow_pickle and not any(folder.glob("*.safetensors")):
            folder = fetch([*patterns, "pytorch_model*.bin"])
    except HFValidationError as error:
        raise CheckpointError(
            f"{model!r} is neither a folder nor a hub id; set `model` to a folder, to a hub id "
            "such as Qwen/Qwen3-0.6B, or to `demo`"
        ) from error
    except GatedRepoError as error:
        raise CheckpointError(
            f"the hub gives {model} only to those who accepted its terms; accept them on its page "
            "and log in with `hf auth login`, or give a folder"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no folder {model} here and no model {model} on the hub (or it is private: "
            "log in with `hf auth login`); check the spelling"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"there is no folder {model} here, and the hub cannot be reached to look for a model "
            "of that name (offline?), nor was it downloaded before; give a folder, or use `demo`, "
            "which needs no network"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"downloading {model} from the hub failed ({_first_line(error)}); try again, or give a "
            "folder"
        ) from error
    return folder


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({_first_line(error)}); download the checkpoint again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object; download the checkpoint again")
    return content


def _check_safetensors(path: Path) -> None:
    """Compare a file's length with what its header promises: eight bytes of length, JSON, data."""
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


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
