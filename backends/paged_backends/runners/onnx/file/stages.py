"""The cut: a graph without its attentions falls into stages, which are models of their own.

A node is of the latest stage that it reads from; what comes back from attention ``i`` is of stage
``i + 1``. What a later stage reads, such as the residual, is an output of its stage. What depends
on no token, such as a weight that is transposed first, is computed wherever it is read. Nodes that
nothing needs any longer, such as masks, belong to no stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from paged_backends.runners.onnx.file.found_attention import FoundAttention
from paged_backends.runners.onnx.file.model_graph import ModelGraph, described, refusal
from paged_core.errors import UnsupportedModel

_PRODUCTS = ("MatMul", "MatMulNBits", "Gemm")
_LAST_TOKEN = ("Gather", "GatherND", "Slice")
_DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Stage:
    """What is computed at once."""

    nodes: Sequence[NodeProto]
    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class CutGraph:
    """A graph in stages: one more than there are attentions."""

    stages: Sequence[Stage]
    attentions: Sequence[FoundAttention]
    head: Stage
    hidden: str
    """What the last stage returns and the head reads."""


def cut(
    graph: ModelGraph, attentions: Sequence[FoundAttention], *, inputs: Iterable[str], logits: str
) -> CutGraph:
    """Cut a graph whose attentions were taken out.

    Args:
        inputs: values of the tokens of a step, and their positions, which stages may read.
        logits: the value that the head computes.

    Raises:
        UnsupportedModel: something depends on more than one token at a time outside of attention.
    """
    return _Cut(graph, attentions, frozenset(inputs), logits).result()


class _Cut:
    def __init__(
        self,
        graph: ModelGraph,
        attentions: Sequence[FoundAttention],
        inputs: frozenset[str],
        logits: str,
    ) -> None:
        self._graph = graph
        self._attentions = attentions
        self._inputs = inputs
        self._logits = logits
        self._nodes = _ordered(graph)
        self._stage_of = self._number_stages()

    def _number_stages(self) -> dict[str, int]:
        """Return the stage of each value that is no constant; -1: it does not depend on a token."""
        stage_of = dict.fromkeys(self._graph.inputs, -1) | dict.fromkeys(self._inputs, 0)
        stage_of |= {one.attended: index + 1 for index, one in enumerate(self._attentions)}
        for node in self._nodes:
            read = [stage_of[name] for name in node.input if name in stage_of]
            if read:
                stage_of |= {name: max(read) for name in node.output if name}
        return stage_of

    def result(self) -> CutGraph:
        hidden = self._hidden()
        self._needed([hidden], set())
        if self._stage_of[hidden] != len(self._attentions):
            raise UnsupportedModel(
                f"the ONNX graph cannot be served: its head reads {hidden!r}, which the last "
                "attention does not contribute to"
            )
        wanted: list[list[str]] = [[] for _ in range(len(self._attentions) + 1)]
        for index, one in enumerate(self._attentions):
            for name in (one.query, one.key, one.value):
                stage = self._stage_of.get(name, 0)
                if stage > index:
                    raise UnsupportedModel(
                        f"the ONNX graph cannot be served: attention {one.node} reads what a later "
                        "attention returns"
                    )
                wanted[stage].append(name)
        wanted[-1].append(hidden)
        needed = self._needed([name for names in wanted for name in names], set())
        for node in needed:
            for name in node.input:
                here = self._stage_of.get(name)
                crosses = here is not None and here < self._stage_of[_result(node)]
                if crosses and self._graph.made_by(name) and name not in wanted[here or 0]:
                    wanted[here or 0].append(name)
        stages = [
            self._stage(
                [node for node in needed if self._stage_of[_result(node)] == index], outputs
            )
            for index, outputs in enumerate(wanted)
        ]
        head = self._stage(self._needed([self._logits], {hidden}), [self._logits])
        if set(head.inputs) != {hidden}:
            raise UnsupportedModel(
                "the ONNX graph cannot be served: its logits depend on more than the hidden state "
                f"of their token ({', '.join(sorted(set(head.inputs) - {hidden}))[:200]})"
            )
        return CutGraph(stages, self._attentions, head, hidden)

    def _hidden(self) -> str:
        """Return the value that the last product reads: before it, rows are chosen."""
        name = self._logits
        for _ in self._nodes:
            node = self._graph.made_by(name)
            read = [one for one in node.input if one in self._stage_of] if node else []
            if node is None or not read:
                break
            if node.op_type in _PRODUCTS:
                return self._all_tokens(node, read[0])
            name = read[0]
        raise UnsupportedModel(
            f"the ONNX graph cannot be served: {self._logits!r} is the result of no product"
        )

    def _all_tokens(self, product: NodeProto, hidden: str) -> str:
        """Return what the head reads, before a graph leaves out all but the last token."""
        node = self._graph.made_by(hidden)
        if node is None or node.op_type not in _LAST_TOKEN:
            return hidden
        if any(name in self._stage_of for name in node.input[1:]):
            raise refusal(node, "chooses tokens by more than their place")
        self._graph.replace(hidden, node.input[0])
        return str(node.input[0])

    def _needed(self, names: Iterable[str], known: set[str]) -> list[NodeProto]:
        """Return the nodes that compute values from tokens, in order."""
        needed, open_names, seen = set(), list(names), set(known)
        while open_names:
            name = open_names.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self._graph.made_by(name)
            stage = self._stage_of.get(name)
            if stage == -1 and node is None:
                raise UnsupportedModel(
                    f"the ONNX graph cannot be served: it reads {name!r} outside of attention; "
                    "export it with position_ids as an input"
                )
            if node is not None and stage is not None:
                needed.add(id(node))
                open_names.extend(value for value in node.input if value)
        return [node for node in self._nodes if id(node) in needed]

    def _stage(self, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> Stage:
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in node.input if name)
        inputs = [name for name in read if name not in made and name in self._stage_of]
        constant = self._constant([name for name in read if name not in self._stage_of])
        return Stage([*constant, *nodes], inputs, outputs)

    def _constant(self, names: Iterable[str]) -> list[NodeProto]:
        """Return the nodes that compute values from weights alone, in order."""
        needed, open_names = set(), list(names)
        while open_names:
            node = self._graph.made_by(open_names.pop())
            if node is not None and id(node) not in needed:
                needed.add(id(node))
                open_names.extend(value for value in node.input if value)
        return [node for node in self._nodes if id(node) in needed]


def stage_model(graph: ModelGraph, stage: Stage, types: dict[str, int]) -> ModelProto:
    """Return a stage as a model.

    Args:
        types: of its inputs; those of its outputs follow from them.
    """
    read = dict.fromkeys(name for node in stage.nodes for name in node.input)
    made = helper.make_graph(
        stage.nodes,
        "stage",
        [helper.make_tensor_value_info(name, types[name], None) for name in stage.inputs],
        [ValueInfoProto(name=name) for name in stage.outputs],
        [graph.weights[name] for name in read if name in graph.weights],
    )
    opsets = {entry.domain: entry for entry in graph.model.opset_import}
    opsets.setdefault(_DOMAIN, helper.make_opsetid(_DOMAIN, 1))
    model = helper.make_model(
        made, opset_imports=list(opsets.values()), ir_version=graph.model.ir_version
    )
    model.functions.extend(graph.model.functions)
    return model


def _ordered(graph: ModelGraph) -> list[NodeProto]:
    """Return all nodes so that each comes after those that it reads from."""
    sorter: TopologicalSorter[int] = TopologicalSorter()
    place = {id(node): index for index, node in enumerate(graph.nodes)}
    for index, node in enumerate(graph.nodes):
        before = (graph.made_by(name) for name in node.input)
        sorter.add(index, *(place[id(one)] for one in before if one is not None))
    try:
        return [graph.nodes[index] for index in sorter.static_order()]
    except CycleError as error:
        node = graph.nodes[error.args[1][0]]
        raise UnsupportedModel(
            f"the ONNX graph cannot be served: {described(node)} reads its own result"
        ) from error


def _result(node: NodeProto) -> str:
    return next(str(name) for name in node.output if name)
