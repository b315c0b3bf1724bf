"""A model in sessions: a chain of them from tokens to hidden states, and the head.

Shapes: T tokens, R rows that draw a token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from paged_backends.runners.onnx.binding import Binding
from paged_backends.runners.onnx.segment_chain import SegmentChain
from paged_backends.runners.onnx.session import Session
from paged_backends.runners.onnx.session_maker import SessionMaker
from paged_backends.runners.onnx.spare_row import attend_without, is_left_over, with_spare_row

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

SetInputs = Callable[[Mapping[str, Tensor], Tensor, Tensor], None]
"""Called with buffers by their names, tokens [T] and positions [T]: writes the inputs of a step."""


class SegmentedModel:
    """Runs a model whose sessions are made."""

    def __init__(
        self,
        maker: SessionMaker,
        chain: SegmentChain,
        head: Session,
        set_inputs: SetInputs,
        *,
        deterministic: bool,
    ) -> None:
        """
        Args:
            head: a session with one input, hidden states, and one output, logits.
            deterministic: results do not depend, bit for bit, on the rest of the batch.
        """
        self._maker = maker
        self._chain = chain
        self._head = head
        ((self._hidden, _),) = head.inputs.items()
        ((self._logits, _),) = head.outputs.items()
        self._set_inputs = set_inputs
        self._deterministic = deterministic

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        num_tokens = len(tokens)
        if self._deterministic and is_left_over(num_tokens):
            tokens, positions = with_spare_row(tokens), with_spare_row(positions)
            attend = attend_without(attend, num_tokens)
        output = self._chain.new_output(len(tokens))
        with self._maker.running():
            self._set_inputs(self._chain.buffers(len(tokens)), tokens, positions)
            self._chain.run(len(tokens), attend, output)
        return output.view(len(tokens), -1)[:num_tokens]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [R, V] float32 of rows of :meth:`forward`."""
        spare = self._deterministic and is_left_over(len(hidden))
        rows = with_spare_row(hidden) if spare else hidden.contiguous()
        rows = rows.view(self._head.inputs[self._hidden].shape_at(len(rows)))
        value = self._head.outputs[self._logits]
        num_rows = len(hidden) + spare
        logits = rows.new_empty(value.shape_at(num_rows), dtype=value.dtype)
        with self._maker.running():
            binding = Binding(self._head)
            binding.bind(self._hidden, rows)
            binding.bind(self._logits, logits)
            binding.run()
        return logits.view(num_rows, -1)[: len(hidden)].float()
