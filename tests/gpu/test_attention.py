"""Attention on a GPU, by our kernels and by packages where they are installed: the contract of
every component, CUDA graphs, and that no step waits for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from gpu.no_waiting import no_waiting
from paged_backends.attention.cuda_attention import CudaAttention
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.driver import Context, Driver
from paged_backends.kernels.cuda.kernel import Call, Variant
from paged_backends.kernels.cuda.targets import architecture
from paged_backends.kernels.cuda.toolkit import Nvcc, Nvrtc, load_variant
from paged_core.interfaces.attention import AttentionBackend, SupportsGraphCapture
from paged_core.interfaces.layer import LayerSpec
from paged_testing import AttentionConformance
from paged_testing.attention_scene import Scene, attention_batch
from unit.attention_calls import batch_of, check, check_capture, layer, make, tokens

pytestmark = pytest.mark.heavy


LAYER = layer(num_heads=16, num_kv_heads=8, head_dim=128, scale=128**-0.5, device="cuda")


def flash_attn(provider: str) -> dict[str, Any]:
    return {"name": "flash_attn", "provider": provider}


# ---------------------------------------------------------------------- the contract


class OnGpu(AttentionConformance):
    """Usual layers come first: bfloat16, and heads of 128."""

    device = "cuda"
    dtypes = ("bfloat16", "float16", "float32")
    head_dims = (128, 64, 80, 96, 256)
    max_seconds = 120  # each shape of a layer is compiled

    def layer(self, dtype: str, **changes: Any) -> LayerSpec:
        """A layer whose heads have the first dimension, unless they are said to have another."""
        first = {"head_dim": self.head_dims[0], "scale": self.head_dims[0] ** -0.5}
        return super().layer(dtype, **{**first, **changes})


class PackageOnGpu(OnGpu):
    """Kernels may be compiled on first use, by nvcc in minutes."""

    dtypes = ("bfloat16", "float16")
    max_seconds = 900


class TestFlashAttn2(PackageOnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("fa2")
    block_multiple = 256


class TestFlashAttn2Deterministic(TestFlashAttn2):
    deterministic = keeps_bits = True


class TestFlashAttn3(PackageOnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("fa3")


class TestFlashAttn3Deterministic(TestFlashAttn3):
    deterministic = keeps_bits = True


class TestFlashAttn4(PackageOnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("fa4")


class TestFlashAttn4Deterministic(TestFlashAttn4):
    deterministic = keeps_bits = True


class TestTorchVarlen(PackageOnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("torch")
    block_multiple = 256


class TestTorchVarlenDeterministic(TestTorchVarlen):
    deterministic = keeps_bits = True


class TestFlashInfer(PackageOnGpu):
    component = "flashinfer"


class TestHybrid(PackageOnGpu):
    component: ClassVar[Mapping[str, Any]] = {
        "name": "hybrid",
        "prefill": "flash_attn",
        "decode": "flashinfer",
    }


class TestHybridInPagesOf256(TestHybrid):
    block_multiple = 256


class TestTriton(OnGpu):
    component = "triton"


class TestTritonFloat8(TestTriton):
    kv_cache_dtype = "fp8_e4m3"


class TestTritonInTiles(TestTriton):
    dtypes = ("bfloat16",)
    deterministic = keeps_bits = True


class TestCuda(OnGpu):
    component = "cuda"
    head_dims = (128, 64, 80, 96, 256, 8, 16)

    def make(self) -> AttentionBackend:
        """Fail, not skip, where the kernels do not compile."""
        try:
            return super().make()
        except pytest.skip.Exception as skipped:
            pytest.fail(f"it cannot serve here: {skipped}")


class TestCudaDeterministic(TestCuda):
    deterministic = keeps_bits = True


class TestCudaWarpgroups(TestCudaDeterministic):
    """Everything in tiles of warpgroups, on GPUs that have them, where the head dimension does."""

    component: ClassVar[Mapping[str, Any]] = {"name": "cuda", "prefill_tile": "wgmma"}
    dtypes = ("bfloat16", "float16")
    head_dims = (128, 64, 104, 40)


class TestCudaFloat8(TestCuda):
    kv_cache_dtype = "fp8_e4m3"


# ---------------------------------------------------------------------- graphs, waiting

PACKAGES = [
    *(pytest.param(flash_attn(name), {}, id=name) for name in ("fa2", "fa3", "fa4", "torch")),
    pytest.param("flashinfer", {}, id="flashinfer"),
]
OURS = [
    pytest.param(name, {"deterministic": deterministic, **changes}, id=f"{name} {deterministic}")
    for name in ("cuda", "triton")
    for deterministic in (False, True)
    for changes in ({}, {"kv_cache_dtype": "fp8_e4m3"}, {"sliding_window": 700})
]


def served(chosen: str | dict[str, Any], *, deterministic: bool = False, **changes: Any) -> Any:
    """The component and a layer that it serves; the test is skipped where there is none."""
    pages = isinstance(chosen, dict) and chosen["provider"] in ("fa2", "torch")
    of = replace(LAYER, block_size=256 if pages else 16, **changes)
    made = make(chosen, deterministic=deterministic)
    reason = made.check(of)
    if reason:
        assert chosen not in ("cuda", "triton"), reason
        pytest.skip(reason)
    return made, of


@pytest.mark.parametrize(("chosen", "changes"), [*PACKAGES, *OURS])
def test_a_graph_is_replayed_with_other_numbers(
    chosen: str | dict[str, Any], changes: dict[str, Any]
) -> None:
    made, of = served(chosen, **changes)
    if not isinstance(made, SupportsGraphCapture):
        pytest.skip("its plans are not captured")
    scene = Scene(made, of, [(length, 1) for length in (2000, 2, 76, 510, 0, 16, 299)], 3)
    check_capture(scene, [1, 3], [0, 2, 4, 6], [0, 1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("chosen", "changes"), [*PACKAGES, ("torch", {}), ("cuda", {}), ("triton", {})]
)
@pytest.mark.parametrize("chunks", [[(700, 1), (3, 1)], [(700, 1), (0, 90), (33, 7)]], ids=str)
def test_a_step_does_not_wait_for_the_device(
    chosen: str | dict[str, Any], changes: dict[str, Any], chunks: list[tuple[int, int]]
) -> None:
    made, of = served(chosen, **changes)
    scene = Scene(made, of, chunks, 1)
    batch = attention_batch(scene.tables.numpy(), chunks, of.block_size, "cuda")
    attention, rows = made.bind(of, scene.cache), scene.inputs(range(len(chunks)))
    attention.forward(*rows, made.plan(batch))  # kernels may be compiled
    with no_waiting():
        attention.forward(*rows, made.plan(batch))


def test_plans_made_ahead_do_not_disturb_one_another() -> None:
    """The host is many steps ahead of the device; each result is that of its own plan."""
    made, of = served("flashinfer")
    cache = torch.randn(made.cache_shape(of, 256), device="cuda").bfloat16()
    attention, parts = made.bind(of, cache), tokens(of, 4)
    slow = torch.randn(4096, 4096, device="cuda")

    def out(length: int) -> torch.Tensor:
        batch = batch_of([(length - 1, 1)] * 4, 16, "cuda")
        result: torch.Tensor = attention.forward(*parts, made.plan(batch))
        return result

    wanted = []
    for length in range(100, 900, 100):
        wanted.append(out(length).clone())
        torch.cuda.synchronize()
    for _ in range(200):
        slow = torch.tanh(slow @ slow)
    ahead = [out(length) for length in range(100, 900, 100)]
    torch.cuda.synchronize()
    for one, other in zip(ahead, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)


def test_the_driver_says_how_many_programs_run_at_once() -> None:
    made, of = served("triton")
    scene = Scene(made, of, [(300, 1)], 1)
    check(scene)
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    assert scene._attention._rule.slots in range(processors, 16 * processors + 1, processors)


# ---------------------------------------------------------------------- component cuda


@pytest.mark.parametrize("kind", [Nvcc, Nvrtc])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_each_compiler_makes_can_be_loaded(
    kind: type[Nvcc | Nvrtc],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    try:
        compiler = kind.find()
    except CannotCompile as error:
        pytest.skip(str(error))
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    torch.zeros(1, device="cuda")
    variant = Variant.of(replace(LAYER, dtype=dtype, head_dim=128))
    module = load_variant(variant, Context(Driver(), 0), architecture(0), [compiler])
    for name in (variant.write, variant.decode, variant.combine, variant.tiles):
        if name is not None:
            assert module.kernel(name, len(bytes(Call()))).geometry.threads


def test_another_stream_is_taken_when_it_is_current() -> None:
    backend: CudaAttention = make("cuda")
    scene = Scene(backend, LAYER, [(300, 1), (40, 1)], 3)
    scene.write_cached([0, 1])
    torch.cuda.synchronize()

    def late(*rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.cuda._sleep(20_000_000)  # a launch in another stream would end before
        return tuple(row + 0 for row in rows)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        check(scene, write_cached=False, arrange=late)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_a_layer_computes_on_its_own_device() -> None:
    backend, of = make("cuda"), replace(LAYER, device="cuda:1")
    assert backend.check(of) is None
    check(Scene(backend, of, [(300, 1), (0, 20)], 3))
