"""Times of the kernels of one model on one system, by what they compute."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from paged_core.errors import SettingsError
from paged_plugins.lab.cost_models.measured.curves import Curve, Surface
from paged_plugins.lab.cost_models.measured.tables import System, Table, Tables
from paged_plugins.lab.cost_models.model_shape import ModelShape

_LAUNCH = 2.5e-6
"""Seconds of a kernel that reads and writes little."""
_BANDWIDTH_SHARE = 0.8
"""Share of the memory's bandwidth that a kernel without arithmetic reaches."""


class Products:
    """Products of rows with the matrices of a model.

    Between measured widths the time of a row count is linear in their logarithms, as its own.

    Args:
        dtype: of the weights, as the table names it.
    """

    def __init__(self, tables: Tables, dtype: str) -> None:
        grid, seconds = tables.products(dtype).grid("m", "n", "k")
        self._rows, self._outputs, self._inputs = grid
        self._seconds = _filled(seconds)

    def of(self, outputs: int, inputs: int) -> Curve:
        """Return the time of a product by its number of rows."""
        lower, upper, share = _neighbours(self._outputs, outputs)
        low, high, part = _neighbours(self._inputs, inputs)
        logs = np.log(self._seconds)
        first = (1 - part) * logs[:, lower, low] + part * logs[:, lower, high]
        second = (1 - part) * logs[:, upper, low] + part * logs[:, upper, high]
        return Curve(self._rows, np.exp((1 - share) * first + share * second).tolist())


def _neighbours(line: list[float], size: float) -> tuple[int, int, float]:
    """The lines of a grid around a size, and the share of the way, in logarithms.

    Beyond the largest, the way goes on: a product grows with its widths.
    """
    upper = min(max(int(np.searchsorted(line, size)), 1), len(line) - 1)
    lower = upper - 1
    share = np.log(size / line[lower]) / np.log(line[upper] / line[lower])
    return lower, upper, float(share)


def _filled(seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Points that were not measured, from those of fewer and more rows at the same widths; where a
    pair of widths was not measured at all, from the next ones."""
    filled = np.log(seconds)
    for axis in range(3):
        lines = np.moveaxis(filled, axis, -1)
        places = np.arange(lines.shape[-1])
        for index in np.ndindex(*lines.shape[:-1]):
            line = lines[index]
            known = ~np.isnan(line)
            if 1 < known.sum() < len(line):
                line[~known] = np.interp(places[~known], places[known], line[known])
    risen: np.ndarray[Any, Any] = np.exp(filled)
    return risen


class Attention:
    """Attention of one kind of layer, by what all sequences of a step compute and read.

    Args:
        rows: of the two tables that fit the layer's heads.
    """

    def __init__(self, prefill: Table, decode: Table) -> None:
        self._first, self._prompt = _prompts(prefill)
        self._decode = _decodes(decode)
        self.longest_prompt = max(prefill.choices("isl"))
        """Tokens of the longest prompt that was measured; longer ones are extrapolated."""
        self.most_cached = int((decode.columns["step"] * decode.columns["batch_size"]).max())
        """Tokens cached for all sequences of the largest step that was measured, likewise."""
        self.most_decodes = max(decode.choices("batch_size"))
        """Sequences of the largest step that was measured, likewise."""
        base = self._decode.seconds(1, 1)
        self._per_cached = (self._decode.seconds(1, 65_537) - base) / 65_536

    def prefill(self, sequences: int, pairs: float, context: float) -> float:
        """Return the time of chunks.

        Chunks of several lengths take as long as equal ones with as many pairs of query and key,
        and at least as long as it takes to read what is cached before them.
        """
        length = sqrt(2 * pairs / sequences)
        computed = sequences * self._prompt.seconds(length)
        return self._first + max(computed, self._per_cached * context)

    def decode(self, sequences: int, context: float) -> float:
        """Return the time of one token each, with so many cached ones in all."""
        return self._decode.seconds(sequences, context)


def _prompts(table: Table) -> tuple[float, Curve]:
    """The time of the smallest call, and the further time of a prompt among many, by its length.

    That grows at most with the square of the length, as arithmetic does: a time that was measured
    to grow faster is lowered to it, or two short chunks could take less time than one.
    """
    (batches, lengths), seconds = table.grid("batch_size", "isl")
    first = float(seconds[0, 0])
    shares = (seconds - first * 0.5) / np.asarray(batches)[:, None]
    each = []
    for column in shares.T:
        known = column[~np.isnan(column)]
        each.append(max(float(known[-1]), 1e-9))
    risen = np.maximum.accumulate(each)
    squares = np.asarray(lengths) ** 2
    return first * 0.5, Curve(lengths, (squares * np.minimum.accumulate(risen / squares)).tolist())


def _decodes(table: Table) -> Surface:
    """Times by the number of sequences and the tokens cached for all of them."""
    (batches, steps), seconds = table.grid("batch_size", "step")
    totals = np.concatenate([[1.0], np.geomspace(128, 4 * max(steps), 33)])
    by_total = []
    for count, line in zip(batches, seconds, strict=True):
        known = ~np.isnan(line)
        cached, times = count * np.asarray(steps)[known], line[known]
        slope = (times[-1] - times[-2]) / (cached[-1] - cached[-2])
        beyond = times[-1] + max(slope, 0.0) * np.maximum(totals - cached[-1], 0)
        by_total.append(np.where(totals > cached[-1], beyond, np.interp(totals, cached, times)))
    return Surface(batches, totals.tolist(), np.array(by_total))


_FUSED_BYTES = {2: 2**26, 4: 2**20}
"""By the number of GPUs, the largest sum that vLLM's pass fuses with the norm after it."""
_FUSED_BYTES_OF_MORE = 2**19


def all_reduces(tables: Tables, system: System, num_gpus: int, *, fused: bool) -> Curve | None:
    """Return the time of a sum over GPUs by its numbers; ``None``: there is one GPU.

    Args:
        fused: with the norm after it: of small sums by the faster of the engine's kernel and
            TensorRT-LLM's, which norms as well, of others by the engine's and a kernel of its own.
    """
    if num_gpus == 1:
        return None
    kernels = [tables, replace(tables, engine="trtllm")] if fused else [tables]
    found = [
        each.all_reduce.only("a sum over GPUs", num_gpus=num_gpus).grid("message_size")
        for each in kernels
    ]
    curves = [Curve(sizes, seconds.tolist()) for (sizes,), seconds in found]
    sizes = found[0][0][0]
    most = _FUSED_BYTES.get(num_gpus, _FUSED_BYTES_OF_MORE)

    def seconds(size: float) -> float:
        if not fused or 2 * size <= most:
            return min(each.seconds(size) for each in curves)
        return curves[0].seconds(size) + elementwise(system, 2 * 4 * size)

    return Curve(sizes, [seconds(size) for size in sizes])


def experts(
    tables: Tables, shape: ModelShape, dtype: str, gpus: tuple[int, int], distribution: str
) -> Curve:
    """Return the time of the experts of a layer by the number of tokens.

    Args:
        gpus: over how many the width of each is cut, and over how many groups of these they are
            dealt out.
    """
    rows = tables.experts_of(dtype).only(
        "the experts of a layer",
        moe_dtype=dtype,
        num_experts=shape.num_experts,
        topk=shape.experts_per_token,
        hidden_size=shape.hidden_size,
        inter_size=shape.intermediate_size,
        moe_tp_size=gpus[0],
        moe_ep_size=gpus[1],
        distribution=distribution,
    )
    (tokens,), seconds = rows.grid("num_tokens")
    return Curve(tokens, seconds.tolist())


_TILE = 128
"""Rows of each expert that DeepGEMM computes at a time."""


def tiled_experts(
    products: Products, system: System, shape: ModelShape, gpus: tuple[int, int]
) -> Curve:
    """Return the time of the experts of a layer by DeepGEMM's grouped products, by tokens.

    However few tokens there are, it computes as many tiles as all experts could need: vLLM's
    ``DeepGemmExperts`` has a graph captured with them, in every step since 0.11.1 (E8M0 scales).

    Args:
        products: with weights of a scale for each block.
        gpus: as in :func:`experts`.
    """
    hidden, width = shape.hidden_size, shape.intermediate_size // gpus[0]
    held = shape.num_experts // gpus[1]
    rising, falling = products.of(2 * width, hidden), products.of(hidden, width)
    read = elementwise(system, 3 * held * width * hidden)
    sizes = [2**place for place in range(15)]
    seconds = []
    for tokens in sizes:
        chosen = tokens * shape.experts_per_token
        rows = _TILE * -(-(chosen + held * (_TILE - 1)) // _TILE)
        moved = 2 * hidden * chosen, 5 * width * rows, 2 * hidden * (chosen + tokens)
        computed = max(read, rising.seconds(rows) + falling.seconds(rows))
        seconds.append(computed + sum(elementwise(system, each) for each in moved))
    return Curve(sizes, seconds)


def attention(
    tables: Tables, shape: ModelShape, dtype: str, num_gpus: int, window: int
) -> Attention:
    """Return the attention of the layers that have a window, or (0) of those that have none.

    Raises:
        SettingsError: the heads cannot be divided, or were not measured.
    """
    if shape.num_attention_heads % num_gpus:
        raise SettingsError(
            f"cost_model.tensor_parallel: {shape.num_attention_heads} heads cannot be divided by "
            f"{num_gpus}"
        )
    wanted = {
        "head_dim": shape.head_dim,
        "kv_cache_dtype": dtype,
        "window_size": window,
        "num_heads": shape.num_attention_heads // num_gpus,
        "num_key_value_heads": max(1, shape.num_key_value_heads // num_gpus),
    }
    return Attention(
        tables.prefill.only("attention", **wanted), tables.decode.only("attention", **wanted)
    )


def elementwise(system: System, num_bytes: float) -> float:
    """Return the time of a kernel that reads and writes so much."""
    return _LAUNCH + num_bytes / (_BANDWIDTH_SHARE * system.bandwidth)
