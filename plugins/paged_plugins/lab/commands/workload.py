"""``paged-core lab workload``: what a workload asks, as a table and as a file."""

from __future__ import annotations

from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json, print_table
from paged_plugins.command_options import check_writable
from paged_plugins.workloads.distinct_blocks import DistinctBlocks
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.spec import MAX_REQUESTS, WorkloadSpec
from paged_plugins.workloads.traces.files import (
    CHARACTERS_PER_TOKEN,
    TokenCount,
    estimated_tokens,
)
from paged_plugins.workloads.traces.request_lines import request_lines
from paged_plugins.written_files import replacing


class WorkloadSummary:
    """Counts requests as they are drawn; memory grows by some numbers for each."""

    def __init__(self, block_size: int) -> None:
        self._block_size, self._blocks = block_size, DistinctBlocks(block_size)
        self._num_first = 0
        self._last = 0.0
        self._num_shared = 0
        self._depth = 0
        self._new = array("q")
        self._prompts = array("q")
        self._outputs = array("q")
        self._beginnings: set[int] = set()
        """Hashes of what the prompts so far begin with: their first part, the first two ..."""

    def add(self, first: WorkloadRequest) -> None:
        """Count a request and those that follow it."""
        self._num_first += 1
        self._blocks.add(first)
        self._last = first.at
        self._num_shared += self._num_known(first)
        turns = {first.id: 1}
        """By id, which turn of its conversation a request is."""
        for request, prompt in first.whole_prompts():
            turn = turns.pop(request.id)
            turns |= dict.fromkeys((each.id for each in request.followers), turn + 1)
            self._num_shared += prompt - request.num_new
            self._depth = max(self._depth, turn)
            self._new.append(request.num_new)
            self._prompts.append(prompt)
            self._outputs.append(request.output * request.n)

    def figures(self) -> dict[str, Any]:
        """Return the numbers by name; lengths in tokens, times in seconds.

        ``shared`` is the share of prompt tokens that an earlier prompt or answer had in the same
        place: what a prefix cache without end could serve.
        """
        num_requests = len(self._new)
        return {
            "requests": num_requests,
            "first_requests": self._num_first,
            "most_turns": self._depth,
            "last_arrival_s": round(self._last, 3),
            "first_requests_per_s": round(self._num_first / self._last, 3) if self._last else None,
            "prompt": _percentiles(self._prompts),
            "new": _percentiles(self._new),
            "output": _percentiles(self._outputs),
            "prompt_tokens": sum(self._prompts),
            "output_tokens": sum(self._outputs),
            "block_size": self._block_size,
            "distinct_blocks": len(self._blocks),
            "shared": round(self._num_shared / sum(self._prompts), 4) if num_requests else None,
        }

    def _num_known(self, first: WorkloadRequest) -> int:
        """Return the tokens that a first request shares with the beginning of an earlier one."""
        num_known, is_known, beginning = 0, True, hash(first.cache_salt)
        for part in first.prompt:
            beginning = hash((beginning, part))
            is_known = is_known and beginning in self._beginnings
            num_known += len(part) if is_known else 0
            self._beginnings.add(beginning)
        return num_known


def _percentiles(values: array[int]) -> dict[str, int] | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return {"p50": ordered[last // 2], "p90": ordered[last * 9 // 10], "max": ordered[-1]}


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
        int | None,
        typer.Option(
            min=1, max=MAX_REQUESTS, help="Requests in all (default: as the workload says)."
        ),
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
    if fewer := spec.check():
        echo(fewer, err=True)
    count_tokens, note = _token_count(spec, given)
    drawn = spec.build(count_tokens).draw(seed)
    summary = WorkloadSummary(given.resolve().settings.block_size)
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
        f"distinct blocks of {figures['block_size']} tokens": figures["distinct_blocks"],
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
