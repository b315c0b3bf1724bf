"""Operations of a decoder on a CPU, by our own kernels: what a model runner calls.

Everything is float32 or bfloat16, on the CPU, and computed in float32. A function takes tensors as
they come: the last dimension must be contiguous, rows may lie apart (a slice of a wider tensor). It
checks types and shapes only where a mistake would not show as one: callers are few, calls are many.

A row's bits do not depend on the other rows, nor on the number of threads.

Shapes: R rows (tokens), K and N columns of a weight, H heads, D dimensions of a head, P positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from paged_backends.kernels.cpu.library import Library
from paged_backends.kernels.cpu.memory import Arena

_TYPES = {torch.float32: 0, torch.bfloat16: 1}


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in the order in which the kernels read it, and its bias."""

    data: Tensor
    width: int
    """N: numbers of a row of the result."""
    columns: int
    """K: numbers of a row of the argument."""
    bias: Tensor | None
    """[N] float32."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight, of the argument and of the result."""
        return self.data.dtype


@runtime_checkable
class UsesKernels(Protocol):
    """A model that computes with the kernels, or could."""

    @property
    def kernels(self) -> Kernels | None:
        """Those that it computes with."""


class Kernels:
    """The kernels for one instruction set, and the number of threads that work on a call."""

    def __init__(self, library: Library, num_threads: int | None = None) -> None:
        """``num_threads``: ``None`` takes torch's present number."""
        self.library = library
        self.num_threads = num_threads or torch.get_num_threads()
        self._arena = Arena()

    @classmethod
    def load(cls, instruction_set: str = "auto", num_threads: int | None = None) -> Self:
        """Load the kernels, compiled first where they are not: that takes seconds.

        Args:
            instruction_set: ``auto``, or a name of ``instruction_set.SETS``.

        Raises:
            CannotCompile: there is no compiler, or it fails.
            NoSuchInstructions: this processor lacks the instruction set that was named.
        """
        return cls(Library.load(instruction_set), num_threads)

    @property
    def instruction_set(self) -> str:
        """The name of the one in use."""
        return self.library.instruction_set

    # ------------------------------------------------------------------ products

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> PackedWeight:
        """Pack ``weight`` [N, K], as ``torch.nn.Linear`` holds it, and ``bias`` [N].

        The copy takes as much memory as the weight, rounded up to 32 rows.

        Raises:
            TypeError: the weight is neither float32 nor bfloat16.
        """
        if weight.dtype not in _TYPES:
            raise TypeError(f"weights are packed as float32 or bfloat16, not {weight.dtype}")
        width, columns = weight.shape
        kind = _TYPES[weight.dtype]
        source = weight.detach().contiguous()
        data = self._arena.take(self.library.packed_size(kind, width, columns), weight.dtype)
        self.library.pack(
            kind, source.data_ptr(), data.data_ptr(), width, columns, self.num_threads
        )
        return PackedWeight(
            data, width, columns, None if bias is None else bias.detach().float().contiguous()
        )

    def linear(
        self,
        x: Tensor,
        weight: PackedWeight,
        residual: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return ``x`` [R, K] times the weight, plus its bias, plus ``residual`` [R, N].

        The weight is read once for every 96 rows: the fewer rows there are, the closer this comes
        to the rate at which memory can be read. Bias and residual are added before the result is
        rounded.

        Args:
            residual: may be ``out`` itself, which then is added to; its rows lie as those of
                ``out`` do.
            out: [R, N]; ``None``: a new tensor.

        Raises:
            ValueError: ``x`` does not fit the weight, or residual and ``out`` lie differently.
        """
        rows, columns = x.shape
        if columns != weight.columns or x.dtype is not weight.dtype or x.stride(1) != 1:
            raise ValueError(
                f"x is {tuple(x.shape)} in {x.dtype}, with strides {x.stride()}; the weight takes "
                f"rows of {weight.columns} numbers in {weight.dtype}, one after another"
            )
        if columns % 2 and weight.dtype is torch.bfloat16:
            x = torch.nn.functional.pad(x, (0, 1))  # the kernel takes them in pairs
        if out is None:
            out = x.new_empty(rows, weight.width)
        if residual is not None and residual.stride(0) != out.stride(0) and rows > 1:
            raise ValueError(
                f"rows of residual lie {residual.stride(0)} numbers apart and those of out "
                f"{out.stride(0)}; they must lie alike"
            )
        bias = weight.bias
        self.library.linear(
            _TYPES[x.dtype],
            x.data_ptr(),
            x.stride(0),
            weight.data.data_ptr(),
            None if bias is None else bias.data_ptr(),
            None if residual is None else residual.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            rows,
            weight.width,
            weight.columns,
            self.num_threads,
        )
        return out

    # ------------------------------------------------------------------ between products

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        residual: Tensor | None = None,
        offset: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return ``x`` [R, K] divided by its root mean square, times ``offset + weight`` [K].

        Args:
            residual: [R, K]; becomes ``residual + x``, and that is what is normalised.
            offset: 1 for Gemma's weights.
            out: [R, K], may be ``x``; ``None``: a new tensor.
        """
        return self._norm(0, x, weight, None, eps, residual, offset, out)

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        residual: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return ``x`` [R, K] less its mean, divided by its standard deviation, times ``weight``
        [K], plus ``bias`` [K].

        Args:
            residual: [R, K]; becomes ``residual + x``, and that is what is normalised.
            out: [R, K], may be ``x``; ``None``: a new tensor.
        """
        return self._norm(1, x, weight, bias, eps, residual, 0.0, out)

    def _norm(
        self,
        kind: int,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        residual: Tensor | None,
        offset: float,
        out: Tensor | None,
    ) -> Tensor:
        rows, width = x.shape
        if out is None:
            out = torch.empty_like(x)
        self.library.norm(
            _TYPES[x.dtype],
            kind,
            x.data_ptr(),
            x.stride(0),
            None if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            rows,
            width,
            eps,
            offset,
            self.num_threads,
        )
        return out

    def rope(
        self,
        query: Tensor,
        key: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        query_norm: Tensor | None = None,
        key_norm: Tensor | None = None,
        eps: float = 1e-6,
        offset: float = 0.0,
    ) -> None:
        """Rotate the heads of ``query`` [R, H, D] and ``key`` [R, Hkv, D] in place.

        Dimension i is paired with i + half. Rows may lie apart, heads of a row may not.

        Args:
            cos: [P, half] float32, contiguous; 2 * half is D, or less: then the rest of a head
                stays as it is.
            sin: as ``cos``.
            positions: [R] int64, each less than P.
            query_norm: [D]: every head is normalised by its root mean square first, and multiplied
                by ``offset + query_norm``.
            key_norm: as ``query_norm``.
        """
        rows, heads, dim = query.shape
        self.library.rope(
            _TYPES[query.dtype],
            query.data_ptr(),
            query.stride(0),
            key.data_ptr(),
            key.stride(0),
            None if query_norm is None else query_norm.data_ptr(),
            None if key_norm is None else key_norm.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            positions.data_ptr(),
            rows,
            heads,
            key.shape[1],
            dim,
            cos.shape[1],
            eps,
            offset,
            self.num_threads,
        )

    def silu_mul(self, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        """Return ``silu(gate) * up`` [R, N] of ``gate_up`` [R, 2 N], gates first."""
        return self._gate(0, gate_up, out)

    def gelu_mul(self, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        """The same with GELU in its approximation by tanh."""
        return self._gate(1, gate_up, out)

    def _gate(self, kind: int, gate_up: Tensor, out: Tensor | None) -> Tensor:
        rows, both = gate_up.shape
        if out is None:
            out = gate_up.new_empty(rows, both // 2)
        self.library.gate(
            _TYPES[gate_up.dtype],
            kind,
            gate_up.data_ptr(),
            gate_up.stride(0),
            out.data_ptr(),
            out.stride(0),
            rows,
            both // 2,
            self.num_threads,
        )
        return out

    # ------------------------------------------------------------------ sampling

    def argmax(self, logits: Tensor) -> Tensor:
        """Return [R] int64: the first place of the largest of each row of ``logits`` [R, N].

        As with torch, what is no number is larger than any.
        """
        rows, width = logits.shape
        places = torch.empty(rows, dtype=torch.int64)
        self.library.argmax(
            _TYPES[logits.dtype],
            logits.data_ptr(),
            logits.stride(0),
            rows,
            width,
            places.data_ptr(),
            self.num_threads,
        )
        return places

    def draw(self, logits: Tensor, choices: Tensor) -> Tensor:
        """Return [R] int64: a token drawn by chance from each row of ``logits`` [R, N] float32.

        Filters come in vLLM's order: temperature, min_p, top_k, top_p; of equal logits the lower id
        is the better one. What is left is searched, best first, for where a share of its weight is
        reached. A row's token depends on that row alone.

        Args:
            logits: of finite maximum; minus infinity rules a token out.
            choices: [R, 5] float64, contiguous: temperature, min_p, top_k (0: all), top_p, and the
                share in [0, 1), by chance.
        """
        rows, width = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        self.library.draw(
            logits.data_ptr(),
            logits.stride(0),
            rows,
            width,
            choices.data_ptr(),
            tokens.data_ptr(),
            self.num_threads,
        )
        return tokens
