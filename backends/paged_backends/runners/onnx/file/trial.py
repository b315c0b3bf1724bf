"""Trials of a cut graph before it is served: a few tokens, and results that must agree.

Shapes: T tokens, H query heads, K key/value heads, D head_dim.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto
from torch import Tensor

from paged_backends.runners.onnx.file.cut_model import CutModel
from paged_backends.runners.onnx.file.file_config import FileConfig
from paged_backends.runners.onnx.file.model_file import read_model_file
from paged_backends.runners.onnx.file.model_graph import unserved
from paged_backends.runners.onnx.sessions import DTYPES, ORT_ERRORS, as_ort_value
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import Runner
from paged_core.log import get_logger

log = get_logger()

_NUM_TOKENS = 32
_DIFFERENCE = 0.05
"""Of logits, as part of the largest: 8-bit arithmetic stays below it."""
_FLOAT_DIFFERENCE = 1e-3
"""The same, where all is computed in float32."""
_FLOAT_TYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}
)
"""Of weights, if nothing is computed in lower precision."""


def check_rows(runner: Runner, layers: Sequence[LayerSpec]) -> None:
    """Check that what a token gets outside of attention depends on that token alone.

    Raises:
        UnsupportedModel: it depends on the rest of the batch, or on its place in there.
    """
    last = min(runner.max_model_len or 64, 4096) - 1
    together = [(1, 0), (2, last), (3, 2), (1, 3)]
    some = [(3, 2), (1, 0)]

    def attend(layer: int, query_THD: Tensor, _: Tensor, value_TKD: Tensor) -> Tensor:
        groups = layers[layer].num_heads // layers[layer].num_kv_heads
        return (query_THD + value_TKD.repeat_interleave(groups, dim=1)).contiguous()

    def logits_of(batch: Sequence[tuple[int, int]]) -> Tensor:
        numbers = torch.tensor(batch, device=layers[0].device)
        return runner.logits(runner.forward(numbers[:, 0], numbers[:, 1], attend))

    whole, part = logits_of(together), logits_of(some)
    if not _agree(whole[[2, 0]], part):
        raise unserved(
            "outside of attention, the result of a token depends on the other tokens of the step"
        )


def check_file(runner: Runner, model: CutModel, config: FileConfig) -> None:
    """Check the logits of a prompt against those of the whole graph, as it is in the file.

    It shows whether attention was understood: its scale, cap and window. The masks themselves are
    checked beyond the few tokens of this prompt by
    :func:`masked_layers`.

    Raises:
        UnsupportedModel: they differ.
    """
    count = min(_NUM_TOKENS, runner.max_model_len or _NUM_TOKENS)
    tokens = 1 + torch.arange(count) % max(runner.vocab_size - 1, 1)
    whole = _logits_of_file(model, config, runner.layers, tokens)
    if whole is None:
        log.info("graph_not_compared", path=str(model.path), reason="it cannot be run as it is")
        return
    device = runner.layers[0].device
    positions = torch.arange(count, device=device)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _causal(runner.layers[layer], query, key, value)

    cut = runner.logits(runner.forward(tokens.to(device), positions, attend)).cpu()
    types = {weight.data_type for weight in model.graph.weights.values()}
    in_float = model.dtype == torch.float32 and types <= _FLOAT_TYPES
    exact = in_float and str(device) == "cpu"
    if not _agree(whole, cut, _FLOAT_DIFFERENCE if exact else _DIFFERENCE):
        apart = float((whole - cut).abs().max())
        raise unserved(
            f"cut at its attentions, of which the first is {model.attentions[0].node}, it computes "
            f"other logits, by {apart:.3g}; they do more than causal attention with a scale and a "
            "cap, such as adding biases by distance"
        )


def _logits_of_file(
    model: CutModel, config: FileConfig, layers: Sequence[LayerSpec], tokens: Tensor
) -> Tensor | None:
    """Return the logits [T, V] of the whole graph; ``None``: ONNX Runtime cannot run it here."""
    copies: list[onnxruntime.OrtValue] = []
    whole = read_model_file(model.path)  # the graph of the model was changed
    try:
        session = model.weights.session_for_one_run(whole, copies)
    except ORT_ERRORS:
        return None
    caches = {
        name: (1, layer.num_kv_heads, 0, layer.head_dim)
        for one, layer in zip(model.attentions, layers, strict=True)
        for name in one.past
    }
    numbers = np.arange(len(tokens))[None]
    given = {config.tokens: tokens.numpy()[None], config.positions: numbers}
    values = {}
    for put in session.get_inputs():
        if put.name in caches:
            cache = torch.zeros(caches[put.name], dtype=DTYPES[put.type])
            values[put.name] = as_ort_value(cache)
        elif put.name in given or ("mask" in put.name and len(put.shape) == 2):
            array = given.get(put.name, np.ones_like(numbers))
            values[put.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        else:
            return None
    try:
        logits = session.run_with_ort_values([config.logits], values)[0].numpy()
    except ORT_ERRORS:
        return None
    return torch.from_numpy(np.array(logits)).view(len(tokens), -1).float()


def _agree(one: Tensor, other: Tensor, difference: float = _DIFFERENCE) -> bool:
    largest = float(one.abs().max())
    return bool(((one - other).abs() <= difference * largest + 1e-6).all())


def _causal(spec: LayerSpec, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor) -> Tensor:
    """Return attention [T, H, D] of one sequence without a past, as its graph describes it."""
    groups = spec.num_heads // spec.num_kv_heads
    key_HTD, value_HTD = (
        rows.repeat_interleave(groups, dim=1).transpose(0, 1).float()
        for rows in (key_TKD, value_TKD)
    )
    scores_HTT = query_THD.transpose(0, 1).float() @ key_HTD.transpose(1, 2) * spec.scale
    if spec.soft_cap is not None:
        scores_HTT = spec.soft_cap * torch.tanh(scores_HTT / spec.soft_cap)
    length = len(query_THD)
    places = torch.arange(length, device=query_THD.device)
    distance_TT = places[:, None] - places
    hidden_TT = distance_TT < 0
    if spec.sliding_window is not None:
        hidden_TT |= distance_TT >= spec.sliding_window
    weights_HTT = scores_HTT.masked_fill(hidden_TT, float("-inf")).softmax(dim=-1)
    return (weights_HTT @ value_HTD).transpose(0, 1).to(query_THD.dtype).contiguous()
