"""Component ``roofline``: the time that a device's bandwidth and arithmetic allow for a model."""

from __future__ import annotations

from paged_core.errors import SettingsError
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork, memory_of_cache
from paged_plugins.lab.cost_models.devices import device
from paged_plugins.lab.cost_models.measured.tables import installed_models
from paged_plugins.lab.cost_models.model_shape import model_shape
from paged_plugins.lab.cost_models.weights_file import with_file
from paged_plugins.lab.settings import RooflineSettings

_REDUCE_LATENCY = 8e-6
"""Seconds that one exchange between devices takes, however little it moves."""


class RooflineCost(CostModel):
    """The roofline of a step (Williams, Waterman and Patterson, 2009), for a model on a device.

    The linear layers, the head and the attention run one after the other. Each takes as long as its
    arithmetic or its memory traffic, whichever is longer, at the given efficiencies: the weights
    are read once a step, the cached keys and values once per sequence. Between ``tensor_parallel``
    devices, weights, arithmetic and cache are divided, and each layer adds two exchanges of the
    hidden states. Copies go through the device's memory, swaps over its link to the host: of each
    block the keys and the values of each layer, in one transfer each. Above all that, every step
    takes ``step_overhead``.

    Of the settings it reads ``block_size``, ``dtype`` (``auto``: 16 bit), ``kv_cache_dtype`` and
    ``kv_cache_memory``.

    Raises:
        SettingsError: the device or the model is unknown, the model is a mixture of experts, or it
            does not fit.
    """

    def __init__(self, options: RooflineSettings, context: CostModelContext, /) -> None:
        options, self._file = with_file(options)
        self._options = options
        self._shape = shape = model_shape(options.model, installed_models())
        if shape.num_experts:
            raise SettingsError(
                f"cost_model.model: {options.model} is a mixture of experts, of which 'roofline' "
                "does not know how many a step reads; use the cost model 'measured'"
            )
        self._device = chip = device(options.device)
        self._memory = context.settings.kv_cache_memory
        degree = options.tensor_parallel
        width = 4 if context.settings.dtype == "float32" else 2
        cached_width = width if context.settings.kv_cache_dtype == "auto" else 1
        peak = chip.flops_32 if width == 4 else chip.flops_16
        flops = degree * peak * options.compute_efficiency
        bandwidth = degree * chip.bandwidth * options.memory_efficiency
        self._weight_bytes = width * shape.weights
        self._token_bytes = cached_width * shape.cached_numbers_per_token
        self._least_seconds = options.step_overhead or 1e-9
        self._layers = _Part(shape.layer_weights, width, flops, bandwidth)
        self._head = _Part(shape.head_weights, width, flops, bandwidth)
        self._seconds_per_pair = shape.operations_per_pair / flops
        self._seconds_per_cached = self._token_bytes / bandwidth
        block_bytes = self._token_bytes * context.settings.block_size
        self._copy_seconds = 2 * block_bytes / bandwidth
        copies = 2 * shape.num_hidden_layers * options.copy_latency
        self._swap_seconds = copies + block_bytes / (degree * chip.host_bandwidth)
        self._exchanges = 2 * shape.num_hidden_layers if degree > 1 else 0
        moved = 2 * (degree - 1) / degree * width * shape.hidden_size  # of a ring, per token
        self._exchange_seconds = moved / chip.interconnect

    def seconds(self, work: StepWork, /) -> float:
        seconds = self._least_seconds
        seconds += self._copy_seconds * work.copied_blocks
        seconds += self._swap_seconds * work.swapped_blocks
        tokens = work.prefill_tokens + work.decode_sequences
        if not tokens:
            return seconds
        seconds += self._layers.seconds(tokens)
        if self._exchanges:
            seconds += self._exchanges * (_REDUCE_LATENCY + self._exchange_seconds * tokens)
        if work.sampled_rows:
            seconds += self._head.seconds(work.sampled_rows)
        per_pair, per_cached = self._seconds_per_pair, self._seconds_per_cached
        cached = work.prefill_context + work.prefill_tokens
        seconds += max(per_pair * work.prefill_pairs, per_cached * cached)
        return seconds + max(per_pair, per_cached) * (work.decode_context + work.decode_sequences)

    def num_blocks(self, block_size: int, /) -> int | None:
        if (known := self._file.num_blocks(block_size)) is not None:
            return known
        options, chip = self._options, self._device
        free = options.tensor_parallel * options.memory_share * chip.memory_bytes
        free -= self._weight_bytes
        if free <= 0:
            raise SettingsError(
                f"cost_model: {options.model} takes {self._weight_bytes / 2**30:.1f} GiB, and "
                f"{options.tensor_parallel} x {options.device} offers "
                f"{options.tensor_parallel * options.memory_share * chip.memory_bytes / 2**30:.1f}"
                " GiB; raise cost_model.tensor_parallel or choose a larger device"
            )
        free = memory_of_cache(free, self._memory)
        return max(1, int(free / (self._token_bytes * block_size)))

    @property
    def max_model_len(self) -> int | None:
        return self._file.max_model_len or self._shape.max_position_embeddings


class _Part:
    """A part of a model that every one of its rows is multiplied by."""

    def __init__(self, weights: int, width: int, flops: float, bandwidth: float) -> None:
        self._least = width * weights / bandwidth
        self._per_row = 2 * weights / flops

    def seconds(self, rows: int) -> float:
        """Return the time of the arithmetic, or of reading the weights."""
        return max(self._least, self._per_row * rows)
