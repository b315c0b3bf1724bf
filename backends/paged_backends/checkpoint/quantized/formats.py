"""Formats of quantised matrices in safetensors: GPTQ's, AWQ's and that of compressed-tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.quantized.stored_module import (
    PackedCodes,
    StoredModule,
    contradiction,
    covering,
    in_bytes,
    matches,
    unit_of,
    unpacked_rows,
)
from paged_backends.checkpoint.tensor_files import Part
from paged_backends.quantization.matrix import QuantizedMatrix, in_pairs
from paged_backends.quantization.weight_format import Shape
from paged_core.errors import CheckpointError
from paged_core.log import get_logger

_NOTES = (
    *("quant_method", "backend", "meta", "lm_head", "sym", "modules_to_not_convert", "batch_size"),
    *("block_name_to_quantize", "module_name_preceding_first_block"),
    *("modules_in_block_to_quantize", "exllama_config", "dataset", "true_sequential"),
    # of AutoRound, which exports to both formats
    *("provider", "autoround_version", "amp", "iters", "lr", "minmax_lr", "seqlen", "train_bs"),
    *("nsamples", "n_samples", "scale_dtype", "low_gpu_mem_usage", "gradient_accumulate_steps"),
    *("enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input"),
    *("quant_block_list", "to_quant_block_names", "supported_types"),
    *("act_data_type", "act_dynamic", "act_group_size", "act_sym"),
    *("static_attention_granularity", "static_kv_granularity"),
)
"""Fields of both methods that say how a model was quantised, or which of its modules were, as its
tensors do; the tools' own sources have no other effect for them."""
_NOTES_OF_GPTQ = (
    *("act_group_aware", "cache_block_outputs", "damp_auto_increment", "damp_percent"),
    *("disable_exllama", "hyb_act", "max_input_length", "model_file_base_name"),
    *("model_name_or_path", "model_seqlen", "mse", "pad_token_id", "static_groups", "tokenizer"),
    *("use_cuda_fp16", "use_exllama"),
)
_NOTES_OF_AWQ = ("desc_act", "do_fuse", "fuse_max_seq_len", "modules_to_fuse")


def check_types(fields: ConfigFields) -> None:
    """Check the fields of both methods that libraries compute with, whichever runner reads them.

    Raises:
        CheckpointError: one is of another type.
    """
    for name in ("bits", "group_size"):
        fields.integer(name, 1, least=-1)
    for name in ("desc_act", "sym", "zero_point"):
        fields.flag(name, False)


def _check_plain(fields: ConfigFields) -> None:
    """Refuse what AutoRound may have quantised beside weights, or in another way."""
    fields.choice("data_type", "int", ("int",))
    if fields.has("act_bits") and fields.integer("act_bits") < 16:
        raise fields.ignored("act_bits", "16")


_ONES: dict[int, int] = {4: 0x11111111, 8: 0x01010101}
"""One in each code of an element."""

_log = get_logger()
_AGAIN = "matrices whose g_idx is out of order are rounded again, to int8 in groups of 32"


@dataclass(frozen=True, slots=True)
class Gptq:
    """The format of GPTQ's tools: AutoGPTQ, and GPTQModel after it.

    An element of ``qweight``, int32 [inputs / n, outputs], holds n codes of one output, the first
    in its lowest bits; one of ``qzeros`` [groups, outputs / n], the zeros of n outputs. The first
    version of the format holds every zero less one, which was subtracted from whole elements: what
    is borrowed from the next zero comes back when one is added in the same way. ``g_idx`` is the
    group of each input, out of order where inputs were quantised in the order of their weight
    (``desc_act``).
    """

    bits: Literal[4, 8]
    group_size: int
    """Less than 1: there is one group for all inputs."""
    zeros_less_one: bool
    out_of_order: bool
    """Inputs of a group are not one after another: ``g_idx`` says which they are."""
    is_symmetric: bool
    """Every zero is the middle of the codes."""

    @classmethod
    def described(cls, fields: ConfigFields) -> Gptq:
        """Read ``quantization_config``, or what ``dynamic`` says of some of the modules."""
        names, versions = ("checkpoint_format", "format"), ("gptq", "gptq_v2")
        stated = {fields.choice(name, "gptq", versions) for name in names if fields.has(name)}
        if len(stated) > 1:
            raise fields.wrong("format", "the same as checkpoint_format")
        fields.choice("pack_dtype", "int32", ("int32",))
        if fields.flag("is_marlin_format", False):
            raise fields.lacking("is_marlin_format", "false")
        _check_plain(fields)
        group_size = fields.integer("group_size", least=-1)
        if group_size == 0:
            raise fields.wrong("group_size", "-1 or at least 1")
        out_of_order = fields.flag("desc_act", False) and group_size > 0
        if out_of_order:
            _log.info("groups_out_of_order", field="desc_act", consequence=_AGAIN)
        bits: Literal[4, 8] = 4 if fields.one_of("bits", 4, 8) == 4 else 8
        is_symmetric = fields.flag("sym", True)
        fields.refuse_unread(*_NOTES, *_NOTES_OF_GPTQ)
        return cls(bits, group_size, "gptq_v2" not in stated, out_of_order, is_symmetric)

    def unit(self, module: StoredModule, shape: Shape) -> int:
        """Return how many inputs of a matrix cannot be cut apart."""
        size = _size(self.group_size, shape)
        in_order = self._order(module, shape) is None
        return unit_of(self.bits, shape[1], size, in_order=in_order)

    def matrix(self, module: StoredModule, shape: Shape, part: Part) -> QuantizedMatrix:
        """Return a part; raises :class:`CheckpointError` if the matrix is malformed."""
        outputs, inputs = shape
        in_one = 32 // self.bits
        size = _size(self.group_size, shape)
        groups = -(-inputs // size)
        packed = module.integers("qweight", (-(-inputs // in_one), outputs))
        order = self._order(module, shape)
        some = slice(None) if order is not None else covering(part.columns, inputs, size)[0]
        return PackedCodes(
            bits=self.bits,
            shape=_shape(shape, part),
            bytes_OB=in_bytes(packed[covering(part.columns, inputs, in_one)[0], part.rows].T),
            scales_OG=module.numbers("scales", (groups, outputs), some, part.rows).T,
            zeros_OG=self._zeros(module, groups, outputs, some, part.rows).T,
            group_size=size,
            groups_I=None if order is None else order[part.columns],
        ).matrix()

    def _order(self, module: StoredModule, shape: Shape) -> Tensor | None:
        """Return the group of each input, or ``None`` if they follow one another."""
        if not self.out_of_order and not module.has("g_idx"):
            return None
        inputs, size = shape[1], _size(self.group_size, shape)
        return module.groups("g_idx", inputs, size, -(-inputs // size))

    def _zeros(
        self, module: StoredModule, groups: int, outputs: int, some: slice, rows: slice
    ) -> Tensor:
        packed = module.integers("qzeros", (groups, -(-outputs * self.bits // 32)))
        elements, inside = covering(rows, outputs, 32 // self.bits)
        packed = packed[some, elements]
        versions = ("gptq", "gptq_v2") if self.zeros_less_one else ("gptq_v2", "gptq")
        other = (1 << self.bits - 1) - (not self.zeros_less_one)
        if self.is_symmetric and (unpacked_rows(packed, self.bits) == other).all():
            raise CheckpointError(
                f"{module.name}.qzeros holds zeros of format {versions[1]}, and the configuration "
                f"says {versions[0]}; write 'checkpoint_format': '{versions[1]}' in its "
                "quantization_config"
            )
        ones = _ONES[self.bits] if self.zeros_less_one else 0
        return unpacked_rows(packed + ones, self.bits)[:, inside]


@dataclass(frozen=True, slots=True)
class GptqModules:
    """GPTQ's format where ``dynamic`` gives some of the modules another form, or none.

    A rule is a regular expression for the beginning of a module's name. One after ``-:`` says that
    the module is not quantised; another, which fields differ. The first that fits is taken.
    """

    usual: Gptq
    rules: tuple[tuple[str, Gptq | None], ...]
    plain: tuple[str, ...]
    """Names, or parts of them, of modules that are not quantised."""

    @classmethod
    def described(cls, fields: ConfigFields) -> GptqModules:
        """Read ``quantization_config``."""
        rules: list[tuple[str, Gptq | None]] = []
        dynamic = fields.mapping("dynamic") or {}
        for pattern, changed in dynamic.items():
            described = None
            if not pattern.startswith("-:"):
                described = Gptq.described(fields.changed("dynamic", changed))
            rules.append((pattern.removeprefix("-:").removeprefix("+:"), described))
        plain = tuple(fields.texts("modules_to_not_convert"))
        return cls(Gptq.described(fields), tuple(rules), plain)

    def has(self, module: StoredModule) -> bool:
        """Return whether the matrix of a module is quantised."""
        if not _has_codes(module, self.plain):
            return False
        if self._form(module) is None:
            raise contradiction(module.name, "dynamic", "names it as one that is not")
        return True

    def unit(self, module: StoredModule, shape: Shape) -> int:
        """Return how many inputs of a matrix cannot be cut apart."""
        return (self._form(module) or self.usual).unit(module, shape)

    def matrix(self, module: StoredModule, shape: Shape, part: Part) -> QuantizedMatrix:
        """Return a part; raises :class:`CheckpointError` if the matrix is malformed."""
        return (self._form(module) or self.usual).matrix(module, shape, part)

    def _form(self, module: StoredModule) -> Gptq | None:
        for pattern, form in self.rules:
            if matches(pattern, module.name):
                return form
        return self.usual


@dataclass(frozen=True, slots=True)
class Awq:
    """The format of AWQ's tools for matrix products: AutoAWQ's version ``gemm``.

    An element of ``qweight``, int32 [inputs, outputs / 8], holds the codes of eight outputs, and
    one of ``qzeros`` [groups, outputs / 8] their zeros: first those at even places, then the
    others.
    """

    group_size: int
    """Less than 1: there is one group for all inputs."""
    zero_point: bool
    plain: tuple[str, ...]
    """Names, or parts of them, of modules that are not quantised."""

    @classmethod
    def described(cls, fields: ConfigFields) -> Awq:
        """Read ``quantization_config``."""
        fields.one_of("bits", 4)
        for name in ("checkpoint_format", "format", "version"):
            fields.choice(name, "gemm", ("gemm", "GEMM"))
        fields.choice("pack_dtype", "int32", ("int32",))
        _check_plain(fields)
        plain = tuple(fields.texts("modules_to_not_convert"))
        read = cls(fields.integer("group_size", least=-1), fields.flag("zero_point", True), plain)
        fields.refuse_unread(*_NOTES, *_NOTES_OF_AWQ)
        return read

    def has(self, module: StoredModule) -> bool:
        """Return whether the matrix of a module is quantised."""
        return _has_codes(module, self.plain)

    def unit(self, module: StoredModule, shape: Shape) -> int:
        """Return how many inputs of a matrix cannot be cut apart."""
        return unit_of(4, shape[1], _size(self.group_size, shape), in_order=True)

    def matrix(self, module: StoredModule, shape: Shape, part: Part) -> QuantizedMatrix:
        """Return a part; raises :class:`CheckpointError` if the matrix is malformed."""
        outputs, inputs = shape
        size = _size(self.group_size, shape)
        groups, in_row = -(-inputs // size), -(-outputs // 8)
        elements, inside = covering(part.rows, outputs, 8)
        some = covering(part.columns, inputs, size)[0]
        packed = module.integers("qweight", (inputs, in_row))[part.columns, elements]
        zeros = None
        if self.zero_point or module.has("qzeros"):
            stored = module.integers("qzeros", (groups, in_row))[some, elements]
            zeros = _in_order(stored)[:, inside].T
        return PackedCodes(
            bits=4,
            shape=_shape(shape, part),
            bytes_OB=in_pairs(_even(_in_order(packed)[:, inside].T)),
            scales_OG=module.numbers("scales", (groups, outputs), some, part.rows).T,
            zeros_OG=zeros,
            group_size=size,
        ).matrix()


def _has_codes(module: StoredModule, plain: Sequence[str]) -> bool:
    """Return whether a module is quantised; it must not if ``plain`` names it or what it is in."""
    found = module.has("qweight")
    if found and any(f".{each}." in f".{module.name}." for each in plain):
        raise contradiction(module.name, "modules_to_not_convert", "names it")
    return found


def _size(group_size: int, shape: Shape) -> int:
    """Return the inputs of a group."""
    return group_size if 0 < group_size < shape[1] else shape[1]


def _shape(whole: Shape, part: Part) -> Shape:
    """Return the shape of a part."""
    rows, columns = range(whole[0])[part.rows], range(whole[1])[part.columns]
    return len(rows), len(columns)


def _even(codes: Tensor) -> Tensor:
    """Return rows of an even length, one behind the other in memory."""
    return functional.pad(codes, (0, codes.shape[1] % 2)).contiguous()


def _in_order(packed: Tensor) -> Tensor:
    """Return codes, uint8: of every eight, the second four go behind each of the first four."""
    codes = unpacked_rows(packed, 4)
    return codes.view(len(codes), -1, 2, 4).transpose(2, 3).reshape(codes.shape)


_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_PACKED, _PLAIN, _SCALES = "weight_packed", "weight", "weight_scale"
_MIDDLES = (0x88888888 - (1 << 32), 0x80808080 - (1 << 32))
"""Zeros of a symmetric scheme, where they are stored all the same and packed."""
_MAX_GROUPS = 100
"""Groups of a configuration, at most; each matrix is compared with all."""
_ZEROS, _ORDER = "weight_zero_point", "weight_g_idx"


@dataclass(frozen=True, slots=True)
class Scheme:
    """Form in which some of the matrices are stored."""

    targets: tuple[str, ...]
    """Which: by module, by a regular expression behind ``re:``, or by class."""
    bits: Literal[4, 8]
    group_size: int | None
    """``None``: one group for all inputs."""
    per_tensor: bool
    """One scale for the whole matrix."""
    symmetric: bool
    out_of_order: bool
    """Inputs of a group are not one after another."""

    @classmethod
    def described(cls, targets: Sequence[str], fields: ConfigFields) -> Scheme:
        """Read ``weights`` of one of the ``config_groups``."""
        fields.choice("type", "int", ("int",))
        group_size = fields.any("group_size")
        usual = "tensor" if group_size is None else "channel" if group_size == -1 else "group"
        strategy = fields.choice("strategy", usual, ("tensor", "channel", "group"))
        orders = ("none", "weight", "static", "group", "dynamic")
        out_of_order = fields.choice("actorder", "none", orders) in ("group", "dynamic")
        if out_of_order:
            _log.info("groups_out_of_order", field="actorder", consequence=_AGAIN)
        if fields.any("dynamic"):
            raise fields.lacking("dynamic", "false")
        read = cls(
            tuple(targets),
            4 if fields.one_of("num_bits", 4, 8) == 4 else 8,
            fields.integer("group_size") if strategy == "group" else None,
            strategy == "tensor",
            fields.flag("symmetric", True),
            out_of_order,
        )
        fields.refuse_unread("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
        return read

    def size(self, inputs: int) -> int:
        """Return the inputs of a group."""
        return min(self.group_size or inputs, inputs)

    def scales_shape(self, shape: Shape) -> tuple[int, ...]:
        """Return the shape of a matrix's scales."""
        outputs, inputs = shape
        return (1,) if self.per_tensor else (outputs, -(-inputs // self.size(inputs)))

    def packed_shape(self, shape: Shape) -> tuple[int, int]:
        """Return the shape of a matrix's codes, if they are packed."""
        return shape[0], -(-shape[1] * self.bits // 32)


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """The format of the library compressed-tensors, for llm-compressor and vLLM.

    ``pack-quantized``: an element of ``weight_packed``, int32 [outputs, inputs / n], holds n codes
    of one output, the first in its lowest bits; one of ``weight_zero_point`` [outputs / n, groups],
    the zeros of n outputs. ``int-quantized`` and ``naive-quantized``: ``weight`` is int8, a code
    less its middle, and so is ``weight_zero_point`` [outputs, groups]. ``weight_scale`` is
    [outputs, groups].
    """

    schemes: tuple[Scheme, ...]
    ignored: tuple[str, ...]
    """Modules that are not quantised, whatever the targets of schemes are."""

    @classmethod
    def described(cls, fields: ConfigFields) -> CompressedTensors:
        """Read ``quantization_config``."""
        check_effects(fields)
        fields.choice("format", "pack-quantized", (*_FORMATS, "mixed-precision"))
        groups = fields.mapping("config_groups") or {}
        return cls(
            tuple(_scheme(fields.part("config_groups", each)) for each in groups.values()),
            tuple(fields.texts("ignore")),
        )

    def has(self, module: StoredModule) -> bool:
        """Return whether the matrix of a module is quantised."""
        return module.has(_PACKED) or module.has(_SCALES)

    def unit(self, module: StoredModule, shape: Shape) -> int:
        """Return how many inputs of a matrix cannot be cut apart."""
        scheme = self._scheme(module)
        in_order = _order(module, scheme, shape[1]) is None
        return unit_of(scheme.bits, shape[1], scheme.size(shape[1]), in_order=in_order)

    def matrix(self, module: StoredModule, shape: Shape, part: Part) -> QuantizedMatrix:
        """Return a part; raises :class:`CheckpointError` if the matrix is malformed."""
        inputs = shape[1]
        scheme = self._scheme(module)
        size, order = scheme.size(inputs), _order(module, scheme, inputs)
        groups = slice(None) if order is not None else covering(part.columns, inputs, size)[0]
        of_scales = () if scheme.per_tensor else (part.rows, groups)
        scales = module.numbers(_SCALES, scheme.scales_shape(shape), *of_scales)
        if module.has("weight_shape"):
            _check_shape(module, shape)
        if module.has(_PACKED):
            elements = covering(part.columns, inputs, 32 // scheme.bits)[0]
            packed = module.integers(_PACKED, scheme.packed_shape(shape))
            codes = in_bytes(packed[part.rows, elements])
        else:
            codes = _from_middle(part.of(module.integers(_PLAIN, shape, torch.int8)))
        return PackedCodes(
            bits=scheme.bits if module.has(_PACKED) else 8,
            shape=_shape(shape, part),
            bytes_OB=codes,
            scales_OG=scales.expand(len(codes), -1),
            zeros_OG=_zeros(module, scheme, shape, part.rows, groups),
            group_size=size,
            groups_I=None if order is None else order[part.columns],
        ).matrix()

    def _scheme(self, module: StoredModule) -> Scheme:
        """Return the scheme of the target that fits best, as the library does: a name before a
        regular expression before a class, and of several the first in the alphabet."""
        targets = {target: scheme for scheme in self.schemes for target in scheme.targets}
        return targets[target_of(module.name, targets, self.ignored)]


_WITH_EFFECT = ("transform_config", "kv_cache_scheme", "moe_sparsity_config")
_WITHOUT = ("quant_method", "quantization_status", "global_compression_ratio", "version")


def check_effects(fields: ConfigFields) -> None:
    """Refuse what changes the results of a ``quantization_config``, whichever runner reads it.

    Raises:
        CheckpointError: no runner computes with a field, or it is not known.
    """
    for name in _WITH_EFFECT:
        if fields.any(name):
            raise fields.ignored(name, "empty")
    sparsity = fields.part("sparsity_config", fields.mapping("sparsity_config") or {})
    if sparsity.any("format", "dense") not in ("dense", None):
        raise sparsity.ignored("format", "dense")
    groups = fields.mapping("config_groups")
    if groups is None or not 0 < len(groups) <= _MAX_GROUPS:
        raise fields.wrong("config_groups", f"an object of 1 to {_MAX_GROUPS} entries")
    for group in (fields.part("config_groups", each) for each in groups.values()):
        if group.any("output_activations"):
            raise group.ignored("output_activations", "null")
        activations = group.mapping("input_activations")
        if activations is not None and not activations.get("dynamic"):
            raise group.ignored("input_activations", "null or dynamic")
        kind = group.any("format") or fields.any("format")
        weights = group.part("weights", group.mapping("weights") or {})
        if kind in ("pack-quantized", "int-quantized") and weights.any("type", "int") != "int":
            raise weights.wrong("type", f"int, as {kind} holds whole numbers")
    fields.refuse_unread("format", "ignore", "sparsity_config", *_WITHOUT)


def activation_keys(checkpoint: Checkpoint) -> list[str]:
    """Return the keys of a ``quantization_config`` that ask to quantise activations."""
    described = checkpoint.config.get("quantization_config")
    if not isinstance(described, Mapping):
        return []
    groups = described.get("config_groups")
    found = [
        f"config_groups.{name[:50]}.input_activations"
        for name, group in (groups.items() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping) and group.get("input_activations")
    ]
    return found + [name for name in ("activation_scheme",) if described.get(name)]


_CLASSES = ("Linear", "Module")
"""Names of a linear layer's classes, which targets may be."""


def target_of(name: str, targets: Iterable[str], ignored: Iterable[str]) -> str:
    """Return which of some targets a quantised module is one of.

    Raises:
        CheckpointError: it is of none, or ignored.
    """
    if any(_fits(name, each) for each in ignored):
        raise contradiction(name, "ignore", "names it")
    for target in sorted(targets, key=_rank):
        if _fits(name, target):
            return target
    raise contradiction(name, "config_groups", "has no target for it")


def _rank(target: str) -> tuple[bool, bool, str]:
    return target in _CLASSES, target.startswith("re:"), target


def _fits(name: str, target: str) -> bool:
    """Return whether a module is one of a target."""
    if target.startswith("re:"):
        return matches(target.removeprefix("re:"), name)
    return target == name or target in _CLASSES


def _scheme(fields: ConfigFields) -> Scheme:
    """Read one of the ``config_groups``."""
    targets, weights = fields.texts("targets"), fields.mapping("weights")
    if weights is None:
        raise fields.wrong("weights", "an object")
    fields.choice("format", "pack-quantized", _FORMATS)
    fields.refuse_unread("input_activations", "output_activations")
    return Scheme.described(targets, fields.part("weights", weights))


def _zeros(
    module: StoredModule, scheme: Scheme, shape: Shape, rows: slice, groups: slice
) -> Tensor | None:
    """Return codes [O, G] of some outputs and groups, or ``None`` if all are in the middle."""
    if scheme.symmetric:
        module.skip_equal(_ZEROS, 0, *_MIDDLES)
        return None
    if not module.has(_PACKED) or module.dtype(_ZEROS) == torch.int8:
        stored = module.integers(_ZEROS, scheme.scales_shape(shape), torch.int8)
        zeros = _from_middle(stored if scheme.per_tensor else stored[rows, groups])
        if module.has(_PACKED) and scheme.bits == 4:
            zeros = zeros - (128 - 8)
        return zeros.expand(len(range(shape[0])[rows]), -1)
    outputs, inputs = shape
    num_groups = -(-inputs // scheme.size(inputs))
    packed = module.integers(_ZEROS, (-(-outputs * scheme.bits // 32), num_groups))
    elements, inside = covering(rows, outputs, 32 // scheme.bits)
    return unpacked_rows(packed[elements, groups].T, scheme.bits)[:, inside].T


def _from_middle(numbers: Tensor) -> Tensor:
    """Return int8 as codes of 8 bits."""
    return numbers.view(torch.uint8) + 128  # modulo 256, as two's complement


def _check_shape(module: StoredModule, shape: Shape) -> None:
    stored = module.integers("weight_shape", (2,), torch.int64, torch.int32)
    if tuple(stored.tolist()) != shape:
        raise module.wrong("weight_shape", f"is {stored.tolist()}, and {list(shape)} is configured")


def _order(module: StoredModule, scheme: Scheme, inputs: int) -> Tensor | None:
    """Return the group of each input, or ``None`` if they follow one another."""
    if not scheme.out_of_order and not module.has(_ORDER):
        return None
    stored = module.integers(_ORDER, (inputs,))
    if bool((stored == -1).all()):  # it was never set
        return None
    size = scheme.size(inputs)
    return module.groups(_ORDER, inputs, size, -(-inputs // size))
