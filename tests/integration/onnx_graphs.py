"""Decoders as ONNX graphs made by hand, and what ONNX Runtime computes of them as a whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

HEADS, KV_HEADS, WIDTH, LAYERS, VOCABULARY = 4, 2, 32, 2, 32
HIDDEN = HEADS * WIDTH
KV_HIDDEN = KV_HEADS * WIDTH

_CONTRIB = "com.microsoft"
_ADDED = ("GroupQueryAttention", "MultiHeadAttention", "PagedAttention", "QuickGelu")
"""Operators of that domain."""


class Decoder:
    """A decoder of two layers; a subclass says how it attends. Weights are those of a seed."""

    rotary = 0
    """Width that is rotated."""
    flat = False
    packed = True
    kv_heads = KV_HEADS

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes
        self._random = np.random.default_rng(1)
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self.inputs: list[Any] = []

    def save(self, folder: Path) -> Path:
        """Write the graph and a configuration."""
        batch: list[Any] = ["tokens"] if self.flat else [1, "tokens"]
        self._input("input_ids", TensorProto.INT64, batch)
        hidden = self.node("Gather", self.weight("embedding", VOCABULARY, HIDDEN), "input_ids")
        hidden = self.placed(hidden)
        for layer in range(LAYERS):
            for part in ("key", "value"):
                shape = [1, self.kv_heads, "past", WIDTH]
                self._input(f"past.{layer}.{part}", TensorProto.FLOAT, shape)
            attended = self.attend(layer, hidden)
            projected = self.node(
                "MatMul", attended, self.weight(f"output.{layer}", HEADS * WIDTH, HIDDEN)
            )
            hidden = self.node("Add", hidden, projected)
        logits = self.node("MatMul", hidden, self.weight("head", HIDDEN, VOCABULARY))
        graph = helper.make_graph(
            [*self._nodes, helper.make_node("Identity", [logits], ["logits"])],
            "decoder",
            self.inputs,
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
            self._weights,
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_CONTRIB, 1)]
        folder.mkdir(exist_ok=True)
        onnx.save(
            helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx"
        )
        config = {"model_type": "made_by_hand", "max_position_embeddings": 64, "eos_token_id": 0}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def attend(self, layer: int, hidden: str) -> str:
        raise NotImplementedError

    def placed(self, hidden: str) -> str:
        """Hidden states to which something was added that says where they are."""
        return hidden

    # ------------------------------------------------------------------ for subclasses

    def projections(self, layer: int, hidden: str) -> list[str]:
        """Query, key and value, [1, T, heads * width] each."""
        widths = (HEADS * WIDTH, self.kv_heads * WIDTH, self.kv_heads * WIDTH)
        return [
            self.node("MatMul", hidden, self.weight(f"{part}.{layer}", HIDDEN, width))
            for part, width in zip(("query", "key", "value"), widths, strict=True)
        ]

    def tables(self) -> list[str]:
        """Cosines and sines of rotary embeddings, where there are any."""
        if not self.rotary:
            return ["", ""]
        names = {weight.name for weight in self._weights}
        angles = np.outer(np.arange(64), 10.0 ** -np.arange(self.rotary // 2)).astype(np.float32)
        for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            if name not in names:
                self._weights.append(numpy_helper.from_array(table, name))
        return ["cos", "sin"]

    def weight(self, name: str, *shape: int) -> str:
        seed = np.random.default_rng(list(name.encode()))
        array = (seed.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, count: int = 1, **attributes: Any) -> Any:
        names = [f"{kind}.{len(self._nodes)}.{index}" for index in range(count)]
        name, domain = f"/{kind}.{len(self._nodes)}", _CONTRIB if kind in _ADDED else ""
        self._nodes.append(
            helper.make_node(kind, list(inputs), names, name, domain=domain, **attributes)
        )
        return names[0] if count == 1 else names

    def _input(self, name: str, kind: int, shape: Sequence[Any]) -> None:
        """Declare an input, once."""
        if all(value.name != name for value in self.inputs):
            self.inputs.append(helper.make_tensor_value_info(name, kind, shape))


class Grouped(Decoder):
    """GroupQueryAttention."""

    operator = "GroupQueryAttention"

    def attend(self, layer: int, hidden: str) -> str:
        rows = self.projections(layer, hidden)
        if self.packed:
            rows = [self.node("Concat", *rows, axis=-1), "", ""]
        given = self.attributes | {"do_rotary": int(self.rotary > 0)}
        outputs: list[str] = self.node(
            self.operator,
            *rows,
            f"past.{layer}.key",
            f"past.{layer}.value",
            *self.lengths(),
            *self.tables(),
            count=3,
            num_heads=HEADS,
            kv_num_heads=self.kv_heads,
            **given,
        )
        return outputs[0]

    def lengths(self) -> list[str]:
        """What the operator is told of the lengths of sequences."""
        self._input("seqlens_k", TensorProto.INT32, [1])
        self._input("total_length", TensorProto.INT32, [])
        return ["seqlens_k", "total_length"]


class Paged(Grouped):
    """PagedAttention over a flat row of tokens, with the weights of :class:`Grouped`."""

    operator = "PagedAttention"
    flat = True

    def lengths(self) -> list[str]:
        self._input("cumulative", TensorProto.INT32, ["sequences"])
        self._input("past_lengths", TensorProto.INT32, ["sequences"])
        self._input("block_table", TensorProto.INT32, ["sequences", "blocks"])
        return ["cumulative", "past_lengths", "block_table"]


class MultiHead(Decoder):
    """MultiHeadAttention with a cache of its own."""

    kv_heads = HEADS

    def attend(self, layer: int, hidden: str) -> str:
        given = {"unidirectional": 1} | self.attributes
        outputs: list[str] = self.node(
            "MultiHeadAttention",
            *self.projections(layer, hidden),
            "",
            "",
            "",
            f"past.{layer}.key",
            f"past.{layer}.value",
            count=3,
            num_heads=HEADS,
            **given,
        )
        return outputs[0]


class Written(Decoder):
    """Attention written out: a bias by distance (``slope``), ``windows``, a ``hole``, masks by
    ``chunk``, a mask from ``outside``, a scale from a shape (``shaped``), values in float16
    (``half``).
    """

    kv_heads = HEADS

    def placed(self, hidden: str) -> str:
        """Add learned positions, which the graph counts itself, from row ``first`` on."""
        first = self.attributes.get("first")
        if first is None:
            return hidden
        _, queries, _ = self._counted()
        rows = self.node("Add", queries, self._constant("first", [first]))
        table = self.weight("positions", 64 + first, HIDDEN)
        return str(self.node("Add", hidden, self.node("Gather", table, rows)))

    def attend(self, layer: int, hidden: str) -> str:
        shape = self._constant(f"shape.{layer}", [1, -1, HEADS, WIDTH])
        rows = [
            self.node("Transpose", self.node("Reshape", part, shape), perm=[0, 2, 1, 3])
            for part in self.projections(layer, hidden)
        ]
        key, value = (
            self.node("Concat", f"past.{layer}.{part}", new, axis=2)
            for part, new in zip(("key", "value"), rows[1:], strict=True)
        )
        query, key = rows[0], self.node("Transpose", key, perm=[0, 1, 3, 2])
        if self.attributes.get("shaped"):
            query = self.node("QuickGelu", query, alpha=1.0)
            factor = self._factor(layer, query)
            query, key = self.node("Mul", query, factor), self.node("Mul", key, factor)
        scores = self.node("MatMul", query, key)
        scores = self.node("Div", scores, self._number(f"scale.{layer}", 4.0))
        if cap := self.attributes.get("cap"):
            scores = self.node("Mul", scores, self._number(f"inverse.{layer}", 1 / cap))
            scores = self.node("Mul", self._number(f"cap.{layer}", cap), self.node("Tanh", scores))
        scores = self.node("Add", scores, self._mask(layer))
        probabilities = self.node("Softmax", scores, axis=-1)
        if half := self.attributes.get("half"):
            probabilities, value = (
                self.node("Cast", one, to=TensorProto.FLOAT16) for one in (probabilities, value)
            )
        context = self.node("MatMul", probabilities, value)
        context = self.node("Transpose", context, perm=[0, 2, 1, 3])
        if half:
            self._weights.append(numpy_helper.from_array(np.float16([2]), f"half.{layer}"))
            context = self.node("Mul", context, f"half.{layer}")
            context = self.node("Cast", context, to=TensorProto.FLOAT)
        return str(self.node("Reshape", context, self._constant(f"flat.{layer}", [1, -1, HIDDEN])))

    def _factor(self, layer: int, query: str) -> str:
        """What queries and keys are multiplied by, from the width in the shape of a query."""
        names = [self._constant(f"{name}.{layer}", [end]) for name, end in (("a", -1), ("z", 99))]
        width = self.node("Slice", self.node("Shape", query), *names)
        root = self.node("Sqrt", self.node("Cast", width, to=TensorProto.FLOAT))
        inverse = self.node("Div", self._number(f"unit.{layer}", 1.0), root)
        return str(self.node("Sqrt", inverse))

    def _mask(self, layer: int) -> str:
        """What is added to scores [1, H, T, L]: a table from outside, or computed from lengths."""
        if self.attributes.get("outside"):
            self._input("mask_table", TensorProto.FLOAT, [1, 1, "tokens", "total"])
            return "mask_table"
        total, positions, zero = self._counted()
        queries = self.node("Unsqueeze", positions, "[one]")
        keys = self.node("Range", zero, total, "one")
        distance = self.node("Sub", keys, queries)  # [T, L], above zero: in the future
        number = len(self._nodes)
        hidden = self.node("Greater", distance, "zero")
        if window := self.attributes.get("windows", (None, None))[layer]:
            edge = self._constant(f"window.{number}", [1 - window])
            hidden = self.node("Or", hidden, self.node("Less", distance, edge))
        if chunk := self.attributes.get("chunk"):
            edge = self._constant(f"chunk.{number}", [chunk])
            parts = [self.node("Div", places, edge) for places in (keys, queries)]
            hidden = self.node("Or", hidden, self.node("Less", *parts))
        if hole := self.attributes.get("hole"):
            edge = self._constant(f"hole.{number}", [-hole])
            hidden = self.node("Or", hidden, self.node("Equal", distance, edge))
        masked = self.node(
            "Where",
            hidden,
            self._number(f"masked.{number}", -1e9),
            self._number(f"open.{number}", 0.0),
        )
        if slope := self.attributes.get("slope"):
            bias = self.node("Cast", distance, to=TensorProto.FLOAT)
            bias = self.node("Mul", bias, self._number(f"slope.{number}", slope))
            masked = self.node("Add", masked, bias)
        return str(masked)

    def _counted(self) -> tuple[str, str, str]:
        """The number of all tokens, the positions [T] of the new ones, and zero."""
        names = {weight.name for weight in self._weights}
        for name, number in (("zero", 0), ("one", 1), ("two", 2)):
            if name not in names:
                scalar = np.array(number, np.int64)
                self._weights.append(numpy_helper.from_array(scalar, name))
                self._weights.append(numpy_helper.from_array(scalar[None], f"[{name}]"))
        new = self.node("Gather", self.node("Shape", "input_ids"), "one")
        cached = self.node("Gather", self.node("Shape", "past.0.key"), "two")
        total = self.node("Add", cached, new)
        return total, self.node("Range", cached, total, "one"), "zero"

    def _constant(self, name: str, numbers: list[int]) -> str:
        self._weights.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def _number(self, name: str, number: float) -> str:
        self._weights.append(numpy_helper.from_array(np.array(number, np.float32), name))
        return name


def whole_logits(folder: Path, tokens: Sequence[int]) -> Any:
    """Return logits [T, V] of one prompt, of the graph as it is in its file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    count = len(tokens)
    given: dict[str, Any] = {
        "input_ids": np.array([tokens]),
        "position_ids": np.arange(count)[None],
        "attention_mask": np.ones((1, count), np.int64),
        "seqlens_k": np.array([count - 1], np.int32),
        "total_length": np.array(count, np.int32),
        "mask_table": np.triu(np.full((1, 1, count, count), -1e9, np.float32), 1),
    }
    for value in session.get_inputs():
        if value.name.startswith("past"):
            dtype = np.float16 if "16" in value.type else np.float32
            _, heads, _, width = value.shape
            width = width if isinstance(width, int) else WIDTH
            given[value.name] = np.zeros((1, heads, 0, width), dtype)
    names = {value.name for value in session.get_inputs()}
    fed = {name: array for name, array in given.items() if name in names}
    return session.run(["logits"], fed)[0][0].astype(np.float32)
