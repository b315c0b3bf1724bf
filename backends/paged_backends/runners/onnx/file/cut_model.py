"""A model in one ONNX file, cut at its attentions into stages, which are models of their own.

A node is of the latest stage that it reads from; what comes back from attention ``i`` is of stage
``i + 1``. What a later stage reads, such as the residual, is an output of its stage. What depends
on no token, such as a weight that is transposed first, is computed wherever it is read. Nodes that
nothing needs any longer, such as masks, belong to no stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import torch
from onnx import NodeProto, TensorProto

from paged_backends.checkpoint.json_file import damaged, one_line
from paged_backends.runners.onnx.file.attention_nodes import take_attention_nodes
from paged_backends.runners.onnx.file.counted_positions import replace_counted_positions
from paged_backends.runners.onnx.file.file_config import FileConfig
from paged_backends.runners.onnx.file.found_attention import FoundAttention
from paged_backends.runners.onnx.file.graph_sizes import check_sizes
from paged_backends.runners.onnx.file.model_file import StoredWeights, num_stored, read_model_file
from paged_backends.runners.onnx.file.model_graph import (
    CACHE_AXES,
    ModelGraph,
    described,
    refusal,
    result_of,
    unserved,
)
from paged_backends.runners.onnx.file.softmax_attention import (
    take_softmax_attentions,
    unknown_softmax,
)
from paged_backends.runners.onnx.sessions import ELEMENT_TYPES
from paged_core.errors import PagedCoreError

_BATCH_DEPENDENT = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
"""Quantise all tokens of a step with one scale."""
_MAX_ATTENTIONS = 1_000
"""Each has a session before it, with threads of its own."""
_MAX_COPIES = 10
"""Of each node, on average, where stages share what depends on no token."""
_PRODUCTS = ("MatMul", "MatMulNBits", "Gemm")
_LAST_TOKEN = ("Gather", "GatherND", "Slice")
_DTYPES = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """What is computed at once."""

    nodes: Sequence[NodeProto]
    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutModel:
    """The stages of a model, one more than there are attentions, and what lies between them."""

    path: Path
    graph: ModelGraph
    stages: Sequence[Stage]
    attentions: Sequence[FoundAttention]
    head: Stage
    hidden: str
    """What the last stage returns and the head reads."""
    dtype: torch.dtype
    """Of queries, keys and values."""
    flat: bool
    """Tokens are one axis [T], without one of batches."""
    weights: StoredWeights


def cut_model(path: Path, config: FileConfig, dtype: torch.dtype | None) -> CutModel:
    """Read a file, and cut its graph at its attentions.

    Args:
        dtype: of queries, keys and values; ``None``: that of the graph's own cache.

    Raises:
        CheckpointError: the file is damaged.
        UnsupportedModel: the graph cannot be cut; the message names the node.
    """
    try:
        model = read_model_file(path)
        check_sizes(model, num_stored(path, model))
        return _cut(path, ModelGraph(model), config, dtype)
    except PagedCoreError:
        raise
    except Exception as error:  # a graph may hold anything, and nothing has checked it yet
        raise damaged(
            f"{path} holds a graph that contradicts itself ({type(error).__name__}: "
            f"{one_line(error)})"
        ) from error


def _cut(path: Path, graph: ModelGraph, config: FileConfig, dtype: torch.dtype | None) -> CutModel:
    _check_borders(graph, config)
    _check_independent(graph)
    graph.find_numbers()
    flat = len(graph.inputs[config.tokens].shape.dim) == 1
    is_counted = config.positions not in graph.inputs
    positions = graph.reshape(config.positions, 1, -1) if flat else config.positions
    found = _take_attentions(graph, positions)
    if is_counted and any(one.mask for one in found):
        replace_counted_positions(graph, config.tokens, config.positions)
    own = _dtype_of_cache(graph, found)
    if dtype not in (None, own):
        found = [_cast(graph, one, own, dtype) for one in found]
    tokens = frozenset({config.tokens, config.positions})
    cut = _Cut(graph, found, tokens, config.logits)
    hidden = cut.hidden()
    return CutModel(
        path=path,
        graph=graph,
        stages=cut.stages(hidden),
        attentions=found,
        head=cut.head(hidden),
        hidden=hidden,
        dtype=dtype or own,
        flat=flat,
        weights=StoredWeights(path.parent),
    )


def _check_borders(graph: ModelGraph, config: FileConfig) -> None:
    for name, known in ((config.tokens, graph.inputs), (config.logits, graph.outputs)):
        if name not in known:
            raise unserved(
                f"it has no {name!r}, and a decoder takes token ids and returns logits; it has "
                f"{', '.join(known)[:300]}"
            )


def _check_independent(graph: ModelGraph) -> None:
    """Check that no token is computed with others, before products with them are looked for."""
    for node in graph.nodes:
        if node.op_type in _BATCH_DEPENDENT:
            raise refusal(
                node,
                "quantises all tokens of a step with one scale, so that the result of one depends "
                "on the others; quantise weights only",
            )


def _take_attentions(graph: ModelGraph, positions: str) -> Sequence[FoundAttention]:
    """Take all attentions out; each cache of the graph must be that of one of them."""
    found = take_attention_nodes(graph, positions) or take_softmax_attentions(graph)
    if not found:
        softmax = unknown_softmax(graph)
        raise unserved(
            "no attention was found in it, neither an operator of that kind nor a softmax between "
            f"two products{f' ({softmax})' if softmax else ''}"
        )
    if len(found) > _MAX_ATTENTIONS:
        raise unserved(f"it has {len(found)} attentions, and at most {_MAX_ATTENTIONS} are served")
    used = [name for one in found for name in one.past]
    caches = [
        name
        for name, kind in graph.inputs.items()
        if len(kind.shape.dim) == CACHE_AXES and "mask" not in name
    ]
    if len(set(used)) < len(used) or set(used) != set(caches):
        odd = next((name for name in caches if used.count(name) != 1), used[0])
        raise unserved(
            f"its cache {odd!r} is read by {used.count(odd)} attentions that were found, and each "
            "has one of its own"
        )
    return found


def _dtype_of_cache(graph: ModelGraph, found: Sequence[FoundAttention]) -> torch.dtype:
    kind = graph.inputs[found[0].past[0]].elem_type
    if kind not in _DTYPES:
        raise unserved(f"its cache {found[0].past[0]!r} is quantised")
    return _DTYPES[kind]


def _cast(
    graph: ModelGraph, one: FoundAttention, own: torch.dtype, dtype: torch.dtype
) -> FoundAttention:
    """Let queries, keys and values leave the graph in another dtype, and the result come so."""
    rows = [
        graph.add("Cast", name, to=ELEMENT_TYPES[dtype]) for name in (one.query, one.key, one.value)
    ]
    attended = f"{one.attended}.{str(dtype).removeprefix('torch.')}"
    graph.replace(one.attended, graph.add("Cast", attended, to=ELEMENT_TYPES[own]))
    return replace(one, query=rows[0], key=rows[1], value=rows[2], attended=attended)


# ---------------------------------------------------------------------- stages


class _Cut:
    """The cut of a graph whose attentions were taken out.

    Args:
        inputs: values of the tokens of a step, and their positions, which stages may read.
        logits: the value that the head computes.
    """

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
        self._place = {id(node): index for index, node in enumerate(self._nodes)}
        self._num_constant = 0
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

    def stages(self, hidden: str) -> list[Stage]:
        """Return the stages before the head.

        Raises:
            UnsupportedModel: something depends on more than one token at a time outside of
                attention.
        """
        self._needed([hidden], set())
        if self._stage_of[hidden] != len(self._attentions):
            raise unserved(
                f"its head reads {hidden!r}, which the last attention does not contribute to"
            )
        wanted: list[dict[str, None]] = [{} for _ in range(len(self._attentions) + 1)]
        for index, one in enumerate(self._attentions):
            for name in (one.query, one.key, one.value):
                stage = self._stage_of.get(name, 0)
                if stage > index:
                    raise unserved(f"attention {one.node} reads what a later attention returns")
                wanted[stage][name] = None
        wanted[-1][hidden] = None
        nodes: list[list[NodeProto]] = [[] for _ in wanted]
        for node in self._needed([name for names in wanted for name in names], set()):
            stage = self._stage_of[result_of(node)]
            nodes[stage].append(node)
            for name in node.input:
                here = self._stage_of.get(name)
                if here is not None and here < stage and self._graph.made_by(name):
                    wanted[here][name] = None
        return [self._stage(own, list(outputs)) for own, outputs in zip(nodes, wanted, strict=True)]

    def head(self, hidden: str) -> Stage:
        """Return the stage from hidden states to logits.

        Raises:
            UnsupportedModel: logits depend on more than that.
        """
        head = self._stage(self._needed([self._logits], {hidden}), [self._logits])
        if set(head.inputs) != {hidden}:
            raise unserved(
                "its logits depend on more than the hidden state of their token "
                f"({', '.join(sorted(set(head.inputs) - {hidden}))[:200]})"
            )
        return head

    def hidden(self) -> str:
        """Return the value that the last product reads: before it, rows are chosen.

        Raises:
            UnsupportedModel: logits are the result of no product, or of chosen tokens.
        """
        name = self._logits
        for _ in self._nodes:
            node = self._graph.made_by(name)
            read = [one for one in node.input if one in self._stage_of] if node else []
            if node is None or not read:
                break
            if node.op_type in _PRODUCTS:
                return self._all_tokens(node, read[0])
            name = read[0]
        raise unserved(f"{self._logits!r} is the result of no product")

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
                raise unserved(
                    f"it reads {name!r} outside of attention; export it with position_ids as an "
                    "input"
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
        needed, open_names = {}, list(names)
        while open_names:
            node = self._graph.made_by(open_names.pop())
            if node is not None and id(node) not in needed:
                needed[id(node)] = node
                open_names.extend(value for value in node.input if value)
        self._num_constant += len(needed)
        if self._num_constant > _MAX_COPIES * len(self._nodes):
            raise unserved(
                "parts between attentions share too much that depends on no token; export it with "
                "constants folded"
            )
        return sorted(needed.values(), key=lambda node: self._place[id(node)])


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
        raise unserved(f"{described(node)} reads its own result") from error
