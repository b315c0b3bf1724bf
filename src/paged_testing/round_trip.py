"""Checks that settings survive serialisation."""

from __future__ import annotations

import json
import pickle
from typing import Any

from paged_core.component import Component, ComponentSettings
from paged_core.settings import EngineSettings


def settings_round_trip(
    subject: EngineSettings | ComponentSettings | Component | type[ComponentSettings], /
) -> None:
    """Check that settings are the same after JSON, plain data and pickle.

    Args:
        subject: the settings of an engine, the options of a component, or the component itself (or
            its options class), whose defaults are then used.

    Raises:
        AssertionError: a value was lost; the message names the format.
    """
    if isinstance(subject, Component):
        subject = subject.settings
    if isinstance(subject, type):
        subject = subject(**{})
        for name, field in type(subject).model_fields.items():
            assert name == "name" or field.description, (
                f"option {name!r} of {type(subject).__name__} has no description"
            )
    kind: Any = type(subject)
    as_json = subject.model_dump_json()
    assert kind(**json.loads(as_json)) == subject, "JSON loses something"
    assert kind(**subject.model_dump()) == subject, "plain data loses something"
    assert pickle.loads(pickle.dumps(subject)) == subject, "pickling loses something"
