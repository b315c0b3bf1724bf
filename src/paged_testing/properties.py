"""Properties that are tried with many examples, and what a failure prints: once, and in brief."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import wraps
from io import StringIO
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.vendor import pretty

from paged_core.request import Request
from paged_testing.engines import LastSteps
from paged_testing.workloads import Workload, brief

MAX_RUNS = 60
"""Examples that are tried after the first that fails."""


def _print_as(kind: type, text: Callable[[Any], str]) -> None:
    """Have Hypothesis print examples of a class so."""
    pretty.for_type_by_name(
        kind.__module__, kind.__name__, lambda each, printer, cycle: printer.text(text(each))
    )


_print_as(Request, brief)
_print_as(Workload, repr)


def check_property(
    property_: Callable[..., None],
    strategies: Sequence[st.SearchStrategy[Any]],
    settings: hypothesis_settings,
) -> None:
    """Check a property with many examples.

    Once it has failed, a bounded number of others is looked at. Those beyond pass unseen, so that
    Hypothesis finds nothing smaller and reports what it has, which it runs last. Of that run alone
    is the log printed, and the last steps of its engine, which end the report.
    """
    failed: set[str] = set()
    num_runs, log, steps = 0, "", LastSteps()

    @wraps(property_)
    def bounded(**values: Any) -> None:
        nonlocal num_runs, log, steps
        example = repr(values)
        if failed and example not in failed:
            num_runs += 1
            if num_runs > MAX_RUNS:
                return
        printed = StringIO()
        try:
            with redirect_stderr(printed), LastSteps.kept(bool(failed)) as kept:
                property_(**values)
        except BaseException:
            failed.add(example)
            log, steps = printed.getvalue(), kept
            raise
        sys.stderr.write(printed.getvalue())

    try:
        given(*strategies)(settings(bounded))()
    except BaseException as error:
        sys.stderr.write(log)
        if steps.records:
            error.add_note(str(steps))
        raise
