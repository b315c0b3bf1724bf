"""Cost model ``measured`` on a folder of CSV files as Vidur publishes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from paged_core.errors import SettingsError
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cost_model import CostModelContext, StepWork
from paged_plugins.lab.cost_models.measured.measured import MeasuredCost
from paged_plugins.lab.settings import MeasuredSettings
from paged_plugins.lab.testing import CostModelConformance
from unit.lab_runs import REGISTRY

KERNELS = (
    *("attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj"),
    *("input_layernorm", "post_attention_layernorm", "add"),
)
SIZES = {"n_embd": 256, "n_kv_head": 2}
MODEL = {
    **{"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 256, "vocab_size": 512},
    **{"intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
}


def kernel_ms(tokens: int) -> float:
    return 0.01 + 1e-4 * tokens


def prefill_ms(length: int) -> float:
    return 0.02 + 1e-6 * length**2


def decode_ms(batch: int, cached: int) -> float:
    return 0.01 + 1e-3 * batch + 1e-6 * batch * cached


def reduce_ms(size: int) -> float:
    return 1e-3 * size**0.25


def save(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    found = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, {name: None for row in found for name in row})
        writer.writeheader()
        writer.writerows(found)


def times(**medians: float) -> dict[str, float]:
    named = {f"time_stats.{kernel}.median": value for kernel, value in medians.items()}
    return {**{f"time_stats.{kernel}.min": 0.001 for kernel in medians}, **named}


def layers() -> Iterable[dict[str, Any]]:
    for tokens, workers in product((1, 16, 256, 4096), (1, 2)):
        shape = {**SIZES, "n_head": 4, "n_expanded_embd": 512, "use_gated_mlp": True}
        each = times(**dict.fromkeys(KERNELS, kernel_ms(tokens)))
        yield {**each, **shape, "num_tokens": tokens, "num_tensor_parallel_workers": workers}


def attentions() -> Iterable[dict[str, Any]]:
    for workers in (1, 2):
        shape = {**SIZES, "n_q_head": 4, "block_size": 16, "num_tensor_parallel_workers": workers}
        for length, cached in ((64, 0), (1024, 0), (4096, 0), (1024, 1024)):
            each = times(attn_prefill=prefill_ms(length + cached), attn_kv_cache_save=0.005)
            row = {"batch_size": 1, "prefill_chunk_size": length, "kv_cache_size": cached}
            yield {**each, **shape, **row, "is_prefill": True}
        for batch, cached in product((1, 16, 128), (32, 1024, 4096)):
            each = times(attn_decode=decode_ms(batch, cached), attn_kv_cache_save=0.005)
            row = {"batch_size": batch, "prefill_chunk_size": 0, "kv_cache_size": cached}
            yield {**each, **shape, **row, "is_prefill": False}


def sums() -> Iterable[dict[str, Any]]:
    for size in (512, 2**20):
        row = {"rank": 0, "num_workers": 2, "size": size, "collective": "all_reduce"}
        yield {**times(all_reduce=reduce_ms(size)), **row}


def write_folder(folder: Path) -> Path:
    folder.mkdir()
    save(folder / "mlp.csv", layers())
    save(folder / "attention.csv", attentions())
    save(folder / "all_reduce.csv", sums())
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("vidur") / "h100")


def cost(folder: Path, values: dict[str, Any] | None = None, **options: Any) -> MeasuredCost:
    host = {"host_per_step": 0, "host_per_sequence": 0}
    chosen = {"tables": folder, "model": str(folder / "config.json"), **host, **options}
    context = CostModelContext(settings=settings_class(REGISTRY)(**values or {}))
    return MeasuredCost(MeasuredSettings(**chosen), context)


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_step_is_the_sum_of_its_kernels(gpus: int, folder: Path) -> None:
    work = StepWork(decode_sequences=16, decode_context=16 * 1024)
    layer = 9 * kernel_ms(16) + 0.005 + decode_ms(16, 1024)
    layer += 2 * reduce_ms(2 * 256 * 16) if gpus == 2 else 0
    found = 1000 * cost(folder, tensor_parallel=gpus).seconds(work)
    assert found == pytest.approx(3 * layer, rel=0.02)


def test_a_prompt_takes_the_time_of_its_length_and_blocks_fit_the_device(folder: Path) -> None:
    work = StepWork(prefill_tokens=1024, prefill_sequences=1, prefill_pairs=1024**2 // 2)
    model = cost(folder)
    layer = 9 * 0.01 * (0.01 + 1e-4 * 1024) / 0.01 + 0.005 + prefill_ms(1024)
    assert 1000 * model.seconds(work) == pytest.approx(3 * layer, rel=0.2)
    head = model.seconds(StepWork(decode_sequences=1, decode_context=32, sampled_rows=1))
    assert head > model.seconds(StepWork(decode_sequences=1, decode_context=32))
    larger = cost(folder, system="h200").num_blocks(16) or 0
    assert larger > 1.5 * (model.num_blocks(16) or 0) > 0


def test_larger_steps_than_those_measured_are_told_of(folder: Path) -> None:
    model = cost(folder)
    with capture_logs() as logs:
        model.seconds(StepWork(prefill_tokens=4096, prefill_sequences=4, prefill_pairs=4096))
        assert not logs
        model.seconds(StepWork(prefill_tokens=5000, prefill_sequences=5, prefill_pairs=5000))
    assert logs[0]["most_measured_tokens"] == 4096


class TestVidurTimes(CostModelConformance):
    """The model on such a folder passes the kit."""

    component: ClassVar[str | Mapping[str, Any]] = "measured"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _written(cls, folder: Path) -> None:
        model = str(folder / "config.json")
        cls.component = {"name": "measured", "tables": folder, "model": model}

    def check_written(self) -> None:
        """Leave out options that were not measured."""
        with suppress(SettingsError):
            super().check_written()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "llama-2-7b"}, "n_head 32 was not measured .* has n_head 4"),
        ({"tensor_parallel": 4}, "num_tensor_parallel_workers 4 was not measured .* 1, 2"),
        ({"system": "h10"}, "no device is called 'h10'; did you mean 'h100'"),
        ({"weights": "fp8"}, "weights and cache of 16 bits"),
        ({"kv_cache_dtype": "fp8"}, "weights and cache of 16 bits"),
        ({"model": "qwen3-0.6b"}, "heads of 128 do not add up to a width of 1024"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_was_not_measured_is_refused(
    options: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        cost(folder, **options)


def without(column: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        rows = list(csv.DictReader(path.open()))
        save(path, ({name: row[name] for name in row if name != column} for row in rows))

    return damage


def replaced(old: str, new: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(path.read_text().replace(old, new)) and None


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("mlp.csv", Path.unlink, "mlp.csv is missing; take it from"),
        ("all_reduce.csv", Path.unlink, "all_reduce.csv is missing"),
        ("mlp.csv", without("n_expanded_embd"), "it has no n_expanded_embd"),
        ("attention.csv", without("time_stats.attn_decode.median"), "it has no time_stats.attn_d"),
        ("mlp.csv", replaced("4096", "many"), "it cannot be read"),
        ("mlp.csv", replaced(",4096,", ",-4096,"), "a number in it is below 0"),
        ("attention.csv", replaced(",0,True", ",,True"), "a line of it is cut"),
        ("mlp.csv", lambda path: path.write_text("version https://git-lfs.github.com"), "it"),
    ],
    ids=["missing", "no sums", "no size", "no time", "text", "negative", "cut", "pointer"],
)
def test_a_damaged_file_is_named(
    name: str, damage: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    own = write_folder(tmp_path / "h100")
    damage(own / name)
    with pytest.raises(SettingsError, match=message):
        cost(own, tensor_parallel=2)
