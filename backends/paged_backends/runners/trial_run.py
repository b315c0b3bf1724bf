"""A trial before a model is served: over the paged cache it must say what it says by itself.

Two short sequences run through the model's own attention, one at a time; then through the paged
cache, sharing a row, one of them in two chunks. A model that carries anything from token to token
beside keys and values, mixes neighbours in its row, or asks of attention what its call did not say,
gives other logits the second time, or other outputs of an attention module, and is refused.

In float32 hardly anything escapes. In low precision the model's own attention may round its scores
so coarsely that it is the worse of the two; there, only what is plainly different is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import TorchAttention
from paged_backends.runners.attention_port import IMPLEMENTATION
from paged_core.errors import UnsupportedModel
from paged_core.interfaces.attention import AttentionBatch, AttentionParts
from paged_core.interfaces.runner import Runner

_BLOCK_SIZE = 4
_LONGEST_WINDOW = 48
"""Windows up to this length are tried for real; longer ones only by the rule of their mask."""
_TOLERANCE = 2e-3
_LOW_PRECISION_TOLERANCE = 0.3


def try_out(runner: Runner, model: Any, modules: Sequence[nn.Module]) -> int:
    """Run the trial, and return the width of the logits.

    Args:
        modules: the attention modules, one for each layer of ``runner``.

    Raises:
        UnsupportedModel: what comes out differs.
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
        # ours came in two steps: the first chunk and the second sequence, then the second chunk
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
                "something between tokens, that this runner does not know of"
            )
    return expected.shape[-1]


@contextlib.contextmanager
def _outputs_of(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect what the modules return meanwhile, in the order of the calls, [T, hidden] float32."""
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
        TorchSettings(), AttentionParts(settings=cast("Any", SimpleNamespace()))
    )
    layers = [replace(layer, block_size=_BLOCK_SIZE) for layer in runner.layers]
    first, second = prompts
    width = -(-len(first) // _BLOCK_SIZE)
    tables = torch.arange(2 * width, device=device).flip(0).view(2, width).int()
    bound = []
    for layer in layers:
        shape = backend.cache_shape(layer, 2 * width)
        cache = torch.zeros(shape, dtype=getattr(torch, layer.dtype), device=device)
        bound.append(backend.bind(layer, cache))

    def step(parts: list[tuple[int, int, int]]) -> Tensor:
        """Compute tokens ``start .. end`` of each sequence; return their logits."""
        counts = torch.tensor([end - start for _, start, end in parts], device=device)
        positions = torch.cat([torch.arange(a, b, device=device) for _, a, b in parts])
        rows = torch.tensor([row for row, *_ in parts], device=device)
        blocks = tables[rows.repeat_interleave(counts), positions // _BLOCK_SIZE].long()
        starts = torch.zeros(len(parts) + 1, dtype=torch.int32, device=device)
        starts[1:] = counts.cumsum(0)
        plan = backend.plan(
            AttentionBatch(
                query_start=starts,
                seq_lens=torch.tensor([end for *_, end in parts], dtype=torch.int32, device=device),
                block_tables=tables[rows],
                slot_mapping=blocks * _BLOCK_SIZE + positions % _BLOCK_SIZE,
                max_query_len=int(counts.max()),
                max_seq_len=max(end for *_, end in parts),
            )
        )

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return bound[layer].forward(query, key, value, plan)

        tokens = torch.cat([prompts[row][start:end] for row, start, end in parts])
        return runner.logits(runner.forward(tokens, positions, attend))

    cut = (len(first) + 1) // 2
    head = step([(0, 0, cut), (1, 0, len(second))])
    parts = [head[:cut], head[cut:]]
    if cut < len(first):
        parts.insert(1, step([(0, cut, len(first))]))
    return torch.cat(parts)


def _difference(actual: Tensor, expected: Tensor, *, low: bool) -> float:
    """Largest relative difference of a row's logits; in low precision, that of the median row."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    errors = (actual - expected).norm(dim=-1) / (spread + 1e-6)
    return float(errors.median() if low else errors.max())
