"""Azure's traces of LLM inference, of 2023 and 2024.

CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``, times as ``2023-11-16 18:17:03.9799600`` or
``2024-05-12 00:00:00.001163+00:00`` (Patel et al., "Splitwise", ISCA 2024; Stojkovic et al.,
"DynamoLLM", HPCA 2025; github.com/Azure/AzurePublicDataset).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from paged_plugins.workloads.content import FIRST_OWN_ID, ContentIds
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.csv_rows import CsvRow, csv_rows
from paged_plugins.workloads.traces.token_count import TokenCount

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests; rows that read or generate no token are left out.

    Raises:
        TraceError: a row is broken.
    """
    own = ContentIds(FIRST_OWN_ID)
    start: datetime | None = None
    at = 0.0
    for number, row in enumerate(csv_rows(path, COLUMNS)):
        time = _time(row)
        start = start or time
        at = max(at, (time - start).total_seconds())
        num_prompt, num_output = row.tokens(1), row.tokens(2)
        if num_prompt and num_output:
            name = str(number)
            prompt = (own.take(num_prompt),)
            yield WorkloadRequest(id=name, at=at, prompt=prompt, output=num_output, session=name)


def _time(row: CsvRow) -> datetime:
    try:
        time = datetime.fromisoformat(row.fields[0])
    except ValueError:
        raise row.error(
            f"{row.fields[0]!r:.40} is no time such as 2023-11-16 18:17:03.97"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
