"""Sessions of the stages of a model, and the shapes of what crosses between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from onnx import NodeProto, helper

from paged_backends.runners.onnx.file.cut_model import CutModel, Stage
from paged_backends.runners.onnx.file.file_config import FileConfig
from paged_backends.runners.onnx.file.model_graph import unserved
from paged_backends.runners.onnx.sessions import (
    ELEMENT_TYPES,
    ORT_ERRORS,
    Session,
    SessionMaker,
    Value,
    as_ort_value,
    reason_of,
)
from paged_core.errors import UnsupportedModel

_TRIALS = (3, 2)
"""Tokens of two steps whose shapes are compared."""

Shape = tuple[int, ...]


def open_sessions(
    model: CutModel, config: FileConfig, maker: SessionMaker, *, exact: bool
) -> tuple[Sequence[Session], Session]:
    """Make one session per stage, and one for the head; find all shapes by running them twice.

    Args:
        exact: multiply quantised weights in floating point, whatever the file asks for.

    Raises:
        UnsupportedModel: ONNX Runtime lacks an operator, or shapes do not depend on the number of
            tokens alone.
    """
    int64 = ELEMENT_TYPES[torch.int64]
    types = {config.tokens: int64, config.positions: int64}
    types |= dict.fromkeys((one.attended for one in model.attentions), ELEMENT_TYPES[model.dtype])
    sessions = [
        _open(model, stage, types, maker, exact=exact) for stage in (*model.stages, model.head)
    ]
    one, other = (_shapes(model, config, sessions, num_tokens) for num_tokens in _TRIALS)
    for session in sessions:
        for values in (session.inputs, session.outputs):
            for name, value in values.items():
                values[name] = Value(value.dtype, _by_tokens(name, one[name], other[name]))
    return sessions[:-1], sessions[-1]


def _open(
    model: CutModel, stage: Stage, types: dict[str, int], maker: SessionMaker, *, exact: bool
) -> Session:
    """Make the session of a stage, and add the types of its outputs to ``types``."""
    inputs = [helper.make_tensor_value_info(name, types[name], None) for name in stage.inputs]
    part = model.graph.part(stage.nodes, inputs, stage.outputs)
    if exact:
        for node in part.graph.node:
            _compute_exactly(node)
    options = maker.options()
    content = model.weights.serialize(part, options)
    session = Session(maker.open(content, options, model.path), model.weights)
    types |= {name: ELEMENT_TYPES[value.dtype] for name, value in session.outputs.items()}
    return session


def _compute_exactly(node: NodeProto) -> None:
    """Let a product with quantised weights not quantise tokens, too."""
    for attribute in node.attribute:
        if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
            attribute.i = 1


# ---------------------------------------------------------------------- shapes


def _shapes(
    model: CutModel, config: FileConfig, sessions: Sequence[Session], num_tokens: int
) -> Mapping[str, Shape]:
    """Return the shapes of all that sessions read and return, in a step of so many tokens."""
    numbers = torch.arange(num_tokens)
    tokens = numbers if model.flat else numbers[None]
    tensors = {config.tokens: tokens, config.positions: tokens.clone()}
    values = {name: as_ort_value(tensor) for name, tensor in tensors.items()}
    for index, session in enumerate(sessions):
        outputs = list(session.outputs)
        try:
            returned = session.ort.run_with_ort_values(
                outputs, {name: values[name] for name in session.inputs}
            )
        except ORT_ERRORS as error:
            raise UnsupportedModel(
                f"{model.path} cannot be served: ONNX Runtime cannot compute part {index} of "
                f"{len(sessions)}: {reason_of(error)}; export the model again"
            ) from error
        values |= dict(zip(outputs, returned, strict=True))
        if index < len(model.attentions):
            attention = model.attentions[index]
            query, key, value = (
                tuple(values[name].shape())
                for name in (attention.query, attention.key, attention.value)
            )
            _check_heads(attention.node, query, key, value)
            attended = torch.zeros(query[1:], dtype=model.dtype)
            tensors[attention.attended] = attended  # kept: the value refers to its memory
            values[attention.attended] = as_ort_value(attended)
    return {name: tuple(value.shape()) for name, value in values.items()}


def _check_heads(node: str, query: Shape, key: Shape, value: Shape) -> None:
    """Check rows [1, T, H, D] and [1, T, K, D]."""
    fits = len(query) == 4 and query[0] == 1 and key == value and len(key) == 4
    if not fits or query[:2] != key[:2] or query[3] != key[3] or query[2] % key[2]:
        raise unserved(
            f"its {node} attends with queries {list(query)} to keys {list(key)} and values "
            f"{list(value)}; they have heads of one width, [1, tokens, heads, width]"
        )


def _by_tokens(name: str, one: Shape, other: Shape) -> tuple[int | str, ...]:
    """Return a shape in which the axis of tokens has no number."""
    if len(one) == len(other) and all(
        size == again or (size, again) == _TRIALS for size, again in zip(one, other, strict=True)
    ):
        return tuple(size if size == again else "T" for size, again in zip(one, other, strict=True))
    raise unserved(
        f"the shape of {name!r} is {list(one)} for {_TRIALS[0]} tokens and {list(other)} for "
        f"{_TRIALS[1]}"
    )
