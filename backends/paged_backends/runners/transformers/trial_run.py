"""A trial run before a model is served: logits with and without the paged cache must agree.

Short sequences run through the model's own attention, each alone; then through the paged cache in
one row, shuffled, one of them in two chunks. A model that keeps any state between tokens other than
keys and values, mixes neighbours in its row, or depends on options of attention that its call does
not pass, gives other logits the second time, or other outputs of an attention module, and is
refused. What only long rows show, :mod:`.long_row` looks for.

In float32 the comparison is tight. In low precision the model's own attention may round its scores
more coarsely than ours; there, only large differences are refused.

Shapes: S sequences, W blocks in a row of the block tables.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
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
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.runner import Runner

_BLOCK_SIZE = 4
_LONGEST_WINDOW = 48
"""Windows up to this length are run; longer ones are only checked by the rule of their mask."""
_OTHERS = (7, 7)
"""Number and length of the sequences beside the long one; all together make a row of over 48."""
_TOLERANCE = 2e-3
_LOW_PRECISION_TOLERANCE = 0.3


def try_out(runner: Runner, model: Any, modules: Sequence[nn.Module]) -> int:
    """Run the trial, and return the width of the logits.

    Args:
        modules: the attention modules, one for each layer of ``runner``.

    Raises:
        UnsupportedModel: the results differ, or those in low precision are not finite.
        CheckpointError: the model's own are not finite, and neither is one of its weights.
        FloatingPointError: they are not, for another reason.
    """
    windows = [layer.sliding_window for layer in runner.layers if layer.sliding_window]
    length = 9 + max((window for window in windows if window <= _LONGEST_WINDOW), default=0)
    most = runner.max_model_len or length
    number, short = _OTHERS
    counts = [min(count, most) for count in (length, *[short] * number, 1)]
    device = model.device
    random = torch.Generator().manual_seed(0)
    limit = min(model.get_input_embeddings().num_embeddings, 1000)
    prompts = [torch.randint(limit, (count,), generator=random).to(device) for count in counts]
    with torch.inference_mode():
        with _outputs_of(modules) as own:
            expected = _by_itself(model, prompts)
        with _outputs_of(modules) as ours:
            actual, order = _paged(runner, prompts, device)
    if not expected.isfinite().all():
        raise _not_finite(runner, model)
    pairs = [("its logits", actual, expected)]
    for index in range(len(modules)):
        rows = torch.cat(ours[index :: len(modules)])[order]
        wanted = torch.cat(own[index :: len(modules)])
        pairs.append((f"the attention of layer {index}", rows, wanted))
    low = runner.layers[0].dtype != "float32"
    for what, found, wanted in pairs:
        error = _difference(found, wanted, low=low)
        if not error < (_LOW_PRECISION_TOLERANCE if low else _TOLERANCE):
            raise UnsupportedModel(
                f"{model.config.model_type} cannot be served: {what} over the paged cache and by "
                f"its own code differ by {error:.1%}, so it needs something of attention, or keeps "
                "something between tokens, that this runner does not support; choose another model"
            )
    return expected.shape[-1]


def _not_finite(runner: Runner, model: Any) -> Exception:
    """Return the error for logits that are not finite, with their cause."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.isfinite().all():
            return CheckpointError(
                f"{name} holds numbers that are infinite or none (NaN), so every answer would be "
                "noise; download the checkpoint again, or choose another"
            )
    dtype, finite = runner.layers[0].dtype, "its logits are not finite, though its weights are"
    if dtype != "float32":
        return UnsupportedModel(
            f"{model.config.model_type} cannot be served in {dtype}: {finite}; set dtype to float32"
        )
    return FloatingPointError(finite)


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
    """Return the logits of each sequence alone; those of one length are a batch."""
    model.set_attn_implementation("eager")
    try:
        batches = [torch.stack(list(same)) for _, same in groupby(prompts, len)]
        return torch.cat([model(input_ids=batch).logits.flatten(0, 1) for batch in batches]).float()
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _paged(
    runner: Runner, prompts: Sequence[Tensor], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the logits of each sequence, and where their rows are among those that were computed.

    The first step has a part of the first sequence and all others, in another order; the second
    step the rest.
    """
    backend = TorchAttention(
        TorchSettings(),
        AttentionContext(settings=cast("Any", SimpleNamespace(deterministic=False))),
    )
    layers = [
        replace(layer, block_size=_BLOCK_SIZE, kv_cache_dtype="auto") for layer in runner.layers
    ]
    number = len(prompts)
    width = -(-max(map(len, prompts)) // _BLOCK_SIZE)
    tables_SW = np.arange(number * width, dtype=np.int32)[::-1].reshape(number, width)
    bound = []
    for layer in layers:
        shape = backend.cache_shape(layer, number * width)
        cache = torch.zeros(shape, dtype=getattr(torch, layer.dtype), device=device)
        bound.append(backend.bind(layer, cache))

    def step(chunks: list[tuple[int, int, int]]) -> Tensor:
        """Compute tokens ``start .. end`` of each sequence; return their logits."""
        positions = torch.cat([torch.arange(start, end) for _, start, end in chunks]).to(device)
        tokens = torch.cat([prompts[row][start:end] for row, start, end in chunks])
        attend = StepAttention(bound, backend.plan(_batch(tables_SW, chunks, device)))
        return runner.logits(runner.forward(tokens, positions, attend)).float()

    cut = (len(prompts[0]) + 1) // 2
    places = np.random.default_rng(0).permutation(number)
    first = [(row, 0, len(prompts[row]) if row else cut) for row in places.tolist()]
    steps = [first, [(0, cut, len(prompts[0]))]] if cut < len(prompts[0]) else [first]
    logits = torch.cat([step(chunks) for chunks in steps])
    computed = [(row, token) for chunks in steps for row, *ends in chunks for token in range(*ends)]
    order = torch.tensor(sorted(range(len(computed)), key=computed.__getitem__), device=device)
    return logits[order], order


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
