"""Faults planted in the Triton kernels are noticed: each by the scene that is named for it.

The scenes run over the kernels as they are in ``test_triton_accesses.py``, with the heavy tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from paged_backends.kernels.triton.availability import is_interpreted
from paged_core.interfaces.layer import LayerSpec

if not is_interpreted():
    pytest.skip("there is a GPU, and Triton interprets nothing", allow_module_level=True)

import paged_backends
from unit.attention_calls import check
from unit.triton_kernels import FLOAT8, H200, LAYER, LaunchedFor, scene

pytestmark = pytest.mark.heavy


KERNELS = Path(paged_backends.__file__).parent / "kernels" / "triton"
LAYERS = Path(paged_backends.__file__).parent / "attention" / "triton_layer.py"

SMALL = replace(LAYER, num_heads=2, num_kv_heads=1)
SCENES: dict[str, tuple[LayerSpec, list[tuple[int, int]]]] = {
    "decode": (LAYER, [(20, 1), (36, 1)]),
    "chunk": (LAYER, [(20, 5), (0, 17)]),
    "float8": (replace(FLOAT8, num_heads=2, num_kv_heads=1), [(20, 1)]),
    "window": (replace(SMALL, sliding_window=7), [(40, 1), (20, 9)]),
    "cap and slopes": (replace(SMALL, soft_cap=3.0, alibi_slopes=(0.5, 0.1)), [(20, 1), (4, 5)]),
    "sinks": (replace(SMALL, sinks=(3.0, 1.0)), [(20, 1), (4, 5)]),
    "sinks, splits": (replace(SMALL, sinks=(9.0, 7.0)), [(530, 1)]),
    "splits": (SMALL, [(530, 1)]),
    "negative scale": (replace(SMALL, scale=-0.3), [(20, 1), (4, 5)]),
    "no scale": (replace(SMALL, scale=0.0), [(20, 1), (4, 5)]),
    "rising scores": (replace(SMALL, scale=3.0), [(90, 40)]),
}


@dataclass(frozen=True, slots=True)
class Fault:
    file: str
    right: str
    wrong: str
    noticed_in: str


FAULTS = {
    "off by one at the last block, decode": Fault(
        "attention", "KEYS, length),", "KEYS, length - 1),", "decode"
    ),
    "a key too many, chunk": Fault(
        "attention", "<= position_R[:, None]", "<= position_R[:, None] + 1", "chunk"
    ),
    "an unused slot is read": Fault(
        "attention", "is_there_N = position_N < end", "is_there_N = position_N < end + 1",
        "chunk",
    ),
    "wrong group, decode": Fault(
        "attention", "(kv_head * GROUP + row_R)", "(kv_head + KV_HEADS * row_R)", "decode"
    ),
    "lost scale of the softmax": Fault(
        "attention", "return score_RN, scale * LOG2_E", "return score_RN, LOG2_E", "decode"
    ),
    "lost sign of the scale": Fault(
        "attention", "query_RD = query_RD * SIGN", "pass", "negative scale"
    ),
    "lost scale of the past": Fault(
        "attention", "out_RD *= shrunk_R[:, None]", "pass", "splits"
    ),
    "a row rises and its tile is not multiplied": Fault(
        "attention", "tl.int32), 0) > 0", "tl.int32), 0) > 1", "rising scores"
    ),
    "lost scale of float8 keys": Fault(
        "attention", "product_RN *= power_of_two(", "_ = (", "float8"
    ),
    "scale of float8 one too small": Fault(
        "cache", "bits_N >> 23) - 8", "bits_N >> 23) - 9", "float8"
    ),
    "a key behind the window": Fault(
        "attention", "(position_R - window)", "(position_R - window - 1)", "window"
    ),
    "lost sinks, decode": Fault(
        "attention", "tl.load(sinks + head_R, row_R < GROUP, 0.0)", "head_R * 0.0", "sinks"
    ),
    "lost sinks, chunk": Fault(
        "attention", "tl.load(sinks + head_R, row_R < num_rows, 0.0)", "head_R * 0.0", "sinks"
    ),
    "lost sinks, splits": Fault(
        "attention", "tl.exp2(tl.fma(tl.load(sinks + head), LOG2_E, -top))", "0.0",
        "sinks, splits",
    ),
    "lost cap": Fault("attention", "if HAS_CAP:", "if False:", "cap and slopes"),
    "values are written where keys belong": Fault(
        "cache", "value_N = key_N + KV_HEADS * HEAD_SIZE", "value_N = key_N", "decode"
    ),
}  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Returns the kind of layer that launches a copy of the kernels with a fault in it."""

    def plant(fault: Fault) -> Any:
        package = tmp_path / "faulty_kernels"
        package.mkdir()
        for file in [*KERNELS.glob("*.py"), LAYERS]:
            source = file.read_text().replace("paged_backends.kernels.triton", package.name)
            if file.stem == fault.file:
                assert fault.right in source, "the kernel is written otherwise now"
                source = source.replace(fault.right, fault.wrong)
            (package / file.name).write_text(source)
        return import_module(f"{package.name}.triton_layer").TritonLayer

    monkeypatch.syspath_prepend(tmp_path)
    yield plant
    for name in [name for name in sys.modules if name.startswith("faulty_kernels")]:
        del sys.modules[name]


def run(kind: Any, name: str) -> None:
    layer, chunks = SCENES[name]
    gpu = H200 if name in ("splits", "sinks, splits", "rising scores") else None
    check(scene(LaunchedFor(gpu, kind=kind), layer, chunks))


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str, planted: Any) -> None:
    fault = FAULTS[name]
    with pytest.raises(AssertionError, match="values are wrong"):
        run(planted(fault), fault.noticed_in)
