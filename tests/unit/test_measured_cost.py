"""Cost model ``measured`` on a package of kernel times that are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from paged_core.errors import SettingsError
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cost_model import CostModelContext, StepWork
from paged_plugins.lab.cost_models.measured import tables
from paged_plugins.lab.cost_models.measured.kernels import all_reduces
from paged_plugins.lab.cost_models.measured.measured import MeasuredCost
from paged_plugins.lab.cost_models.roofline import RooflineCost
from paged_plugins.lab.settings import MeasuredSettings, RooflineSettings
from unit.gpu_tables import (
    MODEL,
    SHEET,
    SYSTEM,
    attentions,
    decode_ms,
    experts_ms,
    gemm_ms,
    gemms,
    mixtures,
    prefill_ms,
    reduce_ms,
    write,
    write_package,
)
from unit.lab_runs import REGISTRY


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("gpus") / "package")


def cost(package: Path, values: dict[str, Any] | None = None, **options: Any) -> MeasuredCost:
    chosen = {"tables": package, "system": SYSTEM, "model": "some/small", **options}
    context = CostModelContext(settings=settings_class(REGISTRY)(**values or {}))
    return MeasuredCost(MeasuredSettings(**chosen), context)


def gpu_ms(model: MeasuredCost, work: StepWork) -> float:
    return 1000 * model.seconds(work)


FIRST = StepWork(prefill_tokens=16, prefill_sequences=1, prefill_pairs=136)
NO_HOST = {"host_per_step": 0, "host_per_sequence": 0}


def test_a_step_is_the_sum_of_its_kernels(package: Path) -> None:
    """All sizes are measured ones, so that nothing is interpolated; kernels between them are 2.5
    us and more, as they move little."""
    work = StepWork(decode_sequences=16, decode_context=16 * 1023, sampled_rows=16)
    found = gpu_ms(cost(package, **NO_HOST), work)
    products = gemm_ms(16, 512, 256) + gemm_ms(16, 256, 256)
    products += gemm_ms(16, 1024, 256) + gemm_ms(16, 256, 512)
    between = 4 * 2.5e-3
    head = gemm_ms(16, 512, 256) + 3 * 2.5e-3
    least = 2 * (products + between + decode_ms(16, 1023)) + head
    assert least < found < 1.01 * least


def test_gpus_that_share_layers_add_two_sums_each(package: Path) -> None:
    work = StepWork(decode_sequences=16, decode_context=16 * 1023)
    found = gpu_ms(cost(package, tensor_parallel=2, **NO_HOST), work)
    products = gemm_ms(16, 256, 256) + gemm_ms(16, 256, 128)
    products += gemm_ms(16, 512, 256) + gemm_ms(16, 256, 256)
    sums = 2 * reduce_ms(16 * 256)
    least = 2 * (products + sums + 4 * 2.5e-3 + decode_ms(16, 1023))
    assert least < found < 1.01 * least


def test_experts_take_the_place_of_the_feed_forward_products(package: Path) -> None:
    work = StepWork(decode_sequences=16, decode_context=16 * 1023)
    found = gpu_ms(cost(package, model="some/mixture", **NO_HOST), work)
    routed = gemm_ms(16, 8, 256)  # beyond the smallest measured width
    products = gemm_ms(16, 512, 256) + gemm_ms(16, 256, 256) + routed + experts_ms(16)
    least = 2 * (products + 3 * 2.5e-3 + decode_ms(16, 1023))
    assert least < found < 1.01 * least


def test_experts_that_are_dealt_out_to_gpus_have_times_of_their_own(package: Path) -> None:
    """Experts that are cut instead were not measured, and are refused."""
    work = StepWork(decode_sequences=16, decode_context=16 * 1023)
    options = {"model": "some/mixture", "tensor_parallel": 2, "expert_parallel": 2}
    found = gpu_ms(cost(package, **options, **NO_HOST), work)
    products = gemm_ms(16, 256, 256) + gemm_ms(16, 256, 128) + gemm_ms(16, 8, 256)
    least = products + 2 * experts_ms(16) + 2 * reduce_ms(16 * 256)
    least = 2 * (least + 3 * 2.5e-3 + decode_ms(16, 1023))
    assert least < found < 1.01 * least


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package in which each kernel of other engines takes a tenth of the time, and block-scaled
    ones were timed, too."""
    folder = write_package(tmp_path_factory.mktemp("engines") / "package")

    def tenth(rows: Iterable[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
        return [{**row, **changes, "latency": row["latency"] / 10} for row in rows]

    blocks = [{**row, "gemm_dtype": "fp8_block"} for row in gemms()]
    write(folder, "gemm", "gemm", "0.10.0", iter([*gemms(), *blocks]))
    write(folder, "gemm", "gemm", "0.5", iter(tenth(gemms(), gemm_dtype="fp8_block")), "sglang")
    short = tenth(mixtures(), moe_dtype="w4a8_mxfp4_mxfp8")
    write(folder, "moe", "moe", "0.5", iter(short), "sglang")
    sums = [
        {"num_gpus": count, "message_size": size, "latency": reduce_ms(size)}
        for count, size in product((2, 4), (512, 2**25))
    ]
    write(folder, "comm", "custom_allreduce", "0.10.0", iter(sums))
    write(folder, "comm", "custom_allreduce", "1.0", iter(tenth(sums)), "trtllm")
    normed = json.dumps(MODEL | {"qk_norm_type": "per_layer"})
    (folder / "model_configs/some--normed_config.json").write_text(normed)
    return folder


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        (
            {"weights": "fp8_block"},
            0.9 * (gemm_ms(16, 512, 256) + gemm_ms(16, 256, 256))
            + 0.9 * (gemm_ms(16, 1024, 256) + gemm_ms(16, 256, 512))
            - 4 * 2.5e-3,  # kernels that quantise
        ),
        ({"weights": "mxfp4_mxfp8", "model": "some/mixture"}, 0.9 * experts_ms(16)),
        (
            {"fused_all_reduce": True, "tensor_parallel": 2},
            2 * 0.9 * reduce_ms(16 * 256) + 2 * 2.5e-3,  # and two norms
        ),
        (
            {"model": "some/normed", "tensor_parallel": 2},
            -reduce_ms(512) - 2 * 2.5e-3,  # a small sum, and two kernels
        ),
    ],
    ids=["launches", "inputs of 8 bits", "fused sums", "norms over heads"],
)
def test_kernels_of_servers_that_the_engines_own_table_does_not_have(
    options: dict[str, Any], saved: float, engines: Path
) -> None:
    work = StepWork(decode_sequences=16, decode_context=16 * 1023)
    plain = {"model": options["model"].replace("normed", "small")} if "model" in options else {}
    plain |= {name: options[name] for name in ("tensor_parallel",) if name in options}
    less = gpu_ms(cost(engines, **plain, **NO_HOST), work)
    less -= gpu_ms(cost(engines, **options, **NO_HOST), work)
    assert less == pytest.approx(2 * saved, rel=0.02)


def test_sums_that_are_too_large_to_be_fused_are_normed_by_a_kernel(engines: Path) -> None:
    system = tables.load_system(engines, SYSTEM)
    found = [
        all_reduces(tables.Tables(engines, SYSTEM, "vllm"), system, count, fused=True)
        for count in (2, 4)
    ]
    normed = 2.5e-3 + 1000 * 8 * 2**25 / (0.8 * SHEET["gpu"]["mem_bw"])
    expected = [reduce_ms(2**25) / 10, reduce_ms(2**25) + normed]
    assert [1000 * each.seconds(2**25) for each in found if each] == pytest.approx(expected)


def test_tiled_experts_take_a_tile_of_each_expert(engines: Path) -> None:
    """16 tokens that take two experts each, and 127 rows for each of eight: nine tiles."""
    work = StepWork(decode_sequences=16, decode_context=16 * 1023)
    options = {"model": "some/mixture", "weights": "fp8_block", "tiled_experts": True}
    found = gpu_ms(cost(engines, **options, **NO_HOST), work)
    products = gemm_ms(16, 512, 256) + gemm_ms(16, 256, 256)
    products += gemm_ms(9 * 128, 256, 256) + gemm_ms(9 * 128, 256, 128)
    routed = gemm_ms(16, 8, 256)
    least = 2 * (products / 10 + routed + 8 * 2.5e-3 + decode_ms(16, 1023))
    assert least < found < 1.02 * least


def test_chunks_take_the_time_of_their_pairs(package: Path) -> None:
    """The second half of a prompt has three quarters of its pairs."""
    model = cost(package, **NO_HOST)
    half = StepWork(prefill_tokens=512, prefill_sequences=1)
    whole, later = ({"prefill_pairs": n} for n in (1024**2 // 2, 3 * 1024**2 // 8))
    base = gpu_ms(model, half)
    both = [gpu_ms(model, replaced(half, **each)) - base for each in (whole, later)]
    assert both[0] == pytest.approx(2 * 1e-7 * 1024**2, rel=0.02)
    assert both[1] / both[0] == pytest.approx(3 / 4, rel=0.02)
    assert prefill_ms(1, 1024) > 1e-7 * 1024**2


def replaced(work: StepWork, **values: int) -> StepWork:
    return StepWork(**{name: getattr(work, name) for name in work.__slots__} | values)


def test_rows_are_padded_to_the_graphs_that_are_captured(package: Path) -> None:
    model = cost(package, **NO_HOST)
    nine, sixteen, seventeen = (
        model.seconds(StepWork(prefill_tokens=n, prefill_sequences=1, prefill_pairs=9))
        for n in (9, 16, 17)
    )
    assert nine == sixteen < seventeen


def test_the_host_works_beside_the_gpu_if_steps_are_planned_ahead(package: Path) -> None:
    host = {"host_per_step": 5.0, "host_per_sequence": 1.0}
    work = StepWork(decode_sequences=4, sampled_rows=4)
    beside = cost(package, **host).seconds(work)
    between = cost(package, {"async_scheduling": False}, **host).seconds(work)
    gpu = cost(package, **NO_HOST).seconds(work)
    assert beside == pytest.approx(9.0)
    assert between == pytest.approx(9.0 + gpu)


def test_blocks_fit_beside_weights_activations_and_the_runtime(package: Path) -> None:
    one, two = (cost(package, tensor_parallel=n).num_blocks(16) or 0 for n in (1, 2))
    free = 0.9 * 2**33 - 1.5 * 2**30
    assert 16 * 2 * 2 * 2 * 64 * 2 * one == pytest.approx(free, rel=0.01)
    assert two == pytest.approx(2 * one, rel=0.01)  # each holds half of the heads
    assert cost(package, {"kv_cache_memory": 2**20}).num_blocks(16) == 2**20 // (16 * 1024)
    assert cost(package).max_model_len == 4096


def test_copies_and_swaps_take_time(package: Path) -> None:
    model = cost(package)
    assert model.seconds(StepWork(copied_blocks=9)) > model.seconds(StepWork())
    assert model.seconds(StepWork(swapped_blocks=9)) > model.seconds(StepWork(copied_blocks=9))


def test_steps_beyond_what_was_measured_are_told_of(package: Path) -> None:
    model = cost(package)
    with capture_logs() as logs:
        model.seconds(StepWork(decode_sequences=256, decode_context=256 * 65_535))
        assert not logs
        within, beyond = (
            StepWork(decode_sequences=256, decode_context=n * 65_535) for n in (256, 257)
        )
        assert [model.is_extrapolated(each) for each in (within, beyond)] == [False, True]
        for _ in range(2):
            model.seconds(StepWork(decode_sequences=256, decode_context=257 * 65_535))
    most = logs[0]["most_measured_decodes"]
    works = [
        StepWork(decode_sequences=n, decode_context=n, sampled_rows=n) for n in (most, most + 1)
    ]
    assert [model.is_extrapolated(each) for each in works] == [False, True]
    prompts = [
        StepWork(prefill_tokens=n, prefill_sequences=1, prefill_pairs=n * (n + 1) // 2)
        for n in (4096, 4097)
    ]
    assert [model.is_extrapolated(each) for each in prompts] == [False, True]
    (log,) = logs
    assert (log["event"], log["longest_measured_prompt"]) == ("times_extrapolated", 4096)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system": "x2_sxm"}, "no system is called 'x2_sxm'; measured are x1_sxm"),
        (
            {"engine": "sglang"},
            "no context_attention of 'sglang' was measured on x1_sxm; there is vllm",
        ),
        ({"model": "some/smal"}, "did you mean 'some/small'"),
        ({"weights": "fp8"}, "gemm_dtype fp8 was not measured.* has gemm_dtype bfloat16"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype fp8 was not measured"),
        ({"model": "llama-2-7b"}, "head_dim 128 was not measured .* has head_dim 64"),
        ({"tensor_parallel": 3}, "4 heads cannot be divided by 3"),
        ({"tensor_parallel": 2, "expert_parallel": 4}, r"2 GPUs .* cannot be divided by 4"),
        ({"tensor_parallel": 4}, "num_heads 1 was not measured .* has num_heads 2, 4"),
        ({"model": "some/mixture", "tensor_parallel": 2}, "moe_tp_size 2 was not measured"),
        ({"tiled_experts": True}, "DeepGEMM computes weights fp8_block, these are bfloat16"),
        ({"memory_share": 0.1}, None),
    ],
    ids=lambda each: None if each is None else str(each)[:40],
)
def test_what_was_not_measured_is_refused(
    options: dict[str, Any], message: str | None, package: Path
) -> None:
    with pytest.raises(SettingsError, match=message or "takes 0.0 GiB of each GPU"):
        cost(package, **options).num_blocks(16)


@pytest.mark.parametrize(("name", "problem"), [("gone", "is no folder"), (".", "has no tables")])
def test_a_folder_without_tables_is_named(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"cost_model.tables: {tmp_path / name} {problem}"):
        cost(tmp_path / name, model="Qwen/Qwen3-32B")


def test_attention_of_a_release_that_measured_no_windows_has_none(
    package: Path, tmp_path: Path
) -> None:
    older = write_package(tmp_path / "package")
    for name, axis in (("context_attention", "isl"), ("generation_attention", "step")):
        rows = list(attentions(axis))
        for row in rows:
            del row["window_size"]
        write(older, "attention", name, "0.10.0", iter(rows))
    assert gpu_ms(cost(older), FIRST) == gpu_ms(cost(package), FIRST)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def rename(path: Path) -> None:
    write(path.parents[6], "gemm", "gemm", "0.10.0", ({"latency": 1.0, "M": 1} for _ in "x"))


def negate(path: Path) -> None:
    rows = ({**row, "latency": -1.0} for row in gemms())
    write(path.parents[6], "gemm", "gemm", "0.10.0", rows)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "cannot be read"),
        (rename, "no column gemm_dtype, m, n, k, so it has another schema"),
        (negate, "a time in it is no number above 0"),
    ],
)
def test_a_damaged_table_is_named(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    package = write_package(tmp_path / "package")
    path = package / "systems/data" / SYSTEM / "gemm/vllm/0.10.0/gemm_perf.parquet"
    damage(path)
    with pytest.raises(SettingsError, match=f"gemm_perf.parquet.*: .*{message}"):
        cost(package)


def test_a_mixture_is_no_model_of_the_roofline(package: Path) -> None:
    path = package / "model_configs" / "some--mixture_config.json"
    with pytest.raises(SettingsError, match=r"a mixture of experts.*'measured'"):
        RooflineCost(
            RooflineSettings(model=str(path)), CostModelContext(settings=settings_class(REGISTRY)())
        )


@pytest.mark.long
def test_a_decode_step_takes_about_the_time_that_a_server_was_measured_to_take() -> None:
    """Eight streams of Qwen3-32B on two H100s: 15.9 ms a token, of the package's served runs."""
    pytest.importorskip("aiconfigurator_core", reason=tables.INSTALL)
    options = MeasuredSettings(system="h100_sxm", model="Qwen/Qwen3-32B", tensor_parallel=2)
    context = CostModelContext(settings=settings_class(REGISTRY)(async_scheduling=False))
    work = StepWork(decode_sequences=8, decode_context=8 * 1536, sampled_rows=8)
    assert MeasuredCost(options, context).seconds(work) == pytest.approx(15.9e-3, rel=0.15)


def test_without_the_package_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "PACKAGE", "no_such_package")
    with pytest.raises(SettingsError, match=r'not installed: pip install "paged-core\[gpus\]"'):
        tables.package_folder()
    component = REGISTRY.get("cost_model", "measured")
    assert "`pip install" in (component.unavailable_reason() or "")
    assert component.unavailable_reason(MeasuredSettings(tables=Path("own"))) is None


def test_the_doctor_lists_what_was_measured(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "package_folder", lambda: package)
    monkeypatch.setattr(tables, "PACKAGE", "pyarrow")
    (package / "model_configs/some--other_config.json").write_text('{"kv_lora_rank": 512}')
    assert tables.unavailable_reason(MeasuredSettings()) is None
    assert tables.details() == f"on {SYSTEM}; of some/mixture, some/small"
