"""A trial of a row as long as the longest step, or a threshold of the model, in seconds.

A row of many copies of a few short sequences, and tokens of long ones at its ends, must give each
copy the queries, keys and values that it has in a short row of another order. A model that scales
them by their place in the row, by its length, or by a neighbour, does not.

Linear layers, which take nearly all of the time, are computed for one copy where their inputs are
equal; and of layers of one kind, only the first.

Shapes: T tokens in the row, P tokens in a copy, C copies.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from paged_core.errors import UnsupportedModel
from paged_core.interfaces.runner import Runner
from paged_core.log import get_logger

_LENGTHS = (5, 1, 3, 2)
"""Lengths of the sequences in a copy."""
_COPY = sum(_LENGTHS)
_PARTS = ("queries", "keys", "values")
_LONGEST = 16384
"""Tokens; no longer row is tried."""
_SIZES = re.compile(
    r"(hidden|intermediate|vocab|moe|ffn|embed|d_model|n_embd|n_inner).*"
    r"|.*(dim|heads|layers|experts|rank|theta|_ids?)"
)
"""Numbers of a configuration that count no tokens."""
_log = get_logger()
_TOLERANCE, _LOW_PRECISION_TOLERANCE = 2e-3, 0.05


def try_long_row(
    runner: Runner, model: Any, modules: Sequence[nn.Module], longest_step: int | None
) -> None:
    """Compare a long row with a short one.

    Args:
        modules: the attention modules, one for each layer of ``runner``.
        longest_step: tokens of a step, at most; ``None``: any number.

    Raises:
        UnsupportedModel: what a sequence gives depends on the row that it is in.
    """
    counts = list(_counts(model.config.to_dict()))
    most = longest_step or inf
    not_tried = {key: count for key, count in counts if _LONGEST < count < most}
    if not_tried:
        _log.warning(
            "steps_longer_than_trial",
            step_tokens=longest_step,
            tried_tokens=_LONGEST,
            not_tried=not_tried,
            remedy=f"set scheduler.max_num_batched_tokens to {_LONGEST} or fewer",
        )
    thresholds = (count for _, count in counts if count <= _LONGEST)
    longest = int(max(*thresholds, min(most, _LONGEST)))
    copies, calls = longest // _COPY + 2, _calls_to_compare(modules)
    low = runner.layers[0].dtype != "float32"
    expected: list[list[Tensor]] = []

    def compare(layer: int, parts: list[Tensor]) -> None:
        for what, found, wanted in zip(_PARTS, parts, expected[layer], strict=True):
            error = _difference(found, wanted, low=low)
            if not error < (_LOW_PRECISION_TOLERANCE if low else _TOLERANCE):
                raise UnsupportedModel(
                    f"{model.config.model_type} cannot be served: in a row of {longest} tokens the "
                    f"{what} of layer {layer} differ by {error:.1%} from those of the same tokens "
                    "in a short row, so they depend on the other sequences of a batch"
                )

    with torch.inference_mode():
        _run(runner, model, 1, calls, lambda _, parts: expected.append(parts))
        with _OneCopy(copies):
            _run(runner, model, copies, calls, compare)


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the numbers of a configuration that may count tokens."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif type(value) not in (int, float) or _SIZES.fullmatch(str(key)):
            continue
        elif 0 < value < inf:
            yield str(key), int(value)


def _calls_to_compare(modules: Sequence[nn.Module]) -> int:
    """Return how many layers have one of each kind among them, and the next one, if any."""
    kinds: dict[object, int] = {}
    for index, module in enumerate(modules):
        scalars = {
            name: value
            for name, value in vars(module).items()
            if type(value) in (bool, int, float, str) and not name.endswith(("idx", "id", "index"))
        }
        kinds.setdefault((type(module), repr(scalars)), index)
    return min(max(kinds.values()) + 2, len(modules))


class _Enough(Exception):
    """Ends a forward pass of which the rest is not needed."""


def _run(
    runner: Runner,
    model: Any,
    copies: int,
    calls: int,
    visit: Callable[[int, list[Tensor]], None],
) -> None:
    """Show ``visit`` queries, keys and values [C, P, .] float32 of the first ``calls`` layers.

    In place of attention, each token gets the values of its own.
    """
    is_long, most = copies > 1, runner.max_model_len or _LONGEST
    limit = min(model.get_input_embeddings().num_embeddings, 1000)
    tokens = torch.randint(limit, (_COPY + 2,), generator=torch.Generator().manual_seed(1))
    sequences = torch.split_with_sizes(torch.arange(_COPY), _LENGTHS)
    order = torch.cat(sequences[::-1] if is_long else sequences)
    positions = torch.cat([torch.arange(count) for count in _LENGTHS])[order].repeat(copies)
    first, last = tokens[_COPY:-1], tokens[-1:]
    ends = torch.tensor([[most - 1], [most - 2]] if is_long else [[0], [0]])
    row = torch.cat([first, tokens[order].repeat(copies), last]).to(model.device)
    places = torch.cat([ends[0], positions, ends[1]]).clamp(0, most - 1).to(model.device)
    back = order.argsort().to(model.device)

    def attend(layer: int, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor) -> Tensor:
        parts = (part[1:-1].reshape(copies, _COPY, -1) for part in (query_THD, key_TKD, value_TKD))
        visit(layer, [part[:, back].float() for part in parts])
        if layer + 1 == calls:
            raise _Enough
        return value_TKD.repeat_interleave(query_THD.shape[1] // value_TKD.shape[1], 1)

    with suppress(_Enough):
        runner.forward(row, places, attend)


class _OneCopy(TorchFunctionMode):
    """Computes a linear layer once for copies whose inputs are equal."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self._copies = copies

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is functional.linear and args and args[0].ndim > 1:
            inputs, *others = args
            rows, inner = inputs.flatten(0, -2), self._copies * _COPY
            if len(rows) == inner + 2:
                part_CPI = rows[1:-1].view(self._copies, _COPY, -1)
                if bool((part_CPI == part_CPI[:1]).all()):
                    few = torch.cat([rows[: 1 + _COPY], rows[-1:]])
                    made = func(few, *others, **options)
                    copied = made[1:-1].repeat(self._copies, 1)
                    return torch.cat([made[:1], copied, made[-1:]]).view(*inputs.shape[:-1], -1)
        return func(*args, **options)


def _difference(found_CP: Tensor, wanted_1P: Tensor, *, low: bool) -> float:
    """Largest relative difference of a token; in low precision, of a sequence's median token."""
    errors_CP = (found_CP - wanted_1P).norm(dim=-1) / (wanted_1P.norm(dim=-1) + 1e-6)
    if low:
        errors_CP = torch.stack([part.median(1).values for part in errors_CP.split(_LENGTHS, 1)])
    return float(errors_CP.max())
