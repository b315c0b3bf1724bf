"""The folder of quantised weights: found again, made again, deleted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from structlog.testing import capture_logs

from paged_backends.checkpoint.folder import Checkpoint, fingerprint
from paged_backends.quantization.disk_cache import DiskCache, file_size
from paged_backends.quantization.matrix import QuantizedWeights, Rows, shape_of
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat

pytestmark = pytest.mark.heavy


INT8 = WeightFormat(8, 32)
MATRICES: list[Rows] = [[torch.arange(640.0).view(10, 64)], [torch.ones(3, 64), torch.ones(2, 64)]]
OTHERS: list[Rows] = [[torch.full_like(part, 7.0) for part in rows] for rows in MATRICES]
SIZE = file_size(INT8, [shape_of(rows) for rows in MATRICES])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def is_of(weights: QuantizedWeights, matrices: list[Rows]) -> bool:
    made = quantize(matrices, INT8)
    return all(
        torch.equal(left.dequantized(), right.dequantized())
        for left, right in zip(weights.matrices, made, strict=True)
    )


def names(folder: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in folder.glob("*.safetensors")}


def test_weights_are_quantised_once_for_each_format_and_checkpoint(folder: Path) -> None:
    """The second time they are not even read: other ones would be quantised otherwise."""
    cache = DiskCache(folder)
    with capture_logs() as logs:
        assert is_of(cache.weights("model", MATRICES, INT8), MATRICES)
        assert is_of(cache.weights("model", OTHERS, INT8), MATRICES)
        assert is_of(cache.weights("other", OTHERS, INT8), OTHERS)
        for weight_format in (WeightFormat(4, 32), WeightFormat(8, 64)):
            cache.weights("model", MATRICES, weight_format)
    assert [entry["cached"] for entry in logs] == [False, True, False, False, False]
    assert len(list(folder.glob("*.safetensors"))) == 4
    assert folder.stat().st_mode & 0o777 == 0o700


def flip(place: int) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        *(flip(place) for place in (0, 100, -1)),  # the last: the checksum
        lambda path: path.write_bytes(path.read_bytes() + b"longer"),
        lambda path: os.truncate(path, SIZE - 1),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_damaged_file_is_made_again(folder: Path, damage: Callable[[Path], object]) -> None:
    DiskCache(folder).weights("model", MATRICES, INT8)
    damage(next(folder.glob("*.safetensors")))
    with capture_logs() as logs:
        assert is_of(DiskCache(folder).weights("model", MATRICES, INT8), MATRICES)
    assert [entry["event"] for entry in logs] == ["quantized_weights_damaged", "weights_quantized"]
    assert is_of(DiskCache(folder).weights("model", OTHERS, INT8), MATRICES), "found again"


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("nothing")], ids=["a pipe", "a dangling link"]
)
def test_what_is_no_file_is_replaced(folder: Path, put: Callable[[Path], object]) -> None:
    DiskCache(folder).weights("model", MATRICES, INT8)
    path = next(folder.glob("*.safetensors"))
    path.unlink()
    put(path)
    assert is_of(DiskCache(folder).weights("model", MATRICES, INT8), MATRICES)
    assert path.is_file()
    assert not path.is_symlink()


def test_those_unused_for_the_longest_time_are_deleted(folder: Path) -> None:
    cache = DiskCache(folder, max_bytes=2 * SIZE)
    cache.weights("first", MATRICES, INT8)
    cache.weights("second", MATRICES, INT8)
    kept = cache.weights("first", MATRICES, INT8)
    for time, name in enumerate(("second", "first")):
        os.utime(next(folder.glob(f"{name}-*")), (time, time))
    cache.weights("second", MATRICES, INT8)  # used again
    cache.weights("third", MATRICES, INT8)
    assert names(folder) == {"second", "third"}
    assert is_of(kept, MATRICES), "what is mapped stays"


def test_a_model_larger_than_the_limit_is_alone(folder: Path) -> None:
    cache = DiskCache(folder, max_bytes=SIZE - 1)
    for name in ("first", "second"):
        assert is_of(cache.weights(name, MATRICES, INT8), MATRICES)
    assert names(folder) == {"second"}


def test_what_a_killed_process_left_is_deleted(folder: Path) -> None:
    folder.mkdir()
    (folder / "model-int8-g32-v1.tmp").write_bytes(b"half")
    (folder / "other.tmp").write_bytes(b"half")
    assert is_of(DiskCache(folder).weights("model", MATRICES, INT8), MATRICES)
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("is_full", [True, False])
def test_a_disk_that_is_nearly_full_and_a_folder_that_cannot_be_made(
    folder: Path, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_full:
        usage = shutil.disk_usage(folder.parent)._replace(free=2 * SIZE - 1)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    else:
        folder.write_text("")
    with capture_logs() as logs:
        weights = DiskCache(folder).weights("model", MATRICES, INT8)
    assert is_of(weights, MATRICES)
    weights.release()
    assert [entry["event"] for entry in logs] == ["quantized_weights_not_cached"]
    assert not names(folder)


def test_one_of_several_makes_it(folder: Path) -> None:
    """Locks are of open files, so threads exclude each other as processes do."""
    with capture_logs() as logs, ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda _: DiskCache(folder).weights("model", MATRICES, INT8), range(4))
        )
    assert all(is_of(weights, MATRICES) for weights in found)
    assert sorted(entry["cached"] for entry in logs) == [False, True, True, True]


def test_a_fingerprint_is_of_one_state_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text("{}")
    save_file({"weight": torch.ones(3)}, tmp_path / "one" / "model.safetensors")
    before = fingerprint(Checkpoint.open(str(tmp_path / "one")))
    assert fingerprint(Checkpoint.open(str(tmp_path / "one"))) == before
    (tmp_path / "one").rename(tmp_path / "two")
    assert fingerprint(Checkpoint.open(str(tmp_path / "two"))) == before
    for name in ("model.safetensors", "config.json"):
        path = tmp_path / "two" / name
        state = path.stat()
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # a copy that keeps its time
        after = fingerprint(Checkpoint.open(str(tmp_path / "two")))
        assert after != before, name
        before = after
