"""Faults planted where CUDA kernels write the cache, find places in it and combine splits; see
``test_cuda_faults.py``."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.test_cuda_faults import EDGES, RESULTS, Fault, build, conformance
from paged_backends.kernels.cuda.kernel import KernelError
from unit.emulated_kernels import Workshop

UNEVEN = "test_equals_dense_attention_on_short_sequences", [(300, 1), (3, 1), (530, 1)]

FAULTS = {
    "write: the last head has no values": Fault(
        "write.h", "row < 2 * call.kv_heads;", "row < 2 * call.kv_heads - 1;", *EDGES, RESULTS
    ),
    "cache: the scale of the next token": Fault(
        "cache.h", "* call.dim + offset}", "* call.dim + offset + 1}", *EDGES,
        f"{RESULTS}|beyond the end of cache|with no barrier between", "fp8_e4m3",
    ),
    "cache: blocks are numbered too low": Fault(
        "cache.h", "(__umulhi(number, call.block_factor) + number) >>",
        "__umulhi(number, call.block_factor) >>", *EDGES,
        f"{RESULTS}|beyond the end of",
    ),
    "combine: results that were not split": Fault(
        "combine.h", "  if (splits == 1) return;\n", "", *UNEVEN, RESULTS
    ),
    "combine: values of the dimension before": Fault(
        "combine.h", "factor * partial[2 + d]", "factor * partial[1 + d]", *UNEVEN, RESULTS
    ),
    "combine: splits of another row": Fault(
        "combine.h", "index * call.num_splits * (call.dim + 2)", "index * splits * (call.dim + 2)",
        *UNEVEN, RESULTS,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("faults"), checked=True)


def with_fault(name: str) -> Any:
    is_brief = name == "combine: results that were not split"
    return pytest.param(name, marks=() if is_brief else pytest.mark.slow)


@pytest.mark.parametrize("name", [with_fault(name) for name in FAULTS])
def test_a_fault_is_caught(workshop: Workshop, name: str) -> None:
    fault = FAULTS[name]
    case = conformance(build(workshop, name, fault), fault.cache)
    with pytest.raises((AssertionError, KernelError), match=fault.said):
        getattr(case, fault.test)(fault.argument)


@pytest.mark.slow
def test_without_a_fault_nothing_is_caught(workshop: Workshop) -> None:
    sound = Fault("write.h", "kWriteWarps = 4;", "kWriteWarps =  4;", *UNEVEN, "")
    case = conformance(build(workshop, "sound", sound), "auto")
    getattr(case, sound.test)(sound.argument)
