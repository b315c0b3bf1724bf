"""What a file may hold beside one flat graph: made a part of that graph, or refused.

Readers of ONNX look for the file that a tensor names where the process runs, compute a graph in a
node for as long as it says, and put functions in place of their calls, whatever that makes. So
nothing else reads a model before it was here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto
from onnx.inliner import inline_local_functions

from paged_backends.runners.onnx.file.model_graph import described, unserved, without_weights

_MAX_PARTS = 500_000
"""Nodes, their inputs, outputs and attributes that calls become; large decoders have 100,000."""
_MAX_BYTES = 256 << 20
"""Of those."""
_MAX_DEPTH = 50
"""Functions that call each other, one in the other."""

_Key = tuple[str, str, str]
"""Domain, name and variant of a function."""


def flatten(model: ModelProto) -> None:
    """Leave one graph, whose nodes hold no graphs and no tensors of other files.

    Raises:
        UnsupportedModel: it has graphs in nodes, sparse tensors, or tensors of nodes in other
            files; or its functions call themselves, or become too many nodes.
    """
    del model.training_info[:]
    if model.graph.sparse_initializer:
        raise unserved("it stores weights as sparse tensors; export it with dense ones")
    for owner, attribute in _attributes(model):
        if attribute.HasField("g") or attribute.graphs:
            raise unserved(f"its {owner} chooses between graphs or repeats one while it is run")
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
            raise unserved(f"its {owner} holds a sparse tensor; export it with dense ones")
        if any(tensor.data_location == TensorProto.EXTERNAL for tensor in _tensors(attribute)):
            raise unserved(
                f"its {owner} has a tensor in another file, where weights alone may lie; save the "
                "model with convert_attribute=False"
            )
    if model.functions:
        _inline(model)


def tensors_of_nodes(model: ModelProto) -> Iterator[TensorProto]:
    """Yield the dense tensors that nodes hold, those of functions too."""
    for _, attribute in _attributes(model):
        yield from _tensors(attribute)


def _tensors(attribute: AttributeProto) -> Sequence[TensorProto]:
    return [attribute.t, *attribute.tensors] if attribute.HasField("t") else attribute.tensors


def _attributes(model: ModelProto) -> Iterator[tuple[str, AttributeProto]]:
    """Yield all attributes, those of functions and their defaults too, and how to name whose."""
    bodies = [function.node for function in model.functions]
    for node in chain(model.graph.node, *bodies):
        for attribute in node.attribute:
            yield described(node), attribute
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield f"function {function.name!r}", attribute


# ---------------------------------------------------------------------- functions


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a call becomes, at most."""

    parts: int = 0
    num_bytes: int = 0
    depth: int = 0
    """Calls, one in the other."""


class _Calls:
    """What the calls of a model become, counted before any is replaced: each function once."""

    def __init__(self, model: ModelProto) -> None:
        self._bodies = {_key(one): one.node for one in model.functions}
        self._costs: dict[_Key, _Cost] = {}
        if len(self._bodies) < len(model.functions):
            raise unserved("it has two functions of one name")

    def calls(self, node: NodeProto) -> bool:
        """Whether a node calls a function."""
        return _key(node) in self._bodies

    def check(self, nodes: Iterable[NodeProto], depth: int = 0) -> _Cost:
        """Return what nodes become.

        Raises:
            UnsupportedModel: that is too much.
        """
        parts = num_bytes = deepest = 0
        for node in nodes:
            cost = self._cost(node, depth) if depth <= _MAX_DEPTH else _Cost(depth=depth)
            parts += cost.parts
            num_bytes += cost.num_bytes
            deepest = max(deepest, cost.depth)
            if deepest > _MAX_DEPTH:
                raise unserved(
                    f"its functions call themselves, or each other more than {_MAX_DEPTH} deep; "
                    "export it without functions"
                )
            if parts > _MAX_PARTS or num_bytes > _MAX_BYTES:
                raise unserved(
                    "its functions call each other so often that they become more than "
                    f"{_MAX_PARTS} nodes and values, or {_MAX_BYTES} bytes; export it without "
                    "functions"
                )
        return _Cost(parts, num_bytes, deepest)

    def _cost(self, node: NodeProto, depth: int) -> _Cost:
        key = _key(node)
        own = 1 + len(node.input) + len(node.output) + len(node.attribute)
        if not self.calls(node):
            return _Cost(own, node.ByteSize())
        if key not in self._costs:
            self._costs[key] = self.check(self._bodies[key], depth + 1)
        body = self._costs[key]
        # each part of the body may become the name or the attribute that is given for it
        given = [len(name) for name in (*node.input, *node.output)]
        given += [attribute.ByteSize() for attribute in node.attribute]
        largest = max(given, default=0)
        return _Cost(own + body.parts, body.num_bytes + largest * body.parts, body.depth + 1)


def _key(one: NodeProto | FunctionProto) -> _Key:
    """Return which function it is, or which a node calls, if there is one."""
    name = one.name if isinstance(one, FunctionProto) else one.op_type
    return "" if one.domain == "ai.onnx" else one.domain, name, one.overload


def _inline(model: ModelProto) -> None:
    """Put the nodes of functions in place of their calls."""
    calls = _Calls(model)
    calls.check(node for node in model.graph.node if calls.calls(node))
    flat = inline_local_functions(without_weights(model))
    if flat.functions:
        raise unserved(
            "it has functions for another version of ONNX than its own; export it without functions"
        )
    for name in ("functions", "opset_import"):
        model.ClearField(name)
    model.opset_import.extend(flat.opset_import)
    del model.graph.node[:]
    model.graph.node.extend(flat.graph.node)
