"""The work of decode steps as captured graphs, for each size of a batch.

They are captured over tensors that stay where they are, into which each batch is copied.

Of each size there are two. One ends with the best token of every sequence, for steps that take no
others. One ends with the hidden states; logits and sampling follow kernel by kernel while it runs,
since what they need depends on the requests. All graphs share their memory, and none returns its
logits, so together they take as much as those of the largest. A size whose logits would take more
than 128 MiB has no graph of the first kind.

Shapes: B rows of a graph, S of them with a sequence, W blocks in a row of the block tables.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.attention.step import StepAttention
from paged_backends.executors.accelerator import Accelerator, Graph, PinnedBuffers
from paged_backends.executors.batch import Batch
from paged_backends.executors.device_sampler import DeviceSampler
from paged_backends.executors.host_steps import LoadedModel
from paged_core.errors import error_text
from paged_core.interfaces.attention import AttentionBatch, SupportsGraphCapture
from paged_core.interfaces.runner import SupportsBestTokens
from paged_core.log import get_logger

_NO_SLOT = -1
"""Slot of a row without a sequence: nothing is written for it."""
NO_SOURCE = -1
"""Source of a row whose token is known on the host."""


class _Fields(NamedTuple):
    """Parts of one piece of memory, of the host or of the device, so that one copy moves all."""

    tokens_B: Tensor
    positions_B: Tensor
    slots_B: Tensor
    sources_B: Tensor
    """The row of :class:`DeviceSampler` that has the token; ``NO_SOURCE``: ``tokens_B`` has it."""
    targets_B: Tensor
    """The row of :class:`DeviceSampler` that gets the token that is sampled."""
    lengths_B: Tensor
    """int32, the others int64."""

    @staticmethod
    def num_bytes(num_rows: int) -> int:
        return num_rows * (5 * 8 + 4)

    @classmethod
    def of(cls, memory: Tensor) -> _Fields:
        """Return the fields in ``memory``, uint8 of :meth:`num_bytes`."""
        num_rows = len(memory) // cls.num_bytes(1)
        numbers = memory[: 40 * num_rows].view(torch.int64).view(5, num_rows)
        return cls._make((*numbers.unbind(0), memory[40 * num_rows :].view(torch.int32)))

    def write(self, values: Sequence[NDArray[Any]], no_target: int) -> None:
        """Write fields in the memory of the host: ``values`` [S] each, then rows to spare."""
        padding = (0, 0, _NO_SLOT, NO_SOURCE, no_target, 0)
        for field, values_S, spare in zip(self, values, padding, strict=True):
            field_B = field.numpy()
            field_B[: len(values_S)] = values_S
            field_B[len(values_S) :] = spare


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch on its way to the device."""

    copy: Callable[[], None]
    """Queues the copies; to be launched."""
    attention: AttentionBatch
    """The rows of the graph that computes it."""
    give_back: Callable[[], None]
    """To be called when the copies are done."""


class DecodeInputs:
    """Static tensors for batches of up to ``num_rows`` sequences that compute one token each."""

    def __init__(
        self, accelerator: Accelerator, *, num_rows: int, num_blocks: int, no_target: int
    ) -> None:
        """
        Args:
            num_rows: of the largest batch.
            num_blocks: of the longest sequence.
            no_target: the row of :class:`DeviceSampler` for tokens that are not wanted.
        """
        device = accelerator.device
        size = _Fields.num_bytes(num_rows)
        self._no_target = no_target
        host = torch.empty(size, dtype=torch.uint8)
        _Fields.of(host).write([np.zeros(0)] * len(_Fields._fields), no_target)
        self._memory = host.to(device)
        self._fields = _Fields.of(self._memory)
        self._tables_BW = torch.zeros((num_rows, num_blocks), dtype=torch.int32, device=device)
        self._starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self._starts_host = np.arange(num_rows + 1, dtype=np.int32)
        self._numbers = PinnedBuffers(accelerator, size, torch.uint8)
        self._tables = PinnedBuffers(accelerator, num_rows * num_blocks, torch.int32)
        self._on_device: NDArray[np.int32] | None = None
        """The tables that the device has, as the batch had them."""

    def tokens(self, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, sources of tokens and positions of the first rows, each [B] int64."""
        fields = self._fields
        return (
            fields.tokens_B[:num_rows],
            fields.sources_B[:num_rows],
            fields.positions_B[:num_rows],
        )

    def targets(self, num_rows: int) -> Tensor:
        """Return where the tokens go that the first rows sample [B] int64."""
        return self._fields.targets_B[:num_rows]

    def empty_batch(self, num_rows: int, max_seq_len: int) -> AttentionBatch:
        """Return a batch of ``num_rows`` rows without sequences."""
        tables_BW = np.zeros((num_rows, self._tables_BW.shape[1]), np.int32)
        return self._attention(np.zeros(num_rows, np.int32), tables_BW, max_seq_len)

    def stage(self, batch: Batch, num_rows: int) -> StagedBatch:
        """Write ``batch`` to pinned memory, padded to ``num_rows``."""
        count = len(batch.sequences)
        numbers, tables = self._numbers.take(), None
        rows_S = batch.rows_S
        values = (
            *(batch.tokens_T, batch.positions_T, batch.slots_T),
            np.where(batch.unknown_S, rows_S, NO_SOURCE),
            np.where(batch.complete_S, rows_S, self._no_target),
            batch.lengths_S,
        )
        _Fields.of(numbers).write(values, self._no_target)
        if batch.tables_SW is not self._on_device:
            tables = self._tables.take()
            self._on_device = batch.tables_SW
        tables_SW = batch.tables_SW[:, : self._tables_BW.shape[1]]
        staged_SW = None
        if tables is not None:
            staged_SW = tables[: tables_SW.size].view(tables_SW.shape)
            staged_SW.numpy()[:] = tables_SW

        def copy() -> None:
            self._memory.copy_(numbers, non_blocking=True)
            if staged_SW is not None:
                target = self._tables_BW[:count, : staged_SW.shape[1]]
                target.copy_(staged_SW, non_blocking=True)

        def give_back() -> None:
            self._numbers.give_back(numbers)
            if tables is not None:
                self._tables.give_back(tables)

        padding = num_rows - count
        attention = self._attention(
            np.pad(batch.lengths_S, (0, padding)),
            np.pad(tables_SW, ((0, padding), (0, 0))) if padding else tables_SW,
            batch.max_seq_len,
        )
        return StagedBatch(copy, attention, give_back)

    def _attention(
        self, lengths_B: NDArray[np.int32], tables_BW: NDArray[np.int32], max_seq_len: int
    ) -> AttentionBatch:
        num_rows = len(lengths_B)
        return AttentionBatch(
            query_start=self._starts[: num_rows + 1],
            seq_lens=self._fields.lengths_B[:num_rows],
            block_tables=self._tables_BW[:num_rows],
            slot_mapping=self._fields.slots_B[:num_rows],
            query_start_host=self._starts_host[: num_rows + 1],
            seq_lens_host=lengths_B,
            block_tables_host=tables_BW,
            max_query_len=1,
            max_seq_len=max_seq_len,
        )


_MAX_LOGITS = 1 << 27
"""Bytes of logits in a graph."""
_MAX_SIZE = 512
"""Larger batches take long enough that launching their kernels one by one costs nothing."""

log = get_logger()


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Return the sizes of batches that are captured: 1, 2, 4, then multiples of 8, and the largest
    that there can be, or 512 if that is less."""
    largest = min(max_num_seqs, _MAX_SIZE)
    return sorted({size for size in (1, 2, 4, *range(8, largest, 8)) if size < largest} | {largest})


@dataclass(frozen=True, slots=True)
class _Captured:
    """The graphs of a size."""

    plan: Any
    hidden: Graph
    best: Graph | None
    """Ends with what :meth:`DeviceSampler.take_best` returns."""


@dataclass(frozen=True, slots=True)
class GraphedStep:
    """The model's work of one step."""

    run: Callable[[], Tensor]
    """Queues it, and returns hidden states [S, hidden]; to be launched. With ``num_taken`` it
    returns what :meth:`DeviceSampler.take_best` does."""
    num_taken: int | None
    """Rows of which it takes the best tokens, S or more."""
    targets_S: Tensor
    """The rows of :class:`DeviceSampler` that get their tokens."""
    give_back: Callable[[], None]
    """To be called when the work is done."""


class DecodeGraphs:
    """Graphs over static inputs: a batch runs in the smallest that has room for it, and the rows
    to spare write nowhere."""

    def __init__(
        self,
        model: LoadedModel,
        backend: SupportsGraphCapture,
        device_sampler: DeviceSampler,
        *,
        sizes: list[int],
        block_size: int,
        max_model_len: int,
    ) -> None:
        """Capture the largest first, since its memory serves the others."""
        self._model = model
        self._backend = backend
        self._device_sampler = device_sampler
        self._sizes = sizes
        self._max_seq_len = max_model_len
        self._inputs = DecodeInputs(
            model.accelerator,
            num_rows=sizes[-1],
            num_blocks=-(-max_model_len // block_size),
            no_target=device_sampler.no_target,
        )
        self._captured = {size: self._capture(size) for size in reversed(sizes)}

    def __str__(self) -> str:
        return f"{len(self._sizes)} sizes, up to {self._sizes[-1]} sequences"

    def fits(self, batch: Batch) -> bool:
        """Return True if there is a graph for ``batch``."""
        return (
            batch.max_query_len == 1
            and len(batch.sequences) <= self._sizes[-1]
            and batch.max_seq_len <= self._max_seq_len
        )

    def prepare(self, batch: Batch) -> GraphedStep:
        """Stage a batch that fits, for the graph that suits what its requests ask for."""
        count = len(batch.sequences)
        size = self._sizes[bisect_left(self._sizes, count)]
        captured = self._captured[size]
        best = captured.best if self._device_sampler.is_greedy(batch) else None
        staged = self._inputs.stage(batch, size)

        def run() -> Tensor:
            staged.copy()
            self._backend.update_capture(captured.plan, staged.attention)
            graph = best or captured.hidden
            graph.replay()
            return graph.output if best else graph.output[:count]

        return GraphedStep(
            run, size if best else None, self._inputs.targets(count), staged.give_back
        )

    def _capture(self, size: int) -> _Captured:
        plan = self._backend.plan_capture(self._inputs.empty_batch(size, self._max_seq_len))
        decode = partial(self._decode, plan, *self._inputs.tokens(size))

        def take_best() -> Tensor:
            return self._device_sampler.take_best(decode(), self._inputs.targets(size))

        runner = self._model.runner
        logits_bytes = size * runner.vocab_size * getattr(torch, runner.layers[0].dtype).itemsize
        takes_best = isinstance(runner, SupportsBestTokens) and logits_bytes <= _MAX_LOGITS
        hidden = self._graph(decode)
        return _Captured(plan, hidden, self._graph(take_best) if takes_best else None)

    def _graph(self, work: Callable[[], Tensor]) -> Graph:
        accelerator = self._model.accelerator

        def warm_up() -> None:
            """Compile and allocate what a capture must not."""
            work()

        accelerator.compute.launch(warm_up)
        accelerator.compute.record().wait()
        return accelerator.capture(work)

    def _decode(
        self, plan: Any, tokens_B: Tensor, sources_B: Tensor, positions_B: Tensor
    ) -> Tensor:
        attend = StepAttention(self._model.layers, plan)
        tokens = self._device_sampler.known(tokens_B, sources_B)
        return self._model.runner.forward(tokens, positions_B, attend)


def capture_decode_graphs(
    model: LoadedModel,
    device_sampler: DeviceSampler,
    *,
    max_num_seqs: int,
    block_size: int,
    max_model_len: int,
) -> DecodeGraphs | str:
    """Capture graphs; or return why there are none, and log it: the model runs without."""
    backend = model.backend
    if not isinstance(backend, SupportsGraphCapture):
        reason = f"{type(backend).__name__} cannot be captured in graphs"
        log.info("graphs_off", reason=reason)
        return reason
    sizes = graph_sizes(max_num_seqs)
    try:
        graphs = DecodeGraphs(
            model,
            backend,
            device_sampler,
            sizes=sizes,
            block_size=block_size,
            max_model_len=max_model_len,
        )
    except Exception as error:  # noqa: BLE001 - of a backend or a runner, which serve without
        components = f"{type(model.runner).__name__} and {type(backend).__name__}"
        reason = f"{components} cannot be captured: {error_text(error)}"
        log.warning("graphs_off", reason=reason)
        return reason
    log.info("graphs_captured", sizes=sizes)
    return graphs
