"""A model in sessions: from tokens to hidden states with attention between them, and the head.

Shapes: T tokens, R rows that sample a token, V vocabulary.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paged_backends.runners.onnx.sessions import Binding, Session, SessionMaker, Value
from paged_core.interfaces.layer import LayerSpec

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_KEPT_SIZES = 8
"""Numbers of tokens whose bindings are kept."""
_TILE = 128
"""Rows that a product with quantised weights computes at once. One alone, or left over, goes
through another kernel, which adds in another order."""

SetInputs = Callable[[Mapping[str, Tensor], Tensor, Tensor], None]
"""Called with buffers by their names, tokens [T] and positions [T]: writes the inputs of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCut:
    """One attention between two sessions: the names of what it reads and returns."""

    query: str
    key: str
    value: str
    attended: str


@dataclass(frozen=True, slots=True)
class _Step:
    """Bindings for one number of tokens."""

    buffers: Mapping[str, Tensor]
    bindings: Sequence[Binding]


class SegmentedModel:
    """Runs a model whose ``n`` attentions lie between ``n + 1`` sessions.

    Values that cross are found by their names. Each has a buffer, which steps of all sizes share;
    so do values of one name, and values that are never there at once.
    """

    def __init__(
        self,
        maker: SessionMaker,
        sessions: Sequence[Session],
        cuts: Sequence[AttentionCut],
        layers: Sequence[LayerSpec],
        head: Session,
        set_inputs: SetInputs,
        *,
        hidden: str,
        device: torch.device,
        deterministic: bool,
    ) -> None:
        """
        Args:
            head: has one input, hidden states, and one output, logits.
            hidden: the output of the last session.
            deterministic: results do not depend, bit for bit, on the rest of the batch.
        """
        self._maker = maker
        self._sessions = sessions
        self._cuts = cuts
        self._layers = layers
        self._head = head
        self._set_inputs = set_inputs
        self._hidden = hidden
        self._device = device
        self._deterministic = deterministic
        attended = {cut.attended for cut in cuts}
        self._values: dict[str, Value] = {}
        for session in sessions:
            for name, value in (*session.inputs.items(), *session.outputs.items()):
                if name not in attended and name != hidden:
                    self._values.setdefault(name, value)
        self._places = plan_memory(sessions, self._values.keys())
        self._most_tokens = 0
        self._memory: dict[str, Tensor] = {}
        self._steps: OrderedDict[int, _Step] = OrderedDict()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        num_tokens = len(tokens)
        if self._needs_spare_row(num_tokens):
            tokens, positions = _with_spare_row(tokens), _with_spare_row(positions)
            attend = _attend_without(attend, num_tokens)
        count = len(tokens)
        value = self._sessions[-1].outputs[self._hidden]
        hidden = torch.empty(value.shape_at(count), dtype=value.dtype, device=self._device)
        with self._maker.running():
            step = self._step(count)
            self._set_inputs(step.buffers, tokens, positions)
            step.bindings[-1].bind(self._hidden, hidden)
            step.bindings[0].run()
            for layer, cut in enumerate(self._cuts):
                attended = self._attend(attend, layer, cut, step.buffers, count)
                binding = step.bindings[layer + 1]
                binding.bind(cut.attended, attended)
                binding.run()
        return hidden.view(count, -1)[:num_tokens]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] float32 of rows of :meth:`forward`."""
        ((read, rows_value),) = self._head.inputs.items()
        ((returned, logits_value),) = self._head.outputs.items()
        spare = self._needs_spare_row(len(hidden))
        rows = _with_spare_row(hidden) if spare else hidden.contiguous()
        count = len(rows)
        rows = rows.view(rows_value.shape_at(count))
        logits = rows.new_empty(logits_value.shape_at(count), dtype=logits_value.dtype)
        with self._maker.running():
            binding = Binding(self._head)
            binding.bind(read, rows)
            binding.bind(returned, logits)
            binding.run()
        return logits.view(count, -1)[: len(hidden)].float()

    def _needs_spare_row(self, num_rows: int) -> bool:
        """Whether the last of so many rows would be in no tile."""
        return self._deterministic and num_rows % _TILE == 1

    def _attend(
        self,
        attend: Attend,
        layer: int,
        cut: AttentionCut,
        buffers: Mapping[str, Tensor],
        num_tokens: int,
    ) -> Tensor:
        """Return the result of attention in the shape that the next session reads."""
        spec = self._layers[layer]
        query_THD, key_TKD, value_TKD = (
            buffers[name].view(num_tokens, -1, spec.head_dim)
            for name in (cut.query, cut.key, cut.value)
        )
        attended_THD = attend(layer, query_THD, key_TKD, value_TKD)
        shape = self._sessions[layer + 1].inputs[cut.attended].shape_at(num_tokens)
        return attended_THD.reshape(shape).contiguous()

    # ------------------------------------------------------------------ bindings

    def _step(self, num_tokens: int) -> _Step:
        """Return buffers and bindings; those of the last few sizes are kept."""
        if num_tokens > self._most_tokens:
            self._grow(num_tokens)
        step = self._steps.get(num_tokens)
        if step is None:
            step = self._steps[num_tokens] = self._bound(num_tokens)
            if len(self._steps) > _KEPT_SIZES:
                self._steps.popitem(last=False)
        else:
            self._steps.move_to_end(num_tokens)
        return step

    def _grow(self, num_tokens: int) -> None:
        self._steps.clear()
        self._memory.clear()  # before there is more
        self._memory = {
            name: torch.empty(
                prod(value.shape_at(num_tokens)), dtype=value.dtype, device=self._device
            )
            for name, value in self._values.items()
            if self._places[name] == name
        }
        self._most_tokens = num_tokens

    def _bound(self, num_tokens: int) -> _Step:
        buffers = {}
        for name, value in self._values.items():
            shape = value.shape_at(num_tokens)
            buffers[name] = self._memory[self._places[name]][: prod(shape)].view(shape)
        bindings = []
        for session in self._sessions:
            binding = Binding(session)
            for name in (*session.inputs, *session.outputs):
                if name in buffers:
                    binding.bind(name, buffers[name])
            bindings.append(binding)
        return _Step(buffers, bindings)


def plan_memory(sessions: Sequence[Session], names: Collection[str]) -> dict[str, str]:
    """Return for each value the name of the value whose memory it takes; often its own.

    A value is there from the session that returns it, and past the attention that follows, to the
    last one that reads it. One that comes from outside has its own memory.
    """
    values: dict[str, Value] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    given: set[str] = set()
    for index, session in enumerate(sessions):
        given |= session.inputs.keys() - first.keys()
        for name in session.outputs:
            first.setdefault(name, index)
        for name, value in (*session.inputs.items(), *session.outputs.items()):
            values[name], last[name] = value, index
    places = {name: name for name in names}
    free: dict[Value, list[str]] = defaultdict(list)
    taken: list[str] = []
    for index in range(len(sessions)):
        for name in [name for name in taken if last[name] < index]:
            taken.remove(name)
            free[values[name]].append(places[name])
        for name in [name for name in names if first.get(name) == index and name not in given]:
            if free[values[name]]:
                places[name] = free[values[name]].pop()
            taken.append(name)
    return places


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
