"""Simulations of served runs, on a package of kernel times that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import BAD_USAGE, OK, main
from paged_core.errors import SettingsError
from paged_plugins.lab.cluster.simulate_cluster import simulate_cluster
from paged_plugins.lab.cost_models.measured import tables
from paged_plugins.lab.fidelity import host_terms
from paged_plugins.lab.fidelity.closed_loop import RowTask, Times, rounds_of
from paged_plugins.lab.fidelity.fidelity import Figures, Judged, ranked, sampled
from paged_plugins.lab.fidelity.host_terms import DENSE, HALVES, fit, half_of, is_fitted
from paged_plugins.lab.fidelity.served_rows import (
    ServedRow,
    chosen_rows,
    read_rows,
)
from paged_plugins.lab.fidelity.servers import engine_values, measured_options, serving
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.tasks.pool import open_runner
from paged_plugins.workloads.workload import ListedWorkload
from unit.gpu_tables import SERVED, SYSTEM, decode_ms, write_package, write_served
from unit.lab_runs import REGISTRY, asks, simulated


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("served") / "package")


def rows(package: Path, *changes: dict[str, Any]) -> list[ServedRow]:
    write_served(package, *changes)
    return read_rows(package)


def fidelity(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    assert main(["lab", "fidelity", *map(str, args), "--json"]) == OK
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"mode": "disagg"}, "engines of their own"),
        ({"pp_size": 2}, "pipeline"),
        ({"attention_dp_size": 4}, "data parallel"),
        ({"batch_size": ""}, "no number of clients"),
        ({"gemm_quant_mode": "fp3"}, "weights fp3"),
        ({"moe_quant_mode": "fp8", "moe_tp_size": 2}, "experts on other GPUs"),
    ],
    ids=str,
)
def test_rows_that_no_settings_express_say_why(
    change: dict[str, Any], reason: str | None, package: Path
) -> None:
    (row,) = rows(package, change)
    assert row.refusal is None if reason is None else reason in str(row.refusal)


@pytest.mark.parametrize(
    ("change", "budget", "is_chunked", "is_asynchronous"),
    [
        ({}, 8192, True, True),
        ({"silicon_data_source": "x/aic-auto-gap-analysis/y"}, 1760, True, False),
        (
            {"silicon_data_source": "x-gap-analysis", "backend_version": "0.15.1"},
            *(1760, True, True),
        ),
        ({"backend": "trtllm", "isl": 20_000}, 20_000, False, True),
        ({"backend": "sglang"}, 8192, True, True),
    ],
    ids=["benchmark", "before 0.14", "since 0.14", "whole prompts", "sglang"],
)
def test_engines_are_served_with_their_own_options(
    change: dict[str, Any], budget: int, is_chunked: bool, is_asynchronous: bool, package: Path
) -> None:
    values = engine_values(rows(package, change)[0], {})
    assert values["scheduler"]["max_num_batched_tokens"] == budget
    assert values["scheduler"]["chunked_prefill"] is is_chunked
    assert values["async_scheduling"] is is_asynchronous


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"system": "h200_sxm", "tp_size": 4}, {"tiled_experts": True}),
        ({"system": "h200_sxm", "tp_size": 8}, {}),
        ({"system": "h200_sxm", "backend_version": "0.11.0"}, {}),
        ({"system": "h200_sxm", "backend_version": "0.15.0"}, {}),
        ({"system": "h200_sxm", "backend_version": "nightly-1"}, {}),
        (
            {"model_path": "meta-llama/Llama-3.1-70B", "system": "b200_sxm", "tp_size": 2},
            {"cached": "fp8", "fused_all_reduce": True},
        ),
        ({"model_path": "meta-llama/Llama-3.1-70B", "system": "h200_sxm"}, {"cached": "fp8"}),
    ],
    ids=str,
)
def test_options_are_those_of_all_that_a_run_has(
    change: dict[str, Any], options: dict[str, Any], package: Path
) -> None:
    found = serving(rows(package, {"backend_version": "0.12.0"} | change)[0])
    named = ("cached", "fused_all_reduce", "tiled_experts")
    expected = {"cached": "bfloat16", "fused_all_reduce": False, "tiled_experts": False}
    if "Llama" in str(change.get("model_path")):
        expected["tiled_experts"] = change["system"] == "h200_sxm"
    assert {name: getattr(found, name) for name in named} == expected | options


@pytest.mark.parametrize(
    ("config", "more", "served", "weights", "cached"),
    [
        ({}, {}, {"gemm_quant_mode": "fp8"}, "fp8", "bfloat16"),
        (
            {"weight_block_size": [128, 128]},
            {},
            {"gemm_quant_mode": "fp8"},
            "fp8_block",
            "bfloat16",
        ),
        ({"quant_method": "mxfp4"}, {}, {"gemm_quant_mode": "nvfp4"}, "mxfp4", "bfloat16"),
        (
            {"quant_method": "mxfp4"},
            {},
            {"gemm_quant_mode": "nvfp4", "system": "b200_sxm"},
            *("mxfp4_mxfp8", "bfloat16"),
        ),
        ({}, {"kv_cache_quant_algo": "FP8"}, {"gemm_quant_mode": "nvfp4"}, "fp4", "fp8"),
        (
            {},
            {"exclude_modules": ["model.layers.0.self_attn*"]},
            {"gemm_quant_mode": "nvfp4"},
            *("fp4_experts", "bfloat16"),
        ),
    ],
    ids=["as the row says", "blocks", "mxfp4", "and inputs", "short cache", "experts alone"],
)
def test_the_files_of_a_checkpoint_say_how_it_is_stored(
    config: dict[str, Any],
    more: dict[str, Any],
    served: dict[str, Any],
    weights: str,
    cached: str,
    tmp_path: Path,
) -> None:
    package = write_package(tmp_path / "package")
    models = package / "model_configs"
    (models / "some--small_config.json").write_text(json.dumps({"quantization_config": config}))
    if more:
        stored = json.dumps({"quantization": more})
        (models / "nvidia--small-NVFP4_hf_quant_config.json").write_text(stored)
    options = measured_options(rows(package, served)[0], package)
    assert (options["weights"], options["kv_cache_dtype"]) == (weights, cached)


def simulate(row: ServedRow, package: Path, **options: Any) -> Times:
    host = {"host_per_step": 0.0, "host_per_sequence": 0.0}
    chosen = measured_options(row, package) | host | options
    return RowTask(row=row, cost_model=chosen).serve(REGISTRY)


def test_a_closed_loop_has_as_many_requests_as_clients(package: Path) -> None:
    """One client waits for no other: each of its tokens takes a step of one sequence."""
    (row,) = rows(package, {"batch_size": 1, "osl": 8})
    (many,) = rows(package, {"batch_size": 64, "osl": 8})
    alone, together = simulate(row, package), simulate(many, package)
    assert alone.tpot_ms > 2 * decode_ms(1, 256)
    assert together.tpot_ms > alone.tpot_ms
    assert together.ttft_ms > alone.ttft_ms
    assert simulate(many, package) == together
    slow = simulate(row, package, host_per_step=1.0)
    assert slow.tpot_ms == pytest.approx(1000, rel=1e-3)


@pytest.mark.parametrize(("length", "count"), [(2000, 0), (3000, 1)], ids=["in", "beyond"])
def test_results_say_in_how_many_steps_times_are_extrapolated(
    length: int, count: int, package: Path
) -> None:
    """Products of 4,096 rows at most were measured; two prompts are computed in one step."""
    chosen = {"name": "measured", "tables": package, "system": SYSTEM, "model": "some/small"}
    budget = {"name": "token_budget", "max_num_batched_tokens": 8192}
    settings = simulated(cost_model=chosen, scheduler=budget, num_blocks=4096, router="round_robin")
    requests = [asks(name, length, 2) for name in "abcd"]
    one = run_workload(settings, REGISTRY, ListedWorkload("two", requests[:2]), 0)
    two = simulate_cluster(settings, REGISTRY, ListedWorkload("four", requests), 0, num_replicas=2)
    assert (one.totals.extrapolated_steps, two.totals.extrapolated_steps) == (count, 2 * count)
    found = measures(one, ServiceLevel()).get("extrapolated_share")
    assert found == (count / one.totals.num_steps or None)


def test_fewer_rounds_are_run_where_answers_are_long_or_clients_many(package: Path) -> None:
    changes = {}, {"osl": 8192}, {"batch_size": 128}, {"batch_size": 128, "osl": 1024}
    assert [rounds_of(row) for row in rows(package, *changes)] == [10, 2, 3, 2]


def test_samples_are_spread_over_each_group(package: Path) -> None:
    found = rows(package, *({"isl": n, "system": s} for s in ("a", "b") for n in range(1, 11)))
    assert [(row.system, row.isl) for row in sampled(found, 2)] == [
        *(("a", 1), ("a", 6)),
        *(("b", 1), ("b", 6)),
    ]
    assert sampled(found, None) == found


def test_errors_and_ranks(package: Path) -> None:
    """Three configurations of one load: two are too close to tell apart."""
    times = (10.0, 10.2, 20.0)
    judged = [Judged(row) for row in rows(package, *({"silicon_tpot_ms": t} for t in times))]
    for each, found in zip(judged, (11.0, 10.2, 10.0), strict=True):
        each.found["measured"] = Times(20.0, found)
    figures = Figures.of(judged, "measured", "tpot_ms")
    assert figures is not None
    assert figures.num_rows == 3
    assert figures.median == pytest.approx(0.1)
    assert figures.p90 == pytest.approx(0.42)
    assert ranked(judged, "measured") == (0, 2)
    assert Figures.of(judged, "roofline", "tpot_ms") is None


@pytest.mark.parametrize(
    ("model", "engine", "half"),
    [
        ("meta-llama/Llama-3.1-70B", "vllm", 0),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "vllm", 0),
        ("Qwen/Qwen3-32B", "vllm", 1),
        ("Qwen/Qwen3-32B", "trtllm", None),
        ("Qwen/Qwen3-235B-A22B-FP8", "vllm", None),
    ],
)
def test_terms_are_judged_by_runs_that_they_were_not_fitted_to(
    model: str, engine: str, half: int | None, package: Path
) -> None:
    """Halves are those of the alphabet; mixtures and other engines are in none."""
    (row,) = rows(package, {"model_path": model, "backend": engine})
    assert (half_of(row), is_fitted(row)) == (half, half == 1)
    assert [*HALVES[0], *HALVES[1]] == sorted(DENSE)


def test_the_terms_of_the_host_are_found_again(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the other half plan their steps ahead, so that they tell of no term."""
    monkeypatch.setattr(host_terms, "HALVES", (("mixture",), ("small",)))
    loads = [{"silicon_data_source": "x-gap-analysis", "batch_size": each} for each in (1, 8, 64)]
    loads = [each | {"osl": 8} for each in loads]
    known = {"host_per_step": 2e-3, "host_per_sequence": 4e-5}
    times = [simulate(row, package, **known).tpot_ms for row in rows(package, *loads)]
    pairs = zip(loads, times, strict=True)
    hidden = {"model_path": "some/mixture", "osl": 8, "silicon_tpot_ms": 1e-3}
    served = rows(package, *(load | {"silicon_tpot_ms": t} for load, t in pairs), hidden)
    with open_runner(REGISTRY, workers=1) as runner:
        other, found = fit(served, package, runner, lambda count=1: None)
    assert found.terms == pytest.approx(tuple(known.values()), rel=0.15)
    assert (found.runs, found.runs_that_tell, found.at_bounds) == (3, 3, [])
    assert (other.runs, other.runs_that_tell) == (1, 0)
    assert other.at_bounds == ["host_per_step", "host_per_sequence"]


def test_the_command_judges_what_it_can_and_counts_the_rest(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_served(package, {}, {"isl": 64}, {"mode": "disagg"}, {"model_path": "some/other"})
    plot, table = tmp_path / "plot.svg", tmp_path / "table.md"
    written = ("--plot", plot, "--markdown", table)
    found = fidelity(capsys, "--tables", package, "--processes", 1, *written)
    (other, small) = found["groups"]
    assert (small["rows"], small["simulated"], other["simulated"]) == (3, 2, 0)
    assert small["measured_tpot"]["rows"] == small["measured_ttft"]["rows"] == 2
    assert sorted(found["not_simulated"].values()) == [1, 1]
    assert plot.read_text().startswith("<?xml")
    _, _, row = table.read_text().splitlines()
    assert row.startswith(f"| vllm | some/small, `{SYSTEM}`, bfloat16 | 2 | ")
    assert main(["lab", "fidelity", "--tables", str(package), "--model", "SMALL"]) == OK
    out = capsys.readouterr().out
    assert "2 of 3" in out
    assert "engines of their own" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,backend\none,vllm\n", "it has no column silicon_data_source, .* another schema"),
        (",".join(SERVED) + "\n" + "x," * len(SERVED), "a number in it cannot be read"),
        ("", "it has no column"),
    ],
    ids=["schema", "numbers", "empty"],
)
def test_damaged_tables_of_runs_are_named(text: str, message: str, tmp_path: Path) -> None:
    package = write_package(tmp_path / "package")
    (package / "systems/silicon_sample.csv").write_text(text)
    with pytest.raises(SettingsError, match=f"silicon_sample.csv.*: {message}"):
        read_rows(package)


def test_runs_that_were_not_measured_are_answered_with_what_was(package: Path) -> None:
    found = rows(package, {})
    with pytest.raises(SettingsError, match=f"--system: .*there are {SYSTEM}"):
        chosen_rows(found, "h900", None, None)


def test_without_the_package_the_command_names_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "PACKAGE", "no_such_package")
    assert main(["lab", "fidelity"]) == BAD_USAGE
    assert tables.INSTALL in capsys.readouterr().err


@pytest.mark.long
def test_dense_runs_of_vllm_are_within_their_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiconfigurator_core", reason=tables.INSTALL)
    found = fidelity(capsys, "--engine", "vllm", "--model", "Llama-3.1-70B", "--rows", 6)
    for group in found["groups"]:
        assert group["simulated"] == 6
        assert group["measured_tpot"]["median"] < 0.12
