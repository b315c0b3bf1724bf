"""A session of ONNX Runtime: one graph that can be run, and what it reads and returns."""

from __future__ import annotations

from dataclasses import dataclass

import onnxruntime
import torch

DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(bfloat16)": torch.bfloat16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(bool)": torch.bool,
}
"""What sessions call the dtypes of their inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a session."""

    dtype: torch.dtype
    shape: tuple[int | str | None, ...]
    """The dimension that counts tokens has a name, or none; the others have numbers."""

    def shape_at(self, num_tokens: int) -> tuple[int, ...]:
        """Return its shape in a step of so many tokens."""
        return tuple(size if isinstance(size, int) else num_tokens for size in self.shape)


class Session:
    """A graph that can be run."""

    def __init__(self, session: onnxruntime.InferenceSession, kept: object = ()) -> None:
        """
        Args:
            kept: what holds weights that it reads where they are; it lives as long.
        """
        self.ort = session
        self._kept = kept
        self.inputs = {value.name: _value(value) for value in session.get_inputs()}
        self.outputs = {value.name: _value(value) for value in session.get_outputs()}


def _value(value: onnxruntime.NodeArg) -> Value:
    return Value(DTYPES[value.type], tuple(value.shape))
