"""Component ``measured``: steps of GPU engines, kernel by kernel, from times that were measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from paged_core.errors import SettingsError
from paged_core.log import get_logger
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork, memory_of_cache
from paged_plugins.lab.cost_models.measured.curves import Curve
from paged_plugins.lab.cost_models.measured.kernels import (
    Attention,
    Products,
    all_reduces,
    attention,
    elementwise,
    experts,
    tiled_experts,
)
from paged_plugins.lab.cost_models.measured.tables import (
    System,
    Tables,
    installed_models,
    load_system,
    package_folder,
    published_models,
)
from paged_plugins.lab.cost_models.measured.vidur import (
    VidurHead,
    VidurLayer,
    VidurTables,
    is_folder_of_vidur,
    system_of,
)
from paged_plugins.lab.cost_models.model_shape import ModelShape, model_shape
from paged_plugins.lab.cost_models.weights_file import with_file
from paged_plugins.lab.settings import MeasuredSettings

_log = get_logger()


class Weights(NamedTuple):
    """Form of stored weights, by the names that tables of kernels have for it."""

    products: str
    experts: str
    product_bytes: float
    """Bytes of a weight, with its share of scales."""
    expert_bytes: float


_NVFP4 = 0.5 + 1 / 16
_INT4 = 0.5 + 2 / 128
_MXFP4 = 0.5 + 1 / 32
WEIGHTS: Mapping[str, Weights] = {
    "bfloat16": Weights("bfloat16", "bfloat16", 2, 2),
    "fp8": Weights("fp8", "fp8", 1, 1),
    "fp8_block": Weights("fp8_block", "fp8_block", 1, 1),
    "fp4": Weights("nvfp4", "nvfp4", _NVFP4, _NVFP4),
    "fp4_experts": Weights("bfloat16", "nvfp4", 2, _NVFP4),
    "int4": Weights("int4_wo", "int4_wo", _INT4, _INT4),
    "mxfp4": Weights("bfloat16", "w4a16_mxfp4", 2, _MXFP4),
    "mxfp4_mxfp8": Weights("bfloat16", "w4a8_mxfp4_mxfp8", 2, _MXFP4),
}
_QUANTIZED_APART = frozenset({"fp4", "fp8_block"})
"""Weights for which each product's input is quantised by a kernel of its own; one scale for all of
``fp8`` lets the kernel before do it."""
_GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Token counts for which vLLM captures graphs; a step is padded to the next."""
_MOST_TOKENS = 8192
"""Tokens of the step for which vLLM measures the memory of activations."""
_LEAST = 1e-9
"""Seconds of a step without work, if the host takes no time."""
_COPY_LATENCY = 1e-5
"""Seconds of every transfer to or from the host beside its bytes."""
_RUNTIME_BYTES = 1.5 * 2**30
"""Memory of a process that holds neither weights, activations nor cache: the CUDA context, NCCL's
buffers, captured graphs."""


class MeasuredCost(CostModel):
    """The sum of the kernels that an engine launches for a step, by their measured times.

    Each layer has four products (or two, and the experts), attention to the sequences of the step
    as they are, two sums over ``tensor_parallel`` GPUs, and the kernels between them, which are
    bound by the memory's bandwidth; after the layers come the head for the rows that are sampled,
    and the sampler. Rows are padded as vLLM pads them to the graphs that it captures. The host adds
    ``host_per_step`` and ``host_per_sequence``: beside the GPU where ``async_scheduling`` plans a
    step while the one before it runs, between its steps where that is off.

    Times between measured points are interpolated, beyond them extrapolated, which the log says
    once.

    Of the settings it reads ``block_size``, ``kv_cache_dtype``, ``kv_cache_memory`` and
    ``async_scheduling``.

    Raises:
        SettingsError: the tables are not installed or damaged, the model, the system or the engine
            is unknown, a shape was not measured, or the model does not fit.
    """

    def __init__(self, options: MeasuredSettings, context: CostModelContext, /) -> None:
        options, self._file = with_file(options)
        self._options = options
        settings = context.settings
        cached = options.kv_cache_dtype
        if cached == "auto":
            cached = "bfloat16" if settings.kv_cache_dtype == "auto" else "fp8"
        kernels = _kernels(options, cached, settings.block_size)
        self._shape, self._system = kernels.shape, kernels.system
        self._attention, self._layer, self._head = kernels.attention, kernels.layer, kernels.head
        self._by_tokens, self._by_rows = kernels.by_tokens, kernels.by_rows
        self._weights = WEIGHTS[options.weights]
        self._memory = settings.kv_cache_memory
        self._step_host = _LEAST + options.host_per_step
        self._sequence_host = options.host_per_sequence
        self._is_hidden = settings.async_scheduling is not False
        self._cached_width = 2 if cached == "bfloat16" else 1
        block_bytes = self._block_bytes(settings.block_size)
        self._copy_seconds = elementwise(self._system, 2 * block_bytes)
        copies = 2 * self._shape.num_hidden_layers
        self._swap_seconds = copies * _COPY_LATENCY + block_bytes / self._system.host_link
        self._longest = min(part.longest_prompt for _, part, _ in self._attention)
        self._most_cached = min(part.most_cached for _, part, _ in self._attention)
        self._most_decodes = min(part.most_decodes for _, part, _ in self._attention)
        self._is_told = False

    def seconds(self, work: StepWork, /) -> float:
        prompts, decodes = work.prefill_tokens, work.decode_sequences
        host = self._step_host + self._sequence_host * (work.prefill_sequences + decodes)
        if work.copied_blocks or work.swapped_blocks:
            moved = work.copied_blocks * self._copy_seconds
            moved += work.swapped_blocks * self._swap_seconds
        else:
            moved = 0.0
        tokens = prompts + decodes
        if not tokens:
            return host + moved
        gpu = self._by_tokens.get(tokens) or self._dense(tokens)
        if rows := work.sampled_rows:
            gpu += self._by_rows.get(rows) or self._sampled(rows)
        if not self._is_told and self.is_extrapolated(work):
            self._tell()
        if prompts:
            chunks, pairs = work.prefill_sequences or 1, work.prefill_pairs or 1
            for count, part, _ in self._attention:
                gpu += count * part.prefill(chunks, pairs, work.prefill_context)
        if decodes:
            context = work.decode_context
            for count, part, window in self._attention:
                cached = min(context, window * decodes) if window else context
                gpu += count * part.decode(decodes, cached)
        return moved + (max(gpu, host) if self._is_hidden else gpu + host)

    def _dense(self, tokens: int) -> float:
        """Time of all kernels but attention, the head and the sampler."""
        padded = _padded(tokens)
        seconds = self._by_tokens.get(padded)
        if seconds is None:
            seconds = self._shape.num_hidden_layers * self._layer.seconds(padded)
            self._by_tokens[padded] = seconds
        self._by_tokens[tokens] = seconds
        return seconds

    def _sampled(self, rows: int) -> float:
        seconds = self._by_rows[rows] = self._head.seconds(rows)
        return seconds

    def is_extrapolated(self, work: StepWork, /) -> bool:
        tokens = work.prefill_tokens + work.decode_sequences
        chunks, pairs = work.prefill_sequences or 1, work.prefill_pairs
        return (
            tokens > self._layer.most_rows
            or 2 * pairs > chunks * self._longest * (self._longest + 1)
            or work.decode_context > self._most_cached
            or work.decode_sequences > self._most_decodes
        )

    def _tell(self) -> None:
        """Say once that steps are larger than those that were measured."""
        self._is_told = True
        _log.warning(
            "times_extrapolated",
            longest_measured_prompt=self._longest,
            most_measured_cached_tokens=self._most_cached,
            most_measured_decodes=self._most_decodes,
            most_measured_tokens=self._layer.most_rows,
        )

    # ------------------------------------------------------------------ memory

    def num_blocks(self, block_size: int, /) -> int | None:
        if (known := self._file.num_blocks(block_size)) is not None:
            return known
        options, shape, degree = self._options, self._shape, self._options.tensor_parallel
        share = options.memory_share * self._system.memory_bytes
        weights = self._weight_bytes / degree
        rows = _MOST_TOKENS * 2 * (4 * shape.hidden_size + 3 * shape.intermediate_size // degree)
        free = share - weights - rows - _RUNTIME_BYTES
        if free <= 0:
            raise SettingsError(
                f"cost_model: {options.model} takes {weights / 2**30:.1f} GiB of each GPU, and "
                f"{options.system} offers {share / 2**30:.1f} GiB; raise cost_model.tensor_parallel"
                " or choose a larger system"
            )
        free = memory_of_cache(degree * free, self._memory) / degree
        return max(1, int(free / self._block_bytes(block_size)))

    @property
    def max_model_len(self) -> int | None:
        return self._file.max_model_len or self._shape.max_position_embeddings

    @property
    def _weight_bytes(self) -> float:
        shape, stored = self._shape, self._weights
        in_experts = shape.feed_forward_weights if shape.num_experts else 0
        others = shape.layer_weights - in_experts
        embedded = 2 * (shape.weights - shape.layer_weights)
        return others * stored.product_bytes + in_experts * stored.expert_bytes + embedded

    def _block_bytes(self, block_size: int) -> float:
        """Bytes of a block on each GPU; a key/value head is copied where there are too few."""
        shape, degree = self._shape, self._options.tensor_parallel
        heads = max(1, shape.num_key_value_heads // degree)
        per_token = 2 * shape.num_hidden_layers * heads * shape.head_dim * self._cached_width
        return per_token * block_size


def _padded(tokens: int) -> int:
    """Token count of the captured graph that a step uses; without one, its own."""
    place = bisect_left(_GRAPH_SIZES, tokens)
    return _GRAPH_SIZES[place] if place < len(_GRAPH_SIZES) else tokens


class _Kernels:
    """Kernels of a model on a system, and the times that were looked up.

    Args:
        cached: type of cached keys and values.

    Raises:
        SettingsError: as :class:`MeasuredCost`.
    """

    def __init__(self, options: MeasuredSettings, cached: str, block_size: int) -> None:
        degree = options.tensor_parallel
        if degree % options.expert_parallel:
            raise SettingsError(
                f"cost_model.expert_parallel: {degree} GPUs (tensor_parallel) "
                f"cannot be divided by {options.expert_parallel}"
            )
        if options.tiled_experts and options.weights != "fp8_block":
            raise SettingsError(
                "cost_model.tiled_experts: DeepGEMM computes weights fp8_block, these are "
                f"{options.weights}; leave it out or set cost_model.weights"
            )
        folder = options.tables or package_folder()
        is_vidur = is_folder_of_vidur(folder)
        if options.tables and not (is_vidur or (folder / "systems/data").is_dir()):
            problem = "has no tables of times" if folder.is_dir() else "is no folder"
            raise SettingsError(
                f"cost_model.tables: {folder} {problem}; name one with `systems/data`, as the "
                "package aiconfigurator-core has, or with Vidur's `mlp.csv` and `attention.csv`"
            )
        models = installed_models() if is_vidur else published_models(folder)
        self.shape = shape = model_shape(options.model, models)
        self.layer: _Layer | VidurLayer
        self.head: _Head | VidurHead
        if is_vidur:
            self.system = system_of(options.system)
            measured = VidurTables(folder, shape, options, cached, block_size)
            self.attention = [(shape.num_hidden_layers, measured.attention(), 0)]
            self.layer, self.head = measured.layer(), measured.head()
        else:
            self.system = system = load_system(folder, options.system)
            tables = Tables(folder, options.system, options.engine)
            self.attention = _attentions(tables, shape, cached, degree)
            plain = Products(tables, "bfloat16")
            reduce = all_reduces(tables, system, degree, fused=options.fused_all_reduce)
            self.layer = _Layer(tables, system, shape, plain, reduce, options)
            self.head = _Head(system, shape, plain, reduce, degree)
        self.by_tokens: dict[int, float] = {}
        self.by_rows: dict[int, float] = {}


_kernels = lru_cache(maxsize=32)(_Kernels)
"""Replicas, and simulations one after another, share the kernels of equal options; tables are read
once in a process."""


def _attentions(
    tables: Tables, shape: ModelShape, dtype: str, degree: int
) -> list[tuple[int, Attention, int]]:
    """The number of layers of each kind, their attention, and their window (0: none)."""
    windowed = shape.num_windowed_layers
    kinds = [(shape.num_hidden_layers - windowed, 0), (windowed, shape.sliding_window)]
    return [
        (count, attention(tables, shape, dtype, degree, window), window)
        for count, window in kinds
        if count
    ]


class _Layer:
    """A layer without its attention.

    Args:
        plain: products with weights of 16 bits.
        reduce: sums over GPUs.
    """

    def __init__(
        self,
        tables: Tables,
        system: System,
        shape: ModelShape,
        plain: Products,
        reduce: Curve | None,
        options: MeasuredSettings,
    ) -> None:
        weights = WEIGHTS[options.weights]
        degree, hidden = options.tensor_parallel, shape.hidden_size
        query = shape.num_attention_heads * shape.head_dim // degree
        cached = max(1, shape.num_key_value_heads // degree) * shape.head_dim
        is_plain = weights.products == "bfloat16"
        products = plain if is_plain else Products(tables, weights.products)
        self._products = [products.of(query + 2 * cached, hidden), products.of(hidden, query)]
        width = shape.intermediate_size // degree
        if shape.num_experts:
            gpus = degree // options.expert_parallel, options.expert_parallel
            self._products.append(plain.of(shape.num_experts, hidden))  # which experts
            self._products.append(
                tiled_experts(products, system, shape, gpus)
                if options.tiled_experts
                else experts(tables, shape, weights.experts, gpus, options.expert_distribution)
            )
        else:
            self._products.append(products.of((2 if shape.gated else 1) * width, hidden))
            self._products.append(products.of(hidden, width))
        self._moves = [2 * 3 * (query + 2 * cached)]  # norms, rotary of heads, the cache's write
        if not options.fused_all_reduce:
            self._moves += 2 * [2 * 4 * hidden]  # norms add to what passes by, and write both
        if shape.norms_over_heads:
            self._moves += [2 * 2 * (query + cached)] * 2  # squares, and products with their sum
        if not shape.num_experts:
            self._moves.append(2 * 3 * width)  # the activation reads two halves and writes one
        if options.weights in _QUANTIZED_APART:
            inputs = [hidden, query] if shape.num_experts else [hidden, query, hidden, width]
            self._moves += [3 * each for each in inputs]  # reads 16 bits, writes 8 at most
        self._reduce = reduce
        self._sums = [hidden, hidden, 4] if shape.norms_over_heads else [hidden, hidden]
        """Numbers of a row in each sum over GPUs; a square of float32 counts as two."""
        self.most_rows = min(curve.largest for curve in self._products)
        self._system = system

    def seconds(self, tokens: int) -> float:
        """Return the time for so many rows."""
        total = sum(curve.seconds(tokens) for curve in self._products)
        for each in self._moves:
            total += elementwise(self._system, each * tokens)
        if self._reduce is not None:
            total += sum(self._reduce.seconds(each * tokens) for each in self._sums)
        return total


class _Head:
    """The head and the sampler."""

    def __init__(
        self,
        system: System,
        shape: ModelShape,
        plain: Products,
        reduce: Curve | None,
        degree: int,
    ) -> None:
        width = -(-shape.vocab_size // degree)
        self._product = plain.of(width, shape.hidden_size)
        self._gather = reduce
        self._gathered = width
        self._sampled = 2 * 4 * shape.vocab_size
        self._system = system

    def seconds(self, rows: int) -> float:
        """Return the time for so many rows: the product, the parts gathered, float32, the choice
        of a token."""
        total = self._product.seconds(rows) + 3 * elementwise(self._system, self._sampled * rows)
        if self._gather is not None:
            total += self._gather.seconds(self._gathered * rows)
        return total
