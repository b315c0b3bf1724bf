"""One ONNX file, read within bounds: its graph, and where its weights are."""

from __future__ import annotations

from math import prod
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from paged_core.errors import CheckpointError

_MAX_BYTES = (1 << 31) - 1
"""Of one message, in protobuf."""
_MAX_NAME = 200
_BITS: dict[int, int] = {
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT64), 64),
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT32), 32),
    **dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16), 16),
    **dict.fromkeys((TensorProto.INT16, TensorProto.UINT16), 16),
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL), 8),
    **dict.fromkeys((TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2), 8),
    **dict.fromkeys((TensorProto.INT4, TensorProto.UINT4), 4),
}
"""Of one number, by its type; other types are no weights."""


def read_model_file(path: Path) -> ModelProto:
    """Return the model in a file; weights in files beside it are left there, and checked.

    Raises:
        CheckpointError: the file is damaged, or weights are missing or lie outside of its folder.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise CheckpointError(
                f"{path} has {size} bytes, and an ONNX file holds at most {_MAX_BYTES}; larger "
                "weights belong into files beside it"
            )
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); check who may read it") from error
    if content.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} is a git-lfs pointer, not the model; run `git lfs pull` there"
        )
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise _damaged(path, str(error)) from error
    if not model.graph.node or not model.opset_import:
        raise _damaged(path, "it holds no graph")
    for tensor in model.graph.initializer:
        _check_tensor(path, tensor)
    return model


def _check_tensor(path: Path, tensor: TensorProto) -> None:
    bits = _BITS.get(tensor.data_type)
    if bits is None or any(size < 0 for size in tensor.dims):
        raise _damaged(path, f"{tensor.name[:_MAX_NAME]!r} has no known type or shape")
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(path, tensor, -(-prod(tensor.dims) * bits // 8))


def _check_external(path: Path, tensor: TensorProto, num_bytes: int) -> None:
    """Check that a weight lies in a file of the folder, and within it."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    file = path.parent / name
    plain = 0 < len(name) <= _MAX_NAME and name.isprintable() and ".." not in Path(name).parts
    inside = plain and file.parent.resolve().is_relative_to(path.parent.resolve())
    if not inside or Path(name).is_absolute():
        raise CheckpointError(
            f"{path} says that {tensor.name[:_MAX_NAME]!r} is in {name[:100]!r}, which is not in "
            "its folder; download the checkpoint again"
        )
    if not file.is_file():
        raise CheckpointError(
            f"{path} lacks its weights: {file} is missing; download the checkpoint again"
        )
    try:
        begin = int(entries.get("offset") or 0)
        length = int(entries.get("length") or num_bytes)
    except ValueError as error:
        raise _damaged(path, f"{tensor.name[:_MAX_NAME]!r} lies at no number") from error
    size = file.stat().st_size
    if begin < 0 or length != num_bytes or begin + length > size:
        raise CheckpointError(
            f"{file} has {size} bytes, and {path.name} looks for {num_bytes} of "
            f"{tensor.name[:_MAX_NAME]!r} at {begin}; download the checkpoint again"
        )


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read as an ONNX model ({' '.join(reason.split())[:200]}); download the "
        "checkpoint again"
    )
