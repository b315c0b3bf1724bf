"""``paged-core lab workload``: what a workload asks, as a table and as a file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json, print_table
from paged_plugins.command_options import check_writable
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.spec import WorkloadSpec
from paged_plugins.workloads.summary import WorkloadSummary
from paged_plugins.workloads.traces.files import (
    CHARACTERS_PER_TOKEN,
    TokenCount,
    estimated_tokens,
)
from paged_plugins.workloads.traces.request_lines import request_lines
from paged_plugins.written_files import replacing


def workload_command(
    given: SettingsArgs,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help=f"{', '.join(names())}; a specification (YAML), requests (JSONL), or a trace of "
            "ShareGPT, Azure, BurstGPT, Mooncake or vllm bench.",
            show_default=False,
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds draw equal requests.")] = 0,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests in all (default: as the workload says).")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the requests, a line of JSON each.",
            callback=check_writable,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a workload, print what it asks, and write it to a file.

    The file reads back as the same requests, wherever a workload is asked for. Texts of a trace are
    counted with the tokenizer of --model; without one, their lengths are estimated.
    """
    spec = workload_spec(workload)
    if requests is not None:
        spec = spec.model_copy(update={"requests": requests})
    count_tokens, note = _token_count(spec, given)
    drawn = spec.build(count_tokens).draw(seed)
    summary = WorkloadSummary()
    with ExitStack() as stack:
        file = None
        if output is not None:
            file = stack.enter_context(replacing(output))
        for first in drawn:
            summary.add(first)
            if file is not None:
                file.writelines(line.encode() for line in request_lines([first]))
    if note:
        echo(note, err=True)
    figures = {"workload": spec.name, "seed": seed, **summary.figures()}
    if as_json:
        print_json(figures)
    else:
        _print(spec, figures)


def _token_count(spec: WorkloadSpec, given: SettingsArgs) -> tuple[TokenCount, str | None]:
    """Return what counts the tokens of texts, and what to say of it."""
    if not spec.has_text():
        return estimated_tokens, None
    resolved = given.resolve()
    if resolved.origins["model"].layer == "default":
        return estimated_tokens, (
            f"prompts and answers are texts: their lengths are estimated, {CHARACTERS_PER_TOKEN} "
            "characters a token; give --model to count with its tokenizer"
        )
    from paged_core.llm import LLM

    llm = LLM.from_settings(resolved.settings, resolved.registry)
    encode = llm.get_tokenizer().encode
    llm.close()
    return lambda text: len(encode(text, add_special_tokens=False)), None


def _print(spec: WorkloadSpec, figures: dict[str, Any]) -> None:
    about = f"{spec.name}: {spec.about}" if spec.about else spec.name
    shared, rate = figures["shared"], figures["first_requests_per_s"]
    counts = {
        "requests": figures["requests"],
        "first requests": figures["first_requests"],
        "most turns": figures["most_turns"],
        "last arrival": f"{figures['last_arrival_s']:g} s",
        "first requests per second": "all at once" if rate is None else f"{rate:g}",
        "prompt tokens": figures["prompt_tokens"],
        "of them in an earlier prompt or answer": "-" if shared is None else f"{100 * shared:.1f}%",
        "output tokens": figures["output_tokens"],
    }
    echo(f"{about}\n")
    print_table("", ["in all", ""], counts.items())
    lengths = {"prompt": "whole prompt", "new": "new in the prompt", "output": "output"}
    rows = [
        [title, *(figures[key] or dict.fromkeys(("p50", "p90", "max"), "-")).values()]
        for key, title in lengths.items()
    ]
    echo("")
    print_table("", ["tokens of a request", "p50", "p90", "max"], rows)
