"""The traces of BurstGPT.

CSV with the columns ``Timestamp`` (in seconds), ``Session ID``, ``Elapsed time``, ``Model``,
``Request tokens``, ``Response tokens``, ``Total tokens`` and ``Log Type``; releases before 2.0 lack
the session and the elapsed time (Wang et al., "BurstGPT", KDD 2025; github.com/HPMLL/BurstGPT).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from paged_plugins.workloads.content import FIRST_OWN_ID, ContentIds
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.csv_rows import CsvRow, csv_rows
from paged_plugins.workloads.traces.token_count import TokenCount

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"


def read_burstgpt(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests; rows that read or generate no token, which are failures, are left out.

    Each row is a request of its own, at its own time: which of them continue each other's text is
    not recorded, only that they are of one session.

    Raises:
        TraceError: a row is broken.
    """
    own = ContentIds(FIRST_OWN_ID)
    start: float | None = None
    at = 0.0
    for number, row in enumerate(csv_rows(path, COLUMNS, optional=(SESSION,))):
        time = _seconds(row)
        start = time if start is None else start
        at = max(at, time - start)
        num_prompt, num_output = row.tokens(1), row.tokens(2)
        if num_prompt and num_output:
            yield WorkloadRequest(
                id=str(number),
                at=at,
                prompt=(own.take(num_prompt),),
                output=num_output,
                session=row.fields[3] or str(number),
            )


def _seconds(row: CsvRow) -> float:
    try:
        time = float(row.fields[0])
    except ValueError:
        time = float("nan")
    if not isfinite(time) or abs(time) > 1e12:
        raise row.error(f"{row.fields[0]!r:.40} is no number of seconds")
    return time
