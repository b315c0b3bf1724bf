"""Sessions that run one after the other, with attention between them.

Shapes: T tokens.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paged_backends.runners.onnx.binding import Binding
from paged_backends.runners.onnx.memory_plan import plan_memory
from paged_backends.runners.onnx.session import Session, Value
from paged_core.interfaces.layer import LayerSpec

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_KEPT_SIZES = 8
"""Numbers of tokens whose bindings are kept."""


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


class SegmentChain:
    """Runs a model whose ``n`` attentions lie between ``n + 1`` sessions.

    Values that cross are found by their names. Each has a buffer, which steps of all sizes share;
    so do values of one name, and values that are never there at once.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        cuts: Sequence[AttentionCut],
        layers: Sequence[LayerSpec],
        *,
        output: str,
        device: torch.device,
    ) -> None:
        """``output``: of the last session, which is returned."""
        self._sessions = sessions
        self._cuts = cuts
        self._layers = layers
        self._output = output
        self._device = device
        attended = {cut.attended for cut in cuts}
        self._values: dict[str, Value] = {}
        for session in sessions:
            for name, value in (*session.inputs.items(), *session.outputs.items()):
                if name not in attended and name != output:
                    self._values.setdefault(name, value)
        self._places = plan_memory(sessions, self._values.keys())
        self._most_tokens = 0
        self._memory: dict[str, Tensor] = {}
        self._steps: OrderedDict[int, _Step] = OrderedDict()

    def buffers(self, num_tokens: int) -> Mapping[str, Tensor]:
        """Return the values that cross in a step of so many tokens, for its inputs to be set."""
        return self._step(num_tokens).buffers

    def new_output(self, num_tokens: int) -> Tensor:
        """Return memory for the output of :meth:`run`."""
        value = self._sessions[-1].outputs[self._output]
        return torch.empty(value.shape_at(num_tokens), dtype=value.dtype, device=self._device)

    def run(self, num_tokens: int, attend: Attend, output: Tensor) -> None:
        """Compute ``output``; the inputs are in :meth:`buffers`."""
        step = self._step(num_tokens)
        step.bindings[-1].bind(self._output, output)
        step.bindings[0].run()
        for layer, cut in enumerate(self._cuts):
            attended = self._attend(attend, layer, cut, step.buffers, num_tokens)
            binding = step.bindings[layer + 1]
            binding.bind(cut.attended, attended)
            binding.run()

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
