"""``paged-core decisions import``: another engine's traffic and decisions, as files of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo
from paged_core.errors import SettingsError
from paged_plugins.command_options import refuse_settings
from paged_plugins.decisions.recording import Recording, read_recording
from paged_plugins.progress import counted
from paged_plugins.written_files import write_text

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def decisions() -> None:
    """Decisions of other engines."""


@app.command("import")
def import_command(
    given: SettingsArgs,
    file: Annotated[Path, typer.Argument(help="A recording of paged-core-vllm.")],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write; default: beside the file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a scenario with its trace, a workload and settings of what a vLLM served.

    `replay NAME.case.json --check` says whether this project's scheduler explains its decisions;
    `compare NAME.requests.jsonl --config NAME.settings.yaml --vary evictor=lru,arc` what others
    would have changed.
    """
    refuse_settings(given, "a recording has its own; leave it out")
    folder = output or file.parent
    if not folder.is_dir():
        raise SettingsError(f"there is no folder {folder}; make it first")
    told = write(read_recording(file), folder)
    if as_json:
        echo(json.dumps(told))
        return
    told_of = f"{counted(told['requests'], 'request')}, {counted(told['steps'], 'step')}"
    echo(f"{told_of}; {told['follow']} continue another's answer, {told['aborted']} aborted")
    for note in told["notes"]:
        echo(f"note: {note}")
    for path in told["files"]:
        echo(path)


def write(recording: Recording, folder: Path) -> dict[str, Any]:
    """Write the files of a recording; return what is told of them."""
    name, scenario, notes = recording.name, recording.scenario(), []
    case: dict[str, Any] = {"scenario": scenario, "trace": recording.trace}
    if not recording.is_whole:
        notes.append(
            f"the beginning of the recording is gone, and with it {recording.unknown} requests "
            "that ended later: there is no trace to check"
        )
    if recording.header.is_async:
        notes.append(
            "it was recorded with steps planned ahead, and a replay decides after each result: "
            "--check may differ"
        )
    files = {
        f"{name}.case.json": json.dumps(case if recording.is_whole else {"scenario": scenario}),
        f"{name}.requests.jsonl": "".join(
            json.dumps(line) + "\n" for line in recording.request_lines()
        ),
        f"{name}.settings.yaml": yaml.safe_dump(recording.header.settings, sort_keys=False),
    }
    for filename, text in files.items():
        write_text(folder / filename, text)
    requests, ends = recording.requests, recording.ends
    return {
        "name": name,
        "requests": len(requests),
        "steps": len(recording.trace),
        "follow": sum(recording.follows(each) is not None for each in requests.values()),
        "aborted": sum(end.aborted for end in ends.values()),
        "unfinished": len(requests.keys() - ends.keys()),
        "notes": notes,
        "files": [str(folder / filename) for filename in files],
    }
