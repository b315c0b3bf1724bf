"""Component ``onnxruntime``: which of its two runners loads a checkpoint."""

from __future__ import annotations

from paged_backends.checkpoint.folder import holds_only_onnx, resolve_checkpoint
from paged_backends.checkpoint.onnx_files import find_onnx_file
from paged_backends.runners.onnx.file.file_runner import OnnxFileRunner
from paged_backends.runners.onnx.runner import OnnxRuntimeRunner
from paged_backends.runners.settings import OnnxRuntimeSettings
from paged_core.errors import SettingsError
from paged_core.interfaces.runner import Runner, RunnerParts


def choose_runner(options: OnnxRuntimeSettings, parts: RunnerParts) -> Runner:
    """Return a runner for the weights of a checkpoint, or for an ONNX file.

    That is one that ``options`` name, or the only form in which the checkpoint has its weights.

    Raises:
        CheckpointError: there is no such model.
        SettingsError: the weights of an ONNX file shall be quantised, or generated without the
            configuration of a checkpoint.
    """
    settings = parts.settings
    folder = resolve_checkpoint(
        settings.model,
        allow_pickle=settings.allow_pickle,
        trust_remote_code=settings.trust_remote_code,
    )
    if options.weights == "random":
        if not (folder / "config.json").exists() and find_onnx_file(folder) is not None:
            raise SettingsError(
                "runner.weights: random generates weights from the config.json of a checkpoint, "
                f"and {folder} holds a finished ONNX graph without one; set it to checkpoint"
            )
        return OnnxRuntimeRunner(options, parts)
    if options.file is not None or holds_only_onnx(folder, allow_pickle=settings.allow_pickle):
        if options.quantization != "off":
            raise SettingsError(
                f"runner.quantization: an ONNX file of {folder} is served, with its weights as "
                "they are; set it to off, or give a checkpoint of safetensors"
            )
        return OnnxFileRunner(options, parts)
    return OnnxRuntimeRunner(options, parts)
