"""Attention by packages for GPUs keeps its contract, over stand-ins that refuse as they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from lanes import inherited
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.emulation import EmulatedModule
from paged_testing import AttentionConformance
from unit.attention_packages.install import install


@inherited(
    "test_more_tokens_than_a_dimension_of_a_grid_may_have",
    "test_a_sequence_of_several_thousand_blocks",
    "test_a_result_hardly_depends_on_the_rest_of_the_batch",
    "test_the_same_batch_gives_the_same_bits",
)
class OverStandIns(AttentionConformance):
    """What takes long is left to the long tests: the stand-ins compute everything by one code."""

    dtypes = ("bfloat16",)
    max_examples = 8
    head_dims = (64, 80, 96, 128, 256)
    packages: ClassVar[tuple[str, ...]]

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        install(monkeypatch, *self.packages)
        yield

    def test_more_tokens_than_a_dimension_of_a_grid_may_have(self) -> None:
        if self.block_multiple > 1:
            pytest.skip("66,000 sequences with a block of 256 tokens each take 4 GB")
        super().test_more_tokens_than_a_dimension_of_a_grid_may_have()

    @pytest.mark.slow
    @pytest.mark.parametrize("changes", [{}, {"sliding_window": 100}], ids=str)
    def test_sequences_may_begin_with_the_same_blocks(self, changes: dict[str, Any]) -> None:
        super().test_sequences_may_begin_with_the_same_blocks(changes)


class TestFlashAttn2(OverStandIns):
    component: ClassVar[Mapping[str, Any]] = {"name": "flash_attn", "provider": "fa2"}
    packages = ("fa2",)
    block_multiple = 256


@pytest.mark.slow
class TestFlashAttn2Deterministic(OverStandIns):
    component: ClassVar[Mapping[str, Any]] = {"name": "flash_attn", "provider": "fa2"}
    packages = ("fa2",)
    block_multiple = 256
    deterministic = True


class TestFlashAttn3(OverStandIns):
    component = "flash_attn"
    packages = ("fa3",)
    dtypes = ("float16",)


class TestFlashAttn4(OverStandIns):
    component: ClassVar[Mapping[str, Any]] = {"name": "flash_attn", "provider": "fa4"}
    packages = ("fa4",)


class TestTorchVarlen(OverStandIns):
    component: ClassVar[Mapping[str, Any]] = {"name": "flash_attn", "provider": "torch"}
    packages = ("torch",)
    block_multiple = 256


class TestFlashInfer(OverStandIns):
    component = "flashinfer"
    packages = ("flashinfer",)


class TestHybrid(OverStandIns):
    component: ClassVar[Mapping[str, Any]] = {"name": "hybrid", "decode": "flashinfer"}
    packages = ("fa3", "flashinfer")
    head_dims = (64, 128, 256)


class TestHybridOfCuda(OverStandIns):
    """Our kernels write and read what the package reads and writes, in one cache."""

    component: ClassVar[Mapping[str, Any]] = {
        "name": "hybrid",
        "prefill": "flash_attn",
        "decode": {"name": "cuda", "target": "emulated"},
    }
    packages = ("fa3",)
    max_seconds = 120

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _compiled(cls) -> None:
        """Compile outside of the tests, in which a call may not wait long for another process."""
        with suppress(CannotCompile):  # the tests say so
            EmulatedModule.load(checked=False)


class TestHybridOfTorch(OverStandIns):
    component: ClassVar[Mapping[str, Any]] = {
        "name": "hybrid",
        "prefill": "torch",
        "decode": {"name": "torch"},
    }
    packages = ()
    dtypes = ("float32",)
    head_dims = (1, 6, 16, 33, 64, 80)
