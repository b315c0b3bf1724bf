"""Times of a model's kernels as the simulator Vidur publishes them: CSV files in one folder.

``mlp.csv`` and ``attention.csv`` are those of ``data/profiling/compute/DEVICE/MODEL`` in its
repository, ``all_reduce.csv`` that of ``data/profiling/network``. Weights and cache are of 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paged_core.errors import SettingsError
from paged_plugins.lab.cost_models.devices import DEVICES, device
from paged_plugins.lab.cost_models.measured.curves import Curve
from paged_plugins.lab.cost_models.measured.kernels import Attention, elementwise
from paged_plugins.lab.cost_models.measured.tables import (
    System,
    Table,
    arrow,
    damaged,
)
from paged_plugins.lab.cost_models.model_shape import ModelShape
from paged_plugins.lab.settings import MeasuredSettings

_KERNELS = (
    *("attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj"),
    *("input_layernorm", "post_attention_layernorm", "add"),
)
"""Kernels of a layer, by the number of tokens."""
_ATTENTION = ("attn_prefill", "attn_decode", "attn_kv_cache_save")
_NEEDED = (
    *("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"),
    *("attn_prefill", "attn_decode", "all_reduce"),
)
"""Kernels that every model has."""
_SHARE_OF_PEAK = 0.6


def is_folder_of_vidur(folder: Path) -> bool:
    """Return whether a folder has times in this format."""
    return any((folder / name).is_file() for name in ("mlp.csv", "attention.csv"))


def system_of(name: str) -> System:
    """Return the data sheet of a device, as a system; ``h100_sxm`` is the device ``h100``.

    Raises:
        SettingsError: none is called that.
    """
    short = name.removesuffix("_sxm")
    short = {"a100": "a100-80g"}.get(short, short)
    sheet = device(short)
    bytes_and_rates = (
        sheet.memory_bytes,
        sheet.bandwidth,
        sheet.interconnect,
        sheet.host_bandwidth,
    )
    return System(short, *bytes_and_rates)


class VidurTables:
    """The kernels of one model on one device, whose names are those of ``tensor_parallel`` GPUs.

    Raises:
        SettingsError: a file is missing or damaged, is of another model, or has no times of these
            options.
    """

    def __init__(
        self,
        folder: Path,
        shape: ModelShape,
        options: MeasuredSettings,
        cached: str,
        block_size: int,
    ) -> None:
        if {options.weights, cached} != {"bfloat16"} or shape.num_experts:
            raise SettingsError(
                f"cost_model.tables: times of Vidur, as in {folder}, are of dense models with "
                "weights and cache of 16 bits; leave weights and kv_cache_dtype out"
            )
        if shape.head_dim * shape.num_attention_heads != shape.hidden_size:
            raise SettingsError(
                f"cost_model.model: heads of {shape.head_dim} do not add up to a width of "
                f"{shape.hidden_size}, as they do in all models that Vidur measures"
            )
        self._shape, self._degree = shape, options.tensor_parallel
        self._folder, self._system = folder, system_of(options.system)
        sizes = {
            "n_embd": shape.hidden_size,
            "n_kv_head": shape.num_key_value_heads,
            "num_tensor_parallel_workers": self._degree,
        }
        heads = shape.num_attention_heads
        self._rows = _read(
            folder / "mlp.csv",
            ("num_tokens", "n_head", "n_expanded_embd", *sizes),
            [_time(each) for each in _KERNELS],
        ).only("a model", n_head=heads, n_expanded_embd=shape.intermediate_size, **sizes)
        table = _read(
            folder / "attention.csv",
            ("batch_size", "prefill_chunk_size", "kv_cache_size", "block_size", "n_q_head", *sizes),
            [_time(each) for each in _ATTENTION],
        ).only("attention", n_q_head=heads, **sizes)
        nearest = min(table.choices("block_size"), key=lambda each: abs(each - block_size))
        self._cached = table.where(block_size=nearest)

    def layer(self) -> VidurLayer:
        """Return a layer without its attention."""
        columns = self._cached.columns
        tokens = np.maximum(columns["prefill_chunk_size"], columns["batch_size"])
        saved = Table(self._cached.path, {**columns, "num_tokens": tokens})
        curves = [_curve(self._rows, each) for each in _KERNELS]
        curves.append(_curve(saved, "attn_kv_cache_save"))
        found = [curve for curve in curves if curve is not None]
        return VidurLayer(found, self._reduce(), 2 * self._shape.hidden_size)

    def attention(self) -> Attention:
        """Return attention to the whole sequence."""
        prefill = self._timed("attn_prefill", "isl", "prefill_chunk_size")
        decode = self._timed("attn_decode", "step", "kv_cache_size")
        return Attention(prefill.only("attention of a prompt", kv_cache_size=0), decode)

    def head(self) -> VidurHead:
        """Return the head, which Vidur did not measure."""
        weights = self._shape.head_weights / self._degree
        flops = _SHARE_OF_PEAK * DEVICES[self._system.name].flops_16
        return VidurHead(self._system, weights, flops, 2 * 4 * self._shape.vocab_size)

    def _timed(self, kernel: str, axis: str, column: str) -> Table:
        """The rows of a kernel of attention, with the names that tables of the package have."""
        columns = self._cached.columns
        latency = columns[_time(kernel)]
        known = (latency > 0) & (columns[column] > 0)
        chosen = {name: each[known] for name, each in columns.items()}
        return Table(self._cached.path, {**chosen, axis: chosen[column], "latency": latency[known]})

    def _reduce(self) -> Curve | None:
        if self._degree == 1:
            return None
        time = _time("all_reduce")
        read = _read(self._folder / "all_reduce.csv", ("num_workers", "size"), [time])
        rows = read.only("a sum over GPUs", num_workers=self._degree)
        return _curve(
            Table(read.path, {**rows.columns, "num_tokens": rows.columns["size"]}), "all_reduce"
        )


def _curve(table: Table, kernel: str) -> Curve | None:
    """Times of a kernel by the number of tokens; ``None``: this model has no such kernel."""
    latency = table.columns[_time(kernel)]
    known = latency > 0
    if not known.any():
        if kernel in _NEEDED:
            raise damaged(table.path, f"it has no time of {kernel}", _SOURCE)
        return None
    chosen = {"num_tokens": table.columns["num_tokens"][known], "latency": latency[known]}
    (sizes,), seconds = Table(table.path, chosen).grid("num_tokens")
    return Curve(sizes, seconds.tolist())


class VidurLayer:
    """A layer without its attention: a sum of curves, and two sums over GPUs."""

    def __init__(self, curves: list[Curve], reduce: Curve | None, reduced: int) -> None:
        self._curves, self._reduce, self._reduced = curves, reduce, reduced
        self.most_rows = min(curve.largest for curve in curves)

    def seconds(self, tokens: int) -> float:
        """Return the time for so many rows."""
        total = sum(curve.seconds(tokens) for curve in self._curves)
        if self._reduce is not None:
            total += 2 * self._reduce.seconds(self._reduced * tokens)
        return total


class VidurHead:
    """The head by the bandwidth and arithmetic of the device, and the sampler."""

    def __init__(self, system: System, weights: float, flops: float, row_bytes: float) -> None:
        self._system, self._weights = system, weights
        self._flops, self._row_bytes = flops, row_bytes

    def seconds(self, rows: int) -> float:
        """Return the time for so many rows."""
        read = elementwise(self._system, 2 * self._weights)
        product = max(read, 2 * self._weights * rows / self._flops)
        return product + 3 * elementwise(self._system, self._row_bytes * rows)


def _time(kernel: str) -> str:
    return f"time_stats.{kernel}.median"


def _read(path: Path, sizes: Sequence[str], times: Sequence[str]) -> Table:
    """Return the columns of a file; of times, some files have none: they are NaN then."""
    csv, failure = arrow("csv")
    types = {**dict.fromkeys(sizes, "int64"), **dict.fromkeys(times, "float64")}
    options = csv.ConvertOptions(
        include_columns=list(types), include_missing_columns=True, column_types=types
    )
    try:
        read = csv.read_csv(path, convert_options=options)
    except FileNotFoundError:
        raise SettingsError(f"cost_model.tables: {path} is missing; {_SOURCE}") from None
    except (OSError, failure) as error:
        raise damaged(path, f"it cannot be read ({str(error)[:200]})", _SOURCE) from None
    needed = [*sizes, *(_time(each) for each in _NEEDED if _time(each) in types)]
    missing = [name for name in needed if read[name].null_count == len(read)]
    if missing:
        raise damaged(path, f"it has no {', '.join(missing)}", _SOURCE)
    if any(read[name].null_count for name in sizes):
        raise damaged(path, "a line of it is cut", _SOURCE)
    columns = {name: read[name].to_numpy() for name in types}
    if any((each < 0).any() for each in columns.values()):
        raise damaged(path, "a number in it is below 0", _SOURCE)
    return Table(path, {**columns, "latency": columns[times[0]]})


_SOURCE = "take it from data/profiling of Vidur's repository, github.com/microsoft/vidur"
