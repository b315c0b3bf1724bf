"""Builds a decoder from its configuration and its weights, by their names in a checkpoint.

Weights that multiply the same input are concatenated: query, key and value; gate and up.

Shapes: V vocabulary, E embedding size, P positions, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

import torch
from torch import Tensor

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.tensor_files import WHOLE, Part
from paged_backends.runners.native.decoder import (
    Attention,
    BlockTable,
    Decoder,
    DenseTable,
    Embedding,
    FeedForward,
    Head,
    HeadOp,
    Layer,
    Linear,
    Norm,
    SummedLinear,
    SummedTable,
    Table,
)
from paged_backends.runners.native.linear_maker import LinearMaker, MakeLinear
from paged_backends.runners.native.ops import Ops, frequencies, rounded
from paged_backends.runners.native.share import DividedVocabulary, check_output, divided_inputs
from paged_backends.runners.native.source import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Names of modules, without ``.weight`` and ``.bias``; those of a layer without its prefix."""

    embedding: str = "model.embed_tokens"
    positions: str = ""
    project_in: str = ""
    project_out: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layers: str = "model.layers"
    attention_norm: str = "input_layernorm"
    query_key_value: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """One name if the checkpoint stores them concatenated."""
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    attention_output: str = "self_attn.o_proj"
    attention_output_norm: str = "post_attention_layernorm"
    """If outputs are normalised."""
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    mlp_output_norm: str = "post_feedforward_layernorm"
    transposed: bool = False
    """Weights of linear layers are stored as [inputs, outputs]."""


_NAMES = {
    "gemma2": WeightNames(mlp_norm="pre_feedforward_layernorm"),
    "gemma3_text": WeightNames(mlp_norm="pre_feedforward_layernorm"),
    "opt": WeightNames(
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        project_in="model.decoder.project_in",
        project_out="model.decoder.project_out",
        final_norm="model.decoder.final_layer_norm",
        layers="model.decoder.layers",
        attention_norm="self_attn_layer_norm",
        attention_output="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up="fc1",
        down="fc2",
    ),
    "gpt2": WeightNames(
        embedding="transformer.wte",
        positions="transformer.wpe",
        final_norm="transformer.ln_f",
        layers="transformer.h",
        attention_norm="ln_1",
        query_key_value=("attn.c_attn",),
        attention_output="attn.c_proj",
        mlp_norm="ln_2",
        up="mlp.c_fc",
        down="mlp.c_proj",
        transposed=True,
    ),
}

_GGUF = WeightNames(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layers="blk",
    attention_norm="attn_norm",
    query_key_value=("attn_q", "attn_k", "attn_v"),
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    attention_output="attn_output",
    attention_output_norm="post_attention_norm",
    mlp_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    mlp_output_norm="post_ffw_norm",
)
_GGUF_GPT2 = replace(_GGUF, positions="position_embd", query_key_value=("attn_qkv",))


def weight_names(checkpoint: Checkpoint) -> WeightNames:
    """Return the names in a checkpoint; most are those of Llama."""
    if checkpoint.gguf is not None:
        return _GGUF_GPT2 if checkpoint.model_type == "gpt2" else _GGUF
    return _NAMES.get(checkpoint.model_type) or WeightNames()


# ---------------------------------------------------------------------- building


class Assembly:
    """Builds the decoder of one model, weight by weight.

    Every method raises :class:`CheckpointError` if a weight is missing or has another shape, and
    :meth:`decoder` if the checkpoint holds some that the model would lack. The parts can be had
    one by one, so that only some of them are in memory at a time.

    Of several ranks, each reads its share; that raises :class:`UnsupportedModel` where a weight's
    groups would be cut apart.
    """

    def __init__(
        self,
        source: ModelSource,
        ops: Ops,
        linear: MakeLinear | None = None,
        *,
        group_size: int = 1,
    ) -> None:
        """
        Args:
            source: the model, and the dtype and the device that it is computed with.
            ops: make the operations, and linear layers.
            linear: makes linear layers instead, of weights as they are stored, which no operation
                keeps then.
            group_size: inputs that will share a scale.
        """
        self._config, self._local, self._share = source.config, source.local, source.share
        self._group_size = group_size
        self._tokens = self._share.units(self._config.vocab_size)
        self._weights, names = source.weights, weight_names(source.checkpoint)
        has = self._weights.has
        missing = self._config.tied and not has(f"{names.embedding}.weight")
        only_head = missing and has(f"{names.head}.weight")
        self._names = replace(names, embedding=names.head) if only_head else names
        self._dtype, self._device = source.dtype, source.device
        self._ops = ops
        self._linears = LinearMaker(source, ops, linear)
        self._keeps_weights = linear is None and not ops.copies_weights

    def decoder(self) -> Decoder:
        """Return the whole decoder."""
        self.check_layers()
        embedding = self.embedding()
        head = self.head(embedding)
        layers = list(self.layers())
        self.check_all_taken()
        return self.connected(embedding, layers, head)

    def connected(self, embedding: Embedding, layers: Sequence[Layer], head: Head) -> Decoder:
        """Return a decoder of parts that were built one by one."""
        communicator, vocabulary = self._share.communicator, None
        if communicator is not None:
            table = SummedTable(embedding.table, self._tokens, self._dtype, self._share.all_reduce)
            embedding = replace(embedding, table=table)
            vocabulary = DividedVocabulary(self._share, communicator, self._config.vocab_size)
        config = self._config
        ropes = {layer.rope for layer in config.layers if layer.rope is not None}
        return Decoder(
            config=config,
            embedding=embedding,
            vocabulary=vocabulary,
            layers=layers,
            head=head,
            pick_best=self._ops.best,
            make_rotary=self._ops.rotary,
            frequencies={
                rope: frequencies(rope, config.head_dim).to(self._device) for rope in ropes
            },
        )

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of a weight of the linear layers that were built, on average."""
        return self._linears.bytes_per_weight

    def check_layers(self) -> None:
        """Check that the checkpoint has the weights of all layers, and of no more."""
        self._weights.check_layers(len(self._config.layers))

    def check_all_taken(self) -> None:
        """Check that all parts were built, and that the checkpoint holds nothing else."""
        self._weights.check_all_taken(tied=self._config.tied)

    def embedding(self) -> Embedding:
        """Return the embedding; its table stays as stored where no operation keeps weights."""
        config, names = self._config, self._names
        hidden, width = config.hidden_size, config.embedding_size
        positions = None
        if config.learned_positions is not None:
            rows = config.learned_positions + config.max_model_len
            positions = self._tensor(f"{names.positions}.weight", (rows, hidden))
        narrow = width != hidden
        return Embedding(
            table=self._table(),
            dtype=self._dtype,
            scale=rounded(config.embedding_scale, self._dtype),
            positions_PE=positions,
            first_position=config.learned_positions or 0,
            project=self._linear([names.project_in], [(hidden, width)]) if narrow else None,
        )

    def head(self, embedding: Embedding) -> Head:
        """Return the head; a tied model's checkpoint may hold one that is not its embedding."""
        config, names = self._config, self._names
        hidden, width = config.hidden_size, config.embedding_size
        return Head(
            norm=self._norm(names.final_norm, hidden) if config.norm_at_end else None,
            project=self._linear([names.project_out], [(width, hidden)])
            if width != hidden
            else None,
            output=self._output(embedding.table),
        )

    def _table(self) -> Table:
        name = f"{self._names.embedding}.weight"
        shape = (self._config.vocab_size, self._config.embedding_size)
        if self._ops.computes_quantized:
            blocks = self._weights.blocks(name, shape, Part(self._tokens))
            if blocks is not None:
                return BlockTable(blocks, self._dtype)
        table = DenseTable(self._weights.take(name, shape, Part(self._tokens)))
        return table.to(self._device, self._dtype) if self._keeps_weights else table

    def _output(self, table: Table) -> Linear:
        """Return the product with the head, or with the embedding where that is the head."""
        config, names, weights = self._config, self._names, self._weights
        name, shape = f"{names.head}.weight", (config.vocab_size, config.embedding_size)
        has_own = not config.tied or weights.has(name)
        module = names.head if has_own else names.embedding
        if has_own or isinstance(table, BlockTable):
            quantized = self._linears.quantized(f"{module}.weight", shape, Part(self._tokens))
            if quantized is not None:
                return quantized
        if not has_own:
            assert isinstance(table, DenseTable)
            return self._linears.plain([table.rows_VE])
        weight = weights.take(name, shape, Part(self._tokens))
        if config.tied and isinstance(table, DenseTable):
            own = weight.to(table.rows_VE.device, table.rows_VE.dtype)
            weight = table.rows_VE if torch.equal(own, table.rows_VE) else own
        return self._linears.plain([weight])

    def layers(self) -> Iterator[Layer]:
        """Yield one layer after another."""
        return map(self.layer, range(len(self._config.layers)))

    def layer(self, index: int) -> Layer:
        """Return one layer."""
        config, names = self._config, self._names
        prefix = f"{names.layers}.{index}."
        hidden = config.hidden_size

        def norm(name: str) -> Norm:
            return self._norm(prefix + name, hidden)

        layer = Layer(
            attention_norm=norm(names.attention_norm),
            attention=self._attention(index, prefix),
            attention_output_norm=norm(names.attention_output_norm)
            if config.norm_outputs
            else None,
            mlp_norm=norm(names.mlp_norm),
            mlp=self._feed_forward(prefix),
            mlp_output_norm=norm(names.mlp_output_norm) if config.norm_outputs else None,
            norm_first=config.norm_first,
        )
        if not self._keeps_weights or self._weights.is_quantized:
            self._weights.release()
        return layer

    def _attention(self, index: int, prefix: str) -> Attention:
        config, local, names, share = self._config, self._local, self._names, self._share
        query = config.num_heads * config.head_dim
        output = prefix + names.attention_output
        unit = self._unit(output, (config.hidden_size, query))
        check_output(share, config, unit, output)
        return Attention(
            index=index,
            config=config.layers[index],
            num_heads=local.num_heads,
            num_kv_heads=local.num_kv_heads,
            head_dim=config.head_dim,
            query_key_value=self._query_key_value(prefix),
            heads=self._heads(prefix),
            output=self._summed(
                output,
                (config.hidden_size, query),
                share.heads(config.num_heads, config.head_dim),
                bias=config.output_bias,
            ),
        )

    def _query_key_value(self, prefix: str) -> Linear:
        config, names = self._config, self._names
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        heads = [self._share.heads(count, config.head_dim) for count in counts]
        outputs = [count * config.head_dim for count in counts]
        modules = [prefix + name for name in names.query_key_value]
        if len(modules) == 1:  # side by side in one weight
            firsts = [sum(outputs[:index]) for index in range(3)]
            heads = [
                slice(first + part.start, first + part.stop)
                for first, part in zip(firsts, heads, strict=True)
            ]
            outputs, modules = [sum(outputs)] * 3, modules * 3
            if self._share.size == 1:
                outputs, modules, heads = outputs[:1], modules[:1], [slice(None)]
        return self._linear(
            modules,
            [(count, config.hidden_size) for count in outputs],
            [Part(rows) for rows in heads],
            bias=config.query_bias,
            transposed=names.transposed,
        )

    def _heads(self, prefix: str) -> HeadOp:
        """Return the norms and the rotary embedding of query and key heads."""
        config, names = self._config, self._names
        query = key = None
        if config.norm_queries_and_keys:
            query = self._tensor(f"{prefix}{names.query_norm}.weight", (config.head_dim,))
            key = self._tensor(f"{prefix}{names.key_norm}.weight", (config.head_dim,))
        return self._ops.heads(query, key, config.norm_eps, config.norm_weight_offset)

    def _feed_forward(self, prefix: str) -> FeedForward:
        config, names = self._config, self._names
        hidden, inner = config.hidden_size, config.intermediate_size
        wide = [names.gate, names.up] if config.gated else [names.up]
        down = prefix + names.down
        unit = self._unit(down, (hidden, inner))
        part = divided_inputs(self._share, inner, unit, down)
        make_activation = self._ops.gated if config.gated else self._ops.activation
        return FeedForward(
            up=self._linear(
                [prefix + name for name in wide],
                [(inner, hidden)] * len(wide),
                [Part(part)] * len(wide),
                bias=config.mlp_bias,
                transposed=names.transposed,
            ),
            activation=make_activation(config.activation),
            down=self._summed(down, (hidden, inner), part, bias=config.mlp_bias),
        )

    def _unit(self, module: str, shape: tuple[int, int]) -> int:
        """Return how many inputs of a linear layer must stay together."""
        if self._share.size == 1:
            return 1
        return lcm(self._group_size, self._weights.unit(f"{module}.weight", shape))

    def _summed(self, module: str, shape: tuple[int, int], part: slice, *, bias: bool) -> Linear:
        """Return a linear layer of some of the inputs, summed over the ranks."""
        transposed, inputs = self._names.transposed, Part(columns=part)
        if self._share.size == 1:
            return self._linear([module], [shape], [inputs], bias=bias, transposed=transposed)
        return SummedLinear(
            self._linear([module], [shape], [inputs], transposed=transposed),
            self._tensor(f"{module}.bias", shape[:1]) if bias else None,
            self._share.all_reduce,
        )

    def _linear(
        self,
        modules: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        parts: Sequence[Part] = (WHOLE,),
        *,
        bias: bool = False,
        transposed: bool = False,
    ) -> Linear:
        """Return one linear layer in place of several that have the same input."""
        biases = [
            self._tensor(f"{module}.bias", shape[:1], part)
            for module, shape, part in zip(modules, shapes, parts, strict=True)
            if bias
        ]
        return self._linears.stored(
            [f"{module}.weight" for module in modules],
            shapes,
            parts,
            torch.cat(biases) if biases else None,
            transposed=transposed,
        )

    def _norm(self, module: str, size: int) -> Norm:
        config, ops = self._config, self._ops
        if not config.norm_has_weights:
            return ops.layer_norm(size, None, None, config.norm_eps)
        weight = self._tensor(f"{module}.weight", (size,))
        if config.norm == "rms":
            return ops.rms_norm(weight, config.norm_eps, config.norm_weight_offset)
        bias = self._tensor(f"{module}.bias", (size,))
        return ops.layer_norm(size, weight, bias, config.norm_eps)

    def _tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> Tensor:
        return self._weights.take(name, shape, part).to(device=self._device, dtype=self._dtype)
