"""The model's work of decode steps as captured graphs, one for each size of a batch.

Logits and sampling follow kernel by kernel, while the graph runs: the logits of every graph would
take gigabytes, and what sampling needs depends on the requests.

Shapes: B rows of a graph, S of them with a sequence.
"""

# ruff: noqa: N803, N815 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from paged_backends.attention.step import StepAttention
from paged_backends.executors.accelerator import Graph
from paged_backends.executors.batch import Batch
from paged_backends.executors.decode_inputs import DecodeInputs
from paged_backends.executors.device_sampler import DeviceSampler
from paged_backends.executors.loaded_model import LoadedModel
from paged_core.errors import error_text
from paged_core.interfaces.attention import SupportsGraphCapture
from paged_core.log import get_logger

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
    graph: Graph
    plan: Any


@dataclass(frozen=True, slots=True)
class GraphedStep:
    """The model's work of one step."""

    run: Callable[[], Tensor]
    """Queues it, and returns hidden states [S, hidden]; to be launched."""
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

    def fits(self, batch: Batch) -> bool:
        """Whether there is a graph for ``batch``."""
        return (
            batch.max_query_len == 1
            and len(batch.sequences) <= self._sizes[-1]
            and batch.max_seq_len <= self._max_seq_len
        )

    def prepare(self, batch: Batch) -> GraphedStep:
        """Stage a batch that fits."""
        count = len(batch.sequences)
        size = self._sizes[bisect_left(self._sizes, count)]
        captured = self._captured[size]
        staged = self._inputs.stage(batch, size)

        def run() -> Tensor:
            staged.copy()
            self._backend.update_capture(captured.plan, staged.attention)
            captured.graph.replay()
            return captured.graph.output[:count]

        return GraphedStep(run, self._inputs.targets(count), staged.give_back)

    def _capture(self, size: int) -> _Captured:
        accelerator = self._model.accelerator
        plan = self._backend.plan_capture(self._inputs.empty_batch(size, self._max_seq_len))
        work = partial(self._decode, plan, *self._inputs.tokens(size))

        def warm_up() -> None:
            """Compile and allocate what a capture must not."""
            work()

        accelerator.compute.launch(warm_up)
        accelerator.compute.record().wait()
        return _Captured(accelerator.capture(work), plan)

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
) -> DecodeGraphs | None:
    """Capture graphs; ``None``, and a line in the log that says why: the model runs without."""
    backend = model.backend
    if not isinstance(backend, SupportsGraphCapture):
        log.info("graphs_off", reason=f"{type(backend).__name__} cannot be captured in graphs")
        return None
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
        log.warning("graphs_off", reason=f"{components} cannot be captured: {error_text(error)}")
        return None
    log.info("graphs_captured", sizes=sizes)
    return graphs
