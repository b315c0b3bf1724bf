"""A model in sessions: from tokens to hidden states with attention between them, and the head.

Shapes: T tokens, R rows that sample a token, V vocabulary.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paged_backends.runners.onnx.sessions import Session, SessionMaker, Value
from paged_core.interfaces.layer import LayerSpec

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_TILE = 128
"""Rows that a product with quantised weights computes at once. One alone, or left over, goes
through another kernel, which adds in another order."""

Inputs = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""Called with tokens [T] and positions [T]: returns what sessions read of a step, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCut:
    """One attention between two sessions: the names of what it reads and returns."""

    query: str
    key: str
    value: str
    attended: str


@dataclass(slots=True, kw_only=True)
class SegmentedModel:
    """Runs a model whose ``n`` attentions lie between ``n + 1`` sessions.

    Values that cross are found by their names.
    """

    maker: SessionMaker
    sessions: Sequence[Session]
    cuts: Sequence[AttentionCut]
    layers: Sequence[LayerSpec]
    head: Session
    """It has one input, hidden states, and one output, logits."""
    inputs: Inputs
    hidden: str
    """The output of the last session."""
    device: torch.device
    deterministic: bool
    """Results do not depend, bit for bit, on the rest of the batch."""
    _later: list[frozenset[str]] = field(default_factory=list)
    """What is read behind each session: by the attention there, and by later sessions."""

    def __post_init__(self) -> None:
        later: set[str] = set()
        for index, session in reversed([*enumerate(self.sessions)]):
            for cut in self.cuts[index : index + 1]:
                later |= {cut.query, cut.key, cut.value}
            self._later.insert(0, frozenset(later))
            later |= session.inputs.keys()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        num_tokens = len(tokens)
        if self._needs_spare_row(num_tokens):
            tokens, positions = _with_spare_row(tokens), _with_spare_row(positions)
            attend = _attend_without(attend, num_tokens)
        count = len(tokens)
        hidden = self._new(self.sessions[-1].outputs[self.hidden], count)
        with self.maker.running():
            values = dict(self.inputs(tokens, positions))
            for index, session in enumerate(self.sessions):
                if index:
                    values |= self._attended(attend, index - 1, values, count)
                returned = {
                    name: hidden if name == self.hidden else self._new(value, count)
                    for name, value in session.outputs.items()
                }
                session.run({name: values[name] for name in session.inputs} | returned)
                values |= returned
                values = {name: values[name] for name in values.keys() & self._later[index]}
        return hidden.view(count, -1)[:num_tokens]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] float32 of rows of :meth:`forward`."""
        ((read, rows_value),) = self.head.inputs.items()
        ((returned, logits_value),) = self.head.outputs.items()
        rows = _with_spare_row(hidden) if self._needs_spare_row(len(hidden)) else hidden
        count = len(rows)
        rows = rows.contiguous().view(rows_value.shape_at(count))
        logits = self._new(logits_value, count)
        with self.maker.running():
            self.head.run({read: rows, returned: logits})
        return logits.view(count, -1)[: len(hidden)].float()

    def _new(self, value: Value, num_rows: int) -> Tensor:
        return torch.empty(value.shape_at(num_rows), dtype=value.dtype, device=self.device)

    def _needs_spare_row(self, num_rows: int) -> bool:
        """Whether the last of so many rows would be in no tile."""
        return self.deterministic and num_rows % _TILE == 1

    def _attended(
        self, attend: Attend, index: int, values: Mapping[str, Tensor], num_tokens: int
    ) -> dict[str, Tensor]:
        """Return the result of an attention, in the shape that the session behind it reads."""
        cut, width = self.cuts[index], self.layers[index].head_dim
        query_THD, key_TKD, value_TKD = (
            values[name].view(num_tokens, -1, width) for name in (cut.query, cut.key, cut.value)
        )
        attended_THD = attend(index, query_THD, key_TKD, value_TKD)
        shape = self.sessions[index + 1].inputs[cut.attended].shape_at(num_tokens)
        return {cut.attended: attended_THD.reshape(shape).contiguous()}


def _with_spare_row(rows: Tensor) -> Tensor:
    """Return the rows, and the last one again."""
    return torch.cat([rows, rows[-1:]])


def _attend_without(attend: Attend, num_tokens: int) -> Attend:
    """Return an ``attend`` for one token more, which ``attend`` does not see."""

    def attend_to(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _with_spare_row(
            attend(layer, query[:num_tokens], key[:num_tokens], value[:num_tokens])
        )

    return attend_to
