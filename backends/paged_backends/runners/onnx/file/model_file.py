"""One ONNX file, read within bounds: its graph, and where its weights are."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto
from onnx.defs import onnx_opset_version

from paged_backends.runners.onnx.file.embedded_weights import without_weights
from paged_core.errors import CheckpointError, UnsupportedModel

_MAX_BYTES = (1 << 31) - 1
"""Of one message, in protobuf."""
_MAX_NAME = 200
_LFS = b"version https://git-lfs"
_BYTES: dict[int, int] = {
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT64), 8),
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT32), 4),
    **dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16), 2),
    **dict.fromkeys((TensorProto.INT16, TensorProto.UINT16), 2),
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL), 1),
}
"""Of one number, by its type."""


def read_model_file(path: Path) -> ModelProto:
    """Return the model in a file, without its weights; where they lie is checked.

    Raises:
        CheckpointError: the file is damaged, or weights are missing or lie outside of its folder.
        UnsupportedModel: it needs a newer version of ONNX, or weights are of an unknown type.
    """
    model = ModelProto()
    try:
        model.ParseFromString(_light(path))
    except DecodeError as error:
        raise _damaged(path, str(error)) from error
    if not model.graph.node or not model.opset_import:
        raise _damaged(path, "it holds no graph")
    if not all(isinstance(text, str) for text in _texts(model)):
        raise _damaged(path, "it holds names that are no text")
    _check_opset(path, model)
    for tensor in model.graph.initializer:
        _check_tensor(path, tensor)
    return model


def _light(path: Path) -> bytes:
    """Return the content of a file without its large weights."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise CheckpointError(
                f"{path} has {size} bytes, and an ONNX file holds at most {_MAX_BYTES}; larger "
                "weights belong into files beside it"
            )
        if not size:
            raise _damaged(path, "it is empty")
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            if content[: len(_LFS)] == _LFS:
                raise CheckpointError(
                    f"{path} is a git-lfs pointer, not the model; run `git lfs pull` there"
                )
            with memoryview(content) as view:
                return without_weights(view, path.name)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); check who may read it") from error


def _texts(model: ModelProto) -> Iterator[object]:
    """Yield all names; protobuf returns those that are not UTF-8 as bytes."""
    graph = model.graph
    for entry in model.opset_import:
        yield entry.domain
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (axis.dim_param for axis in value.type.tensor_type.shape.dim)
    for weight in graph.initializer:
        yield weight.name
        for item in weight.external_data:
            yield from (item.key, item.value)


def _check_opset(path: Path, model: ModelProto) -> None:
    for entry in model.opset_import:
        if not entry.domain and entry.version > onnx_opset_version():
            raise UnsupportedModel(
                f"{path} was made for opset {entry.version} of ONNX, and the installed package "
                f"knows those up to {onnx_opset_version()}; `pip install -U onnx onnxruntime`"
            )


def _check_tensor(path: Path, tensor: TensorProto) -> None:
    external = tensor.data_location == TensorProto.EXTERNAL
    known = TensorProto.DataType.values()
    if tensor.data_type not in known or any(size < 0 for size in tensor.dims):
        raise _damaged(path, f"{tensor.name[:_MAX_NAME]!r} has no known type or shape")
    if external and tensor.data_type not in _BYTES:
        raise UnsupportedModel(
            f"{path} stores {tensor.name[:_MAX_NAME]!r} as "
            f"{TensorProto.DataType.Name(tensor.data_type)}, which is not known here; export it "
            "with weights in floating point, or in 4 or 8 bits of MatMulNBits"
        )
    if external:
        _check_external(path, tensor, prod(tensor.dims) * _BYTES[tensor.data_type])


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
