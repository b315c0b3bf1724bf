"""Stored weights compared with others: scales with the codes they belong to, experts with experts.

Codes and scales of a matrix have each the name of the other. The library casts both to any dtype,
multiplies whatever is there, and does not miss scales.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.weight_files import StoredTensor, read_headers
from paged_core.errors import CheckpointError

_Shape = tuple[int, ...]
_EXPERT = re.compile(r"^(.+\.experts\.)(\d+)(\..+)$")


def odd_expert(shapes: Mapping[str, _Shape]) -> str | None:
    """Return what an expert's weight lacks beside those of the others, if any does.

    Args:
        shapes: of the weights, by name.
    """
    found: dict[tuple[str, str], dict[str, _Shape]] = defaultdict(dict)
    for name, shape in shapes.items():
        if parts := _EXPERT.match(name):
            found[parts[1], parts[3]][parts[2]] = shape
    numbers = sorted({number for stored in found.values() for number in stored}, key=int)
    for (before, after), stored in found.items():
        usual = Counter(stored.values()).most_common(1)[0][0]
        for number in numbers:
            if stored.get(number) != usual:
                odd = f"has the shape {stored[number]}" if number in stored else "is missing"
                return f"{before}{number}{after} {odd}, and those of other experts are {usual}"
    return None


def check_parts(checkpoint: Checkpoint) -> None:
    """Check the codes and the scales of the methods ``fp8`` and ``mxfp4``.

    Raises:
        CheckpointError: one of them is missing, or of another dtype or shape than the other needs.
    """
    check = _CHECKS.get(checkpoint.quantized_as or "")
    if check is not None and checkpoint.weight_files:
        described = checkpoint.config["quantization_config"]
        stored = read_headers(checkpoint.weight_files)
        check(stored, ConfigFields(checkpoint).part("quantization_config", described))


def _check_fp8(stored: Mapping[str, StoredTensor], fields: ConfigFields) -> None:
    """Check float8 ``weight`` and ``weight_scale_inv``, of blocks or one for all."""
    block = fields.any("weight_block_size", [128, 128])
    if block is not None and not _are_sides(block):
        raise fields.wrong("weight_block_size", "null or two whole numbers of at least 1")
    for name, tensor in stored.items():
        codes = name.removesuffix("_scale_inv")
        if codes != name:
            whole = _present(stored, codes, name, ("F8_E4M3",)).shape
            shapes = [(), (1,)]
            if block is not None:
                sides = zip(whole[-2:], block, strict=False)
                shapes.append((*whole[:-2], *(-(-side // size) for side, size in sides)))
            _check(name, tensor, ("F32", "BF16", "F16", "F8_E8M0"), shapes if block else ())
        elif tensor.dtype.startswith("F8_"):
            _present(stored, f"{name}_scale_inv", name)


def _check_mxfp4(stored: Mapping[str, StoredTensor], fields: ConfigFields) -> None:
    """Check ``blocks`` of 16 bytes and ``scales``, of one byte each."""
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            plain = name.removesuffix("_blocks")
            if plain in stored:
                raise _contradiction(f"{name} is stored beside {plain}")
            scales = _present(stored, f"{plain}_scales", name)
            _check(name, tensor, ("U8",), [(*scales.shape, 16)])
        elif name.endswith("_scales"):
            _present(stored, f"{name.removesuffix('scales')}blocks", name)
            _check(name, tensor, ("U8",))


_CHECKS: Mapping[str, Callable[[Mapping[str, StoredTensor], ConfigFields], None]] = {
    "fp8": _check_fp8,
    "mxfp4": _check_mxfp4,
}


def _are_sides(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(side, int) and side > 0 for side in value)
    )


def _present(
    stored: Mapping[str, StoredTensor], name: str, other: str, dtypes: Sequence[str] = ()
) -> StoredTensor:
    """Return a tensor that ``other`` needs."""
    if name not in stored:
        raise _contradiction(f"{other} needs {name}, which is not there")
    _check(name, stored[name], dtypes)
    return stored[name]


def _check(
    name: str, tensor: StoredTensor, dtypes: Sequence[str], shapes: Sequence[_Shape] = ()
) -> None:
    if dtypes and tensor.dtype not in dtypes:
        raise _contradiction(
            f"{name} is stored as {tensor.dtype}, and its matrix needs {' or '.join(dtypes)}"
        )
    if shapes and tensor.shape not in shapes:
        raise _contradiction(
            f"{name} has the shape {tensor.shape}, and its matrix needs {shapes[-1]}"
        )


def _contradiction(problem: str) -> CheckpointError:
    return CheckpointError(
        f"{problem}; quantization_config in config.json and the weights do not belong together: "
        "download the checkpoint again, or take another quantisation of the model"
    )
