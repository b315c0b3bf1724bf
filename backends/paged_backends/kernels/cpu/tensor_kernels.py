"""The kernels, called with tensors: the operations of a decoder on a CPU.

Tensors are float32 or bfloat16, on the CPU; arithmetic is in float32. The last dimension must be
contiguous; the row stride is free (a slice of a wider tensor). Types and shapes are checked only
where a mistake would otherwise go unnoticed: callers are few, calls are many.

The result of a row is bit-identical whatever the other rows and the number of threads are.

Shapes: T tokens, E hidden size, I inputs and O outputs of a weight, H query heads, K key/value
heads, D head_dim, F rotated pairs of a head, P positions; R rows of logits, V vocabulary.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from paged_backends.kernels.cpu import ProductsName
from paged_backends.kernels.cpu.bindings import Bindings
from paged_backends.kernels.cpu.compiler import products
from paged_backends.kernels.cpu.packed_weight import PANEL, PackedWeight, code_format, halved
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.quantize import in_threads

LINE = 64
"""Bytes of a processor's cache line."""
_PIECE = 1 << 25
"""Bytes mapped at a time; pages that are never written take no memory."""
_PACKED = 1 << 20
"""Quantised weights that a thread packs before it takes others."""
_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class Arena:
    """Allocates consecutive memory; a mapping lives as long as any tensor of it.

    A huge page replaces 512 small ones, and a processor's TLB holds a few thousand entries: weights
    that are read once per step would miss it on every page.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return ``count`` zeros that begin at a cache line."""
        size = -(-count * dtype.itemsize // LINE) * LINE
        if size > len(self._left):
            self._left = _mapped(max(size, _PIECE))
        taken, self._left = self._left[:size], self._left[size:]
        return taken.view(dtype)[:count]


def _mapped(size: int) -> Tensor:
    # private: a forked process has its own copy of what it writes
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a system built without them
            memory.madvise(advice)
    return torch.frombuffer(memory, dtype=torch.uint8)


@runtime_checkable
class UsesKernels(Protocol):
    """A runner that may compute with the kernels."""

    @property
    def kernels(self) -> Kernels | None:
        """The kernels in use; ``None``: none."""


class Kernels:
    """The kernels for one instruction set, and the number of threads that work on a call."""

    def __init__(
        self,
        bindings: Bindings,
        num_threads: int | None = None,
        quantized_products: ProductsName | None = None,
    ) -> None:
        """Take the kernels of a library.

        Args:
            num_threads: ``None`` takes the current number of torch.
            quantized_products: ``None`` takes the faster. ``widened`` needs tile registers. With
                float32 activations products are always in integers.
        """
        self.bindings = bindings
        self.quantized_products = quantized_products or products(bindings.instruction_set)
        self.num_threads = num_threads or torch.get_num_threads()
        self._arena = Arena()

    @classmethod
    def load(
        cls,
        instruction_set: str = "auto",
        num_threads: int | None = None,
        quantized_products: ProductsName | None = None,
    ) -> Self:
        """Load the kernels; if they are not in the cache they are compiled, which takes seconds.

        Args:
            instruction_set: ``auto``, or the name of one of ``instruction_set.SETS``.
            num_threads: as of the class; so is ``quantized_products``.

        Raises:
            CannotCompile: there is no compiler, or it fails.
            NoSuchInstructions: this processor lacks the instruction set that was named.
        """
        return cls(Bindings.load(instruction_set), num_threads, quantized_products)

    @property
    def instruction_set(self) -> str:
        """The name of the one in use."""
        return self.bindings.instruction_set

    # ------------------------------------------------------------------ linear layers

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> PackedWeight:
        """Pack ``weight`` [O, I], as ``torch.nn.Linear`` holds it, and ``bias`` [O].

        The copy takes as much memory as the weight, rounded up to 32 rows.

        Raises:
            TypeError: the weight is neither float32 nor bfloat16.
        """
        if weight.dtype not in _TYPES:
            raise TypeError(f"weights are packed as float32 or bfloat16, not {weight.dtype}")
        width, columns = weight.shape
        kind = _TYPES[weight.dtype]
        source = weight.detach().contiguous()
        data = self._arena.take(self.bindings.packed_size(kind, width, columns), weight.dtype)
        self.bindings.pack(
            kind, source.data_ptr(), data.data_ptr(), width, columns, self.num_threads
        )
        return PackedWeight(data, width, columns, _bias(bias))

    def pack_quantized(self, matrix: QuantizedMatrix, bias: Tensor | None = None) -> PackedWeight:
        """Pack codes, scales and offsets of a matrix, and ``bias`` [O].

        The copy takes as much memory as the codes, rounded up to 32 rows and whole groups, and 2
        bytes for every scale and every offset, which are rounded to float16.

        Raises:
            ValueError: a scale or an offset is not finite.
        """
        chosen = code_format(matrix, is_widened=self.quantized_products == "widened")
        width, columns = matrix.shape
        address = ctypes.addressof(chosen)
        size = self.bindings.packed_codes_size(address, width, columns)
        data = self._arena.take(size, torch.uint8)
        panel_bytes = size // -(-width // PANEL)

        def pack(first: int) -> None:
            rows = matrix.rows(slice(first, first + step))
            codes = rows.codes_OGY.contiguous()
            scales = halved(rows.scales_OG, chosen.factor)
            offsets = None if rows.offsets_OG is None else halved(rows.offsets_OG, chosen.factor)
            self.bindings.pack_codes(
                address,
                codes.data_ptr(),
                scales.data_ptr(),
                None if offsets is None else offsets.data_ptr(),
                data.data_ptr() + first // PANEL * panel_bytes,
                len(codes),
                columns,
                1,
            )

        step = max(1, _PACKED // (PANEL * columns)) * PANEL
        in_threads(pack, range(0, width, step))
        return PackedWeight(data, width, columns, _bias(bias), chosen)

    def linear(
        self,
        x: Tensor,
        weight: PackedWeight,
        residual: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return ``x`` [T, I] times the weight, plus its bias, plus ``residual`` [T, O].

        The weight is read once for every 96 rows: with few rows this runs at memory bandwidth. Bias
        and residual are added before the result is rounded. A quantised weight is multiplied as
        ``quantized_products`` says: in integers, each group of inputs of ``x`` is rounded to 8 bits
        (by 1/254 of its largest magnitude); widened, each weight is rounded to bfloat16.

        Args:
            residual: may be ``out`` itself, which is then added to; has the row stride of ``out``.
            out: [T, O]; ``None``: a new tensor.

        Raises:
            ValueError: ``x`` does not fit the weight, or residual and ``out`` differ in row stride.
        """
        rows, columns = x.shape
        codes = weight.codes
        dtype = weight.data.dtype if codes is None else x.dtype
        if columns != weight.columns or x.dtype is not dtype or x.stride(1) != 1:
            raise ValueError(
                f"x is {tuple(x.shape)} in {x.dtype}, with strides {x.stride()}; the weight takes "
                f"contiguous rows of {weight.columns} numbers in {dtype}"
            )
        if codes is None and columns % 2 and x.dtype is torch.bfloat16:
            x = torch.nn.functional.pad(x, (0, 1))  # the kernel takes them in pairs
        if out is None:
            out = x.new_empty(rows, weight.width)
        if residual is not None and residual.stride(0) != out.stride(0) and rows > 1:
            raise ValueError(
                f"the row stride of residual is {residual.stride(0)} and that of out "
                f"{out.stride(0)}; they must be equal"
            )
        bias = weight.bias
        arguments = (
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
        if codes is None:
            self.bindings.linear(_TYPES[x.dtype], *arguments)
        else:
            self.bindings.quantized_linear(_TYPES[x.dtype], ctypes.addressof(codes), *arguments)
        return out

    # ------------------------------------------------------------------ norms, rotary, activations

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """Return ``x`` [T, E] divided by its root mean square, times ``offset + weight`` [E].

        Args:
            offset: 1 for Gemma's weights.
        """
        return self._norm(0, x, weight, None, eps, offset)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Return ``x`` [T, E] less its mean, divided by its standard deviation, times ``weight``
        [E], plus ``bias`` [E]."""
        return self._norm(1, x, weight, bias, eps, 0.0)

    def _norm(
        self, kind: int, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float
    ) -> Tensor:
        rows, width = x.shape
        out = torch.empty_like(x)
        self.bindings.norm(
            _TYPES[x.dtype],
            kind,
            x.data_ptr(),
            x.stride(0),
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
        """Rotate the heads of ``query`` [T, H, D] and ``key`` [T, K, D] in place.

        Dimension i is paired with i + F. The token stride is free; heads of a token are contiguous.

        Args:
            cos: [P, F] float32, contiguous; dimensions of a head from 2 * F on are unchanged.
            sin: as ``cos``.
            positions: [T] int64, each less than P.
            query_norm: [D]: every head is first divided by its root mean square and multiplied by
                ``offset + query_norm``.
            key_norm: as ``query_norm``.
        """
        rows, heads, dim = query.shape
        self.bindings.rope(
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

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return ``silu(gate) * up`` [T, O] of ``gate_up`` [T, 2 * O], gates first."""
        return self._gate(0, gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """Return the same with the tanh approximation of GELU."""
        return self._gate(1, gate_up)

    def _gate(self, kind: int, gate_up: Tensor) -> Tensor:
        rows, both = gate_up.shape
        out = gate_up.new_empty(rows, both // 2)
        self.bindings.gate(
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
        """Return [R] int64: the first index of the largest value of each row of ``logits`` [R, V].

        As in torch, NaN counts as the largest.
        """
        rows, width = logits.shape
        places = torch.empty(rows, dtype=torch.int64)
        self.bindings.argmax(
            _TYPES[logits.dtype],
            logits.data_ptr(),
            logits.stride(0),
            rows,
            width,
            places.data_ptr(),
            self.num_threads,
        )
        return places

    def sample(self, logits: Tensor, choices: Tensor) -> Tensor:
        """Return [R] int64: a token sampled from each row of ``logits`` [R, V].

        Filters are applied in vLLM's order: temperature, min_p, top_k, top_p; of equal logits the
        lower id ranks first. The token is found by inverting the cumulative distribution of what is
        left, best first. It depends on its row alone.

        Args:
            logits: float32 or bfloat16, of finite maximum; minus infinity excludes a token.
            choices: [R, 5] float64, contiguous: temperature, min_p, top_k (0: all), top_p, and a
                uniform random number in [0, 1).
        """
        rows, width = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        self.bindings.draw(
            _TYPES[logits.dtype],
            logits.data_ptr(),
            logits.stride(0),
            rows,
            width,
            choices.data_ptr(),
            tokens.data_ptr(),
            self.num_threads,
        )
        return tokens


def _bias(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().float().contiguous()
