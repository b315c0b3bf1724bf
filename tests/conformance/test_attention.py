"""The attention components keep their contract, on every instruction set that there is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from lanes import inherited
from paged_testing import AttentionConformance

pytestmark = pytest.mark.usefixtures("compiled_kernels")


class TestTorch(AttentionConformance):
    component = "torch"
    dtypes = ("float32", "bfloat16", "float16")


@inherited(
    "test_more_tokens_than_a_dimension_of_a_grid_may_have",
    "test_a_sequence_of_several_thousand_blocks",
)
class TestTorchDeterministic(AttentionConformance):
    component = "torch"
    deterministic = True
    keeps_bits = True
    max_examples = 15
    max_seconds = 120  # a call computes thousands of sequences one after another


class TestTorchFloat8(AttentionConformance):
    component = "torch"
    dtypes = ("float32", "bfloat16")
    kv_cache_dtype = "fp8_e4m3"


@inherited("test_more_tokens_than_a_dimension_of_a_grid_may_have")
class OnCpu(AttentionConformance):
    """The best instruction set and the portable one; the others are in a lane of their own."""

    keeps_bits = True


class TestCpu(OnCpu):
    component = "cpu"


class TestCpuInTiles(OnCpu):
    component = "cpu"
    deterministic = True


class OnCpuInt8(OnCpu):
    kv_cache_dtype = "int8"
    max_examples = 15


class TestCpuInt8(OnCpuInt8):
    component = "cpu"


@pytest.mark.slow
class TestCpuInt8InTiles(OnCpuInt8):
    component = "cpu"
    deterministic = True


@pytest.mark.slow
class TestCpuInt8Avx512Amx(OnCpuInt8):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx512_amx"}


@pytest.mark.slow
class TestCpuInt8Avx512AmxEmulated(OnCpuInt8):
    component: ClassVar[Mapping[str, Any]] = {
        "name": "cpu",
        "instruction_set": "avx512_amx_emulated",
    }


@pytest.mark.slow
class TestCpuInt8PortableAmxEmulated(OnCpuInt8):
    component: ClassVar[Mapping[str, Any]] = {
        "name": "cpu",
        "instruction_set": "portable_amx_emulated",
    }


@pytest.mark.slow
class TestCpuInt8Avx512(OnCpuInt8):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx512"}


@pytest.mark.slow
class TestCpuInt8Avx512Bf16(OnCpuInt8):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx512_bf16"}


@pytest.mark.slow
class TestCpuInt8Avx2(OnCpuInt8):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx2"}


@pytest.mark.slow
class TestCpuInt8Portable(OnCpuInt8):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "portable"}


@pytest.mark.lane("instruction-sets")
class TestCpuAvx512Amx(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx512_amx"}


@pytest.mark.lane("instruction-sets")
class TestCpuAvx512AmxEmulated(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {
        "name": "cpu",
        "instruction_set": "avx512_amx_emulated",
    }


@pytest.mark.lane("instruction-sets")
class TestCpuPortableAmxEmulated(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {
        "name": "cpu",
        "instruction_set": "portable_amx_emulated",
    }


@pytest.mark.lane("instruction-sets")
class TestCpuAvx512(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx512"}


@pytest.mark.lane("instruction-sets")
class TestCpuAvx512Bf16(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx512_bf16"}


@pytest.mark.lane("instruction-sets")
class TestCpuAvx512Bf16Mixed(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx512_bf16_mixed"}


@pytest.mark.lane("instruction-sets")
class TestCpuAvx2(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "avx2"}


class TestCpuPortable(OnCpu):
    component: ClassVar[Mapping[str, Any]] = {"name": "cpu", "instruction_set": "portable"}
