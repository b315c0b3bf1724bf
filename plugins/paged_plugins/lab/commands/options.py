"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

STUDY_FILE = "the settings of a study are in its file; write it under `base`"
"""Why options that are settings are refused."""

WorkloadName = Annotated[str, typer.Argument(help="A workload's name, or a file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[float | None, typer.Option(min=0, help="A limit for goodput (default: none).")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time (default: one per core; one, if they are real)."),
]
CpuTime = Annotated[
    bool,
    typer.Option(
        "--cpu-time",
        help="Measure the processor time of this process instead, for a busy machine; the model "
        "then gets one thread.",
    ),
]
