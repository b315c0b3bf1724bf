"""``paged-core decisions import``: another engine's traffic and decisions, as files of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo
from paged_core.errors import SettingsError
from paged_plugins.command_options import refuse_settings
from paged_plugins.decisions.kv_events import KvEvents
from paged_plugins.decisions.kv_source import holds_events, read_events, receive_events
from paged_plugins.decisions.recording import Recording, read_recording
from paged_plugins.progress import counted
from paged_plugins.workloads.traces.request_lines import request_lines
from paged_plugins.written_files import write_text

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def decisions() -> None:
    """Decisions of other engines."""


@app.command("import")
def import_command(
    given: SettingsArgs,
    file: Annotated[
        Path | None,
        typer.Argument(help="A recording of paged-core-vllm, or of vLLM's KV events."),
    ] = None,
    kv_events: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Receive KV events from tcp://HOST:PORT instead."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="How long events are received; Ctrl-C ends it.")
    ] = 60.0,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write; default: beside the file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a scenario with its trace, a workload and settings of what a vLLM served.

    `replay NAME.case.json --check` says whether this project's scheduler explains its decisions;
    `compare NAME.requests.jsonl --config NAME.settings.yaml --vary evictor=lru,arc` what others
    would have changed. KV events have no decisions: they make a workload and settings.
    """
    refuse_settings(given, "a recording has its own; leave it out")
    if (file is None) == (kv_events is None):
        raise SettingsError("give either a file, or --kv-events with the address of a vLLM")
    folder = output or (file.parent if file else Path())
    if not folder.is_dir():
        raise SettingsError(f"there is no folder {folder}; make it first")
    if kv_events is not None:
        told = write_events(receive_events(kv_events, seconds), "kv_events", folder)
    elif file is not None and holds_events(file):
        told = write_events(read_events(file), file.name.partition(".")[0] or "kv_events", folder)
    elif file is not None:
        told = write(read_recording(file), folder)
    if as_json:
        echo(json.dumps(told))
        return
    seen = f"{counted(told['requests'], 'request')}, {told['follow']} continue another's answer"
    if "steps" in told:
        seen = f"{seen}, {told['aborted']} aborted; {counted(told['steps'], 'step')}"
    echo(seen)
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
    paths = _written(
        folder,
        {
            f"{name}.case.json": json.dumps(case if recording.is_whole else {"scenario": scenario}),
            f"{name}.requests.jsonl": "".join(
                json.dumps(line) + "\n" for line in recording.request_lines()
            ),
            f"{name}.settings.yaml": yaml.safe_dump(recording.header.settings, sort_keys=False),
        },
    )
    requests, ends = recording.requests, recording.ends
    return {
        "name": name,
        "requests": len(requests),
        "steps": len(recording.trace),
        "follow": sum(recording.follows(each) is not None for each in requests.values()),
        "aborted": sum(end.aborted for end in ends.values()),
        "unfinished": len(requests.keys() - ends.keys()),
        "notes": notes,
        "files": paths,
    }


def write_events(events: KvEvents, name: str, folder: Path) -> dict[str, Any]:
    """Write the workload of KV events, and settings in which it fits; return what is told of them.

    The cache is given as many blocks as were findable at once, the least that vLLM can have had.
    """
    requests, notes = events.requests()
    ends = [length + each.output for first in requests for each, length in first.whole_prompts()]
    settings = {
        "profile": "vllm-v1",
        "block_size": events.block_size,
        "num_blocks": max(events.most_cached, -(-max(ends) // (events.block_size or 1))),
        "max_model_len": max(ends),
    }
    paths = _written(
        folder,
        {
            f"{name}.requests.jsonl": "".join(request_lines(requests)),
            f"{name}.settings.yaml": yaml.safe_dump(settings, sort_keys=False),
        },
    )
    links = [follows for first in requests for _, follows in first.links()]
    return {
        "name": name,
        "requests": len(links),
        "batches": events.num_batches,
        "follow": sum(each is not None for each in links),
        "notes": notes,
        "files": paths,
    }


def _written(folder: Path, files: Mapping[str, str]) -> list[str]:
    for filename, text in files.items():
        write_text(folder / filename, text)
    return [str(folder / filename) for filename in files]
