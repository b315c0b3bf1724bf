"""Values between sessions share memory only if they are never there at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")

from paged_backends.runners.onnx.memory_plan import plan_memory
from paged_backends.runners.onnx.session import Value

ROWS, WIDE = Value(torch.float32, ("T", 4)), Value(torch.float32, ("T", 8))


def session(inputs: dict[str, Value], outputs: dict[str, Value]) -> Any:
    return SimpleNamespace(inputs=inputs, outputs=outputs)


@st.composite
def chains(draw: st.DrawFn) -> list[Any]:
    """Sessions that read what earlier ones returned, or what comes from outside."""
    sessions, known = [], {"tokens": ROWS}
    for index in range(draw(st.integers(1, 6))):
        read = draw(st.lists(st.sampled_from(sorted(known)), unique=True))
        values = draw(st.lists(st.sampled_from([ROWS, WIDE]), min_size=1, max_size=3))
        outputs = {f"{index}.{place}": value for place, value in enumerate(values)}
        sessions.append(session({name: known[name] for name in read}, outputs))
        known |= outputs
    return sessions


@settings(max_examples=40)
@given(chains())
def test_no_value_is_overwritten_before_it_is_read(sessions: list[Any]) -> None:
    names = {name for one in sessions for name in (*one.inputs, *one.outputs)}
    places = plan_memory(sessions, names)
    assert places.keys() == names
    holds = {places["tokens"]: "tokens"} if "tokens" in names else {}
    for one in sessions:
        for name in one.inputs:
            assert holds[places[name]] == name
        returned = {places[name]: name for name in one.outputs}
        assert len(returned) == len(one.outputs)
        assert not returned.keys() & {places[name] for name in one.inputs}
        holds |= returned


def test_a_long_chain_needs_as_much_as_a_short_one() -> None:
    """The residual goes to and fro between two places, and all queries have one."""
    sessions = [
        session(
            {f"residual.{i - 1}": ROWS} if i else {}, {f"residual.{i}": ROWS, f"query.{i}": WIDE}
        )
        for i in range(8)
    ]
    names = [name for one in sessions for name in one.outputs]
    assert len(set(plan_memory(sessions, names).values())) == 3


def test_a_name_that_is_used_again_keeps_its_memory() -> None:
    """It comes from outside first, and later from a session."""
    sessions = [
        session({"hidden": ROWS}, {"other": ROWS}),
        session({"other": ROWS}, {"hidden": ROWS}),
        session({"hidden": ROWS}, {"last": ROWS}),
    ]
    places = plan_memory(sessions, ["hidden", "other", "last"])
    assert places["hidden"] == "hidden"
    assert "hidden" not in (places["other"], places["last"])
