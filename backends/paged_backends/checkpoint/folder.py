"""A model's folder or GGUF file: where it is, its configuration, and which weights it holds.

A model that is not on this machine is downloaded from the Hugging Face hub. Neither torch nor
transformers is imported: availability checks and the tokenizer use it too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.gguf.architecture import config_of
from paged_backends.checkpoint.gguf.header import GgufHeader
from paged_backends.checkpoint.json_file import damaged, read_json_object
from paged_backends.checkpoint.weight_files import find_weight_files, read_headers
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.field_rules import shown

_OTHERS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file in ``folder``, or ``None``: there is none, or there are other weights.

    Raises:
        CheckpointError: there are several.
    """
    files = (path for path in folder.glob("*.gguf") if path.is_file())
    found = sorted(path for path in files if not path.name.startswith("mmproj"))  # of images
    if not found or any(True for pattern in _OTHERS for _ in folder.glob(pattern)):
        return None
    if len(found) > 1:
        listed = ", ".join(path.name for path in found[:10]) + (", ..." if len(found) > 10 else "")
        raise CheckpointError(
            f"{folder} holds {len(found)} GGUF files ({listed}); set `model` to one of them, or "
            "join those of one model with `llama-gguf-split --merge`"
        )
    return found[0]


_METADATA = ("*.json", "*.txt", "*.model", "*.jinja")
_IGNORED = ["*/*", "consolidated*"]
"""Other formats of the same weights."""


def download(model: str, *, allow_pickle: bool, trust_remote_code: bool) -> Path:
    """Return the folder of ``model``, a hub id; what is in the local cache is not fetched again.

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


def _fetch(model: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=patterns, ignore_patterns=_IGNORED))


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


DEMO = "demo"
"""The name of the model that is shipped with the package."""

_GRAPHS = ("genai_config.json", "*.onnx", "onnx/*.onnx")
"""Files of exported graphs: of onnxruntime-genai, optimum and others."""
ADAPTER = "adapter_config.json"
"""File of peft, beside weights that are to be added to those of a model."""
_GPTQ_FILE = "quantize_config.json"
"""File of AutoGPTQ, from before its content was a part of ``config.json``."""
_MAX_NAME = 100
"""Characters of the name of an architecture."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a readable ``config.json``, or one GGUF file.

    The weights of a folder are found when they are first asked for.
    """

    folder: Path
    config: Mapping[str, Any]
    """``config.json``; fields that are missing have the architecture's defaults."""
    generation_config: Mapping[str, Any]
    """``generation_config.json``; empty if there is none."""
    gguf: GgufHeader | None = None
    """Header of the GGUF file that holds all this, instead of the folder."""
    read: set[str] = field(default_factory=set, compare=False)
    """Paths of the fields of ``config`` that a runner reads."""

    @classmethod
    def open(
        cls,
        model: str,
        *,
        allow_pickle: bool = False,
        trust_remote_code: bool = False,
        reads_gguf: bool = False,
    ) -> Checkpoint:
        """Find ``model`` (see :func:`resolve_checkpoint`) and read its configuration.

        Raises:
            CheckpointError: there is no such model, or its configuration cannot be read.
            UnsupportedModel: it is a GGUF file, and those are not read, or not of this model; or an
                ONNX graph.
        """
        folder = resolve_checkpoint(
            model, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
        )
        if folder.is_file():
            if not reads_gguf:
                raise UnsupportedModel(
                    f"{folder} is a GGUF file, which runners native and onnxruntime read",
                    "; set runner to one of them",
                )
            from paged_backends.checkpoint.gguf.reader import read_header  # imports ``gguf``

            header = read_header(folder)
            return cls(folder.parent, config_of(header), {}, header)
        path = folder / "config.json"
        if not path.exists():
            if (graph := _foreign_graph(folder)) is not None:
                raise _graph_refused(graph)
            if (folder / ADAPTER).exists():
                raise _adapter_refused(folder)
            raise CheckpointError(
                f"{folder} has no config.json, so it is not a model; give the folder that "
                "`save_pretrained` wrote, a GGUF file (one of the hub: ID:NAME.gguf), or a hub id"
            )
        config = read_json_object(path)
        kind = config.get("model_type", "")
        if not isinstance(kind, str) or not kind.isprintable() or len(kind) > _MAX_NAME:
            raise damaged(f"{path} does not name an architecture: model_type is {shown(kind)}")
        generation = folder / "generation_config.json"
        return cls(
            folder,
            _with_quantization(folder, config),
            read_json_object(generation) if generation.exists() else {},
        )

    @property
    def place(self) -> Path:
        """The folder, or the GGUF file: so messages call the checkpoint."""
        return self.folder if self.gguf is None else self.gguf.path

    @property
    def config_path(self) -> Path:
        """The file that holds the configuration."""
        return self.folder / "config.json" if self.gguf is None else self.gguf.path

    @property
    def model_type(self) -> str:
        """The name of the architecture in transformers: ``llama``, ``gpt2``."""
        return str(self.config.get("model_type", "unknown"))

    @property
    def architectures(self) -> list[str]:
        """The classes of transformers that the checkpoint was saved from."""
        listed = self.config.get("architectures")
        return [str(name)[:_MAX_NAME] for name in listed] if isinstance(listed, list) else []

    @cached_property
    def weight_files(self) -> list[Path]:
        """The safetensors files, in the order of their names; empty if there are none.

        Raises:
            CheckpointError: the index cannot be read or names a file that is missing.
        """
        return find_weight_files(self.folder, "model.safetensors")

    @cached_property
    def pickle_files(self) -> list[Path]:
        """The weight files in pickle form, as :attr:`weight_files`."""
        return find_weight_files(self.folder, "pytorch_model.bin")

    @property
    def quantized_as(self) -> str | None:
        """The type or the method in which weights are quantised; ``None``: they are not."""
        if self.gguf is not None:
            types = (tensor.block_type for tensor in self.gguf.tensors.values())
            return next((block_type.name for block_type in types if block_type.is_quantized), None)
        described = self.config.get("quantization_config")
        if described is None:
            return None
        method = described.get("quant_method") if isinstance(described, Mapping) else None
        return method if isinstance(method, str) and method.isprintable() else "unknown"

    @property
    def num_weights(self) -> int:
        """Count of the weights' numbers, if those of a folder are stored in 16 bits."""
        if self.gguf is not None:
            return sum(prod(tensor.shape) for tensor in self.gguf.tensors.values())
        return sum(path.stat().st_size for path in self.weight_files) // 2

    def check_weights(self, *, allow_pickle: bool) -> None:
        """Check that the weights are there, complete, and in a form that may be loaded.

        Raises:
            CheckpointError: they are not; the message names the file and the remedy.
            UnsupportedModel: there is an ONNX graph in their place.
        """
        if self.gguf is not None:
            return
        if self.weight_files:
            read_headers(self.weight_files)
            return
        if self.pickle_files and allow_pickle:
            return
        if self.pickle_files:
            raise CheckpointError(
                f"{self.folder} holds its weights in pickle form only "
                f"({self.pickle_files[0].name}), and loading a pickle can run any code; convert "
                "them to safetensors, or set allow_pickle if you trust their source"
            )
        if (graph := _foreign_graph(self.folder)) is not None:
            raise _graph_refused(graph)
        if (self.folder / ADAPTER).exists():
            raise _adapter_refused(self.folder)
        raise damaged(
            f"{self.folder} has a configuration but no weights: expected model.safetensors, or "
            "model.safetensors.index.json and the files that it names"
        )


def _adapter_refused(folder: Path) -> UnsupportedModel:
    return UnsupportedModel(
        f"{folder} is an adapter (LoRA) to another model, which cannot be served by itself; merge "
        "the two (`merge_and_unload` of peft), and save the result"
    )


def _with_quantization(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with what older tools say of the quantisation where it is now."""
    if "quantization_config" in config:
        return config
    older, file = config.get("compression_config"), folder / _GPTQ_FILE
    if older is None and file.exists():
        older = {"quant_method": "gptq", **read_json_object(file)}
    return config if older is None else {**config, "quantization_config": older}


def _foreign_graph(folder: Path) -> Path | None:
    """Return an ONNX graph, or what describes one, in a folder; ``None``: there is none."""
    found = (path for name in _GRAPHS for path in sorted(folder.glob(name)))
    return next(found, None)


def _graph_refused(graph: Path) -> UnsupportedModel:
    return UnsupportedModel(
        f"{graph} is an exported ONNX graph, which no runner serves: set `model` to the checkpoint "
        "that it was exported from, as safetensors or GGUF; with runner onnxruntime, a graph is "
        "made of its weights"
    )


def resolve_checkpoint(
    model: str, *, allow_pickle: bool = False, trust_remote_code: bool = False
) -> Path:
    """Return the folder of ``model``, or its GGUF file: ``demo``, a path, or a hub id.

    A hub id is downloaded unless it is in the local cache; nothing else uses the network.

    Args:
        model: ``demo``, a path to a folder or to a GGUF file, an id such as ``Qwen/Qwen3-0.6B``, or
            an id with a GGUF file of the repository: ``Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf``.
        allow_pickle: also fetch weights in pickle form where there are no others.
        trust_remote_code: also fetch the model's own code.

    Raises:
        CheckpointError: there is no such folder, it holds several GGUF files and no other weights,
            or the hub lacks the model or cannot be reached.
        UnsupportedModel: it is an ONNX graph.
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
        return find_gguf(path) or path
    if path.is_file() and (path.suffix.lower() == ".gguf" or _begins(path) == b"GGUF"):
        return path
    if path.is_file() and path.suffix.lower() == ".onnx":
        raise _graph_refused(path)
    if path.is_file():
        raise CheckpointError(
            f"{model} is a file, and no GGUF file; set `model` to the folder that it is in"
        )
    is_file_name = path.suffix.lower() == ".gguf" and ":" not in model
    if is_file_name or _looks_like_path(model):
        raise CheckpointError(
            f"there is no {'file' if is_file_name else 'folder'} {model}; set `model` to a folder "
            "that holds config.json and safetensors, to a GGUF file, to a hub id such as "
            "Qwen/Qwen3-0.6B, or to `demo`"
        )
    repository, _, file = model.partition(":")
    if file:
        return download_file(repository, file)
    return download(model, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _looks_like_path(model: str) -> bool:
    return (
        not model
        or model.startswith((".", "~", "/"))
        or model.endswith("/")
        or "\\" in model
        or model.count("/") > 1
    )


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
