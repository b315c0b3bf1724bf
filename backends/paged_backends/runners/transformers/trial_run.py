"""A trial run before a model is served: logits with and without the paged cache must agree.

Two short sequences run through the model's own attention, one at a time; then through the paged
cache in one row, one of them in two chunks. A model that keeps any state between tokens other than
keys and values, mixes neighbours in its row, or depends on options of attention that its call does
not pass, gives other logits the second time, or other outputs of an attention module, and is
refused.

In float32 the comparison is tight. In low precision the model's own attention may round its scores
more coarsely than ours; there, only large differences are refused.

Shapes: S sequences, W blocks in a row of the block tables.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.step import StepAttention
from paged_backends.attention.torch_attention import TorchAttention
from paged_backends.device import to_device
from paged_backends.runners.transformers.attention_port import IMPLEMENTATION
from paged_core.engine.contexts import AttentionContext
from paged_core.errors import UnsupportedModel
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.runner import Runner

_BLOCK_SIZE = 4
_LONGEST_WINDOW = 48
"""Windows up to this length are run; longer ones are only checked by the rule of their mask."""
_TOLERANCE = 2e-3
_LOW_PRECISION_TOLERANCE = 0.3


def try_out(runner: Runner, model: Any, modules: Sequence[nn.Module]) -> int:
    """Run the trial, and return the width of the logits.

    Args:
        modules: the attention modules, one for each layer of ``runner``.

    Raises:
        UnsupportedModel: the results differ.
    """
    windows = [layer.sliding_window for layer in runner.layers if layer.sliding_window]
    length = 9 + max((window for window in windows if window <= _LONGEST_WINDOW), default=0)
    if runner.max_model_len is not None:
        length = min(length, runner.max_model_len)
    device = model.device
    random = torch.Generator().manual_seed(0)
    limit = min(model.get_input_embeddings().num_embeddings, 1000)
    prompts = [
        torch.randint(limit, (count,), generator=random).to(device)
        for count in (length, max(1, length // 2))
    ]
    with torch.inference_mode():
        with _outputs_of(modules) as own:
            expected = _by_itself(model, prompts)
        with _outputs_of(modules) as ours:
            actual = _paged(runner, prompts, device)
    pairs = [("its logits", actual, expected)]
    count, cut = len(modules), (len(prompts[0]) + 1) // 2
    for index in range(count):
        # ours are of two steps: the first chunk and the second sequence, then the second chunk
        first, *rest = ours[index::count]
        rows = torch.cat([first[:cut], *rest, first[cut:]])
        wanted = torch.cat(own[index::count])
        pairs.append((f"the attention of layer {index}", rows, wanted))
    low = runner.layers[0].dtype != "float32"
    for what, found, wanted in pairs:
        error = _difference(found, wanted, low=low)
        if not error < (_LOW_PRECISION_TOLERANCE if low else _TOLERANCE):
            raise UnsupportedModel(
                f"{model.config.model_type} cannot be served: over the paged cache {what} differs "
                f"from its own by {error:.1%}, so it needs something of attention, or keeps "
                "something between tokens, that this runner does not support"
            )
    return expected.shape[-1]


@contextlib.contextmanager
def _outputs_of(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect the outputs of the modules, in the order of the calls, [T, hidden] float32."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _arguments: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        outputs.append(hidden.flatten(0, -2).float())

    hooks = [module.register_forward_hook(keep) for module in set(modules)]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _by_itself(model: Any, prompts: Sequence[Tensor]) -> Tensor:
    model.set_attn_implementation("eager")
    try:
        return torch.cat([model(input_ids=prompt[None]).logits[0] for prompt in prompts]).float()
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _paged(runner: Runner, prompts: Sequence[Tensor], device: torch.device) -> Tensor:
    backend = TorchAttention(
        TorchSettings(),
        AttentionContext(settings=cast("Any", SimpleNamespace(deterministic=False))),
    )
    layers = [
        replace(layer, block_size=_BLOCK_SIZE, kv_cache_dtype="auto") for layer in runner.layers
    ]
    first, second = prompts
    width = -(-len(first) // _BLOCK_SIZE)
    tables_SW = np.arange(2 * width, dtype=np.int32)[::-1].reshape(2, width)
    bound = []
    for layer in layers:
        shape = backend.cache_shape(layer, 2 * width)
        cache = torch.zeros(shape, dtype=getattr(torch, layer.dtype), device=device)
        bound.append(backend.bind(layer, cache))

    def step(chunks: list[tuple[int, int, int]]) -> Tensor:
        """Compute tokens ``start .. end`` of each sequence; return their logits."""
        positions = torch.cat([torch.arange(start, end) for _, start, end in chunks]).to(device)
        tokens = torch.cat([prompts[row][start:end] for row, start, end in chunks])
        attend = StepAttention(bound, backend.plan(_batch(tables_SW, chunks, device)))
        return runner.logits(runner.forward(tokens, positions, attend)).float()

    cut = (len(first) + 1) // 2
    head = step([(0, 0, cut), (1, 0, len(second))])
    parts = [head[:cut], head[cut:]]
    if cut < len(first):
        parts.insert(1, step([(0, cut, len(first))]))
    return torch.cat(parts)


def _batch(
    tables_SW: NDArray[np.int32], chunks: Sequence[tuple[int, int, int]], device: torch.device
) -> AttentionBatch:
    """Return the batch of tokens ``start .. end`` of each sequence."""
    counts = [end - start for _, start, end in chunks]
    starts = np.cumsum([0, *counts], dtype=np.int32)
    lengths = np.array([end for *_, end in chunks], np.int32)
    tables = tables_SW[[row for row, *_ in chunks]]
    slots = []
    for table, (_, start, end) in zip(tables, chunks, strict=True):
        positions = np.arange(start, end)
        slots.append(table[positions // _BLOCK_SIZE] * _BLOCK_SIZE + positions % _BLOCK_SIZE)
    return AttentionBatch(
        query_start=to_device(starts, device),
        seq_lens=to_device(lengths, device),
        block_tables=to_device(tables, device),
        slot_mapping=to_device(np.concatenate(slots).astype(np.int64), device),
        query_start_host=starts,
        seq_lens_host=lengths,
        block_tables_host=tables,
        max_query_len=max(counts),
        max_seq_len=int(lengths.max()),
    )


def _difference(actual: Tensor, expected: Tensor, *, low: bool) -> float:
    """Largest relative difference of a row's logits; in low precision, that of the median row."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    errors = (actual - expected).norm(dim=-1) / (spread + 1e-6)
    return float(errors.median() if low else errors.max())
