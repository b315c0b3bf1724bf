"""``paged-core generate``: offline generation."""

from __future__ import annotations

import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paged_core.cli import FAILED, INTERRUPTED, OK
from paged_core.cli.options import SettingsArgs
from paged_core.errors import PagedCoreError, PluginError, RequestError, SettingsError

if TYPE_CHECKING:
    from paged_core.cli.prompts_file import Task
    from paged_core.llm import LLM
    from paged_core.sampling_params import SamplingParams
    from paged_core.text.generation import Generation

_MAX_TOKENS = 64
_EARLY_STOPPING: dict[str, Any] = {"true": True, "false": False, "never": "never"}


def command(
    given: SettingsArgs,
    prompt: Annotated[list[str] | None, typer.Argument(help="Texts to complete.")] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option(
            help="A prompt a line (-: standard input), or .jsonl: prompts or messages with "
            "parameters, or an OpenAI batch."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens to generate.", show_default="64, or the model's")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy.", show_default="0, or the model's")
    ] = None,
    n: Annotated[int, typer.Option(help="Sequences per prompt.")] = 1,
    best_of: Annotated[int | None, typer.Option(help="Sample so many, print the best --n.")] = None,
    beam_width: Annotated[
        int | None, typer.Option(help="Search with beams, print the best --n.")
    ] = None,
    length_penalty: Annotated[float, typer.Option(help="Above 0 favours long beams.")] = 1.0,
    early_stopping: Annotated[
        str, typer.Option(help="With beams: true, false or never; when the search may end.")
    ] = "false",
    top_k: Annotated[int | None, typer.Option(help="Of so many best tokens; 0: all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of the best with this total.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Share of the best, at least.")] = None,
    presence_penalty: Annotated[float, typer.Option(help="Against any repetition.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Against each repetition.")] = 0.0,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Of prompt and output; 1: none.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Ends a sequence; repeatable.")] = None,
    stop_token_id: Annotated[list[int] | None, typer.Option(help="Ends a sequence.")] = None,
    min_tokens: Annotated[int, typer.Option(help="No end before so many tokens.")] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="Report so many best tokens.")] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for the prompt.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it comes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per prompt.")] = False,
) -> int:
    """Complete prompts and print what was generated.

    Ctrl-C prints what is finished and exits with 130; a second one stops at once.
    """
    if stream and as_json:
        raise SettingsError("--stream and --json exclude each other; choose one")
    asked = _asked(
        n=n,
        best_of=best_of,
        beam_width=beam_width,
        length_penalty=length_penalty,
        early_stopping=_EARLY_STOPPING.get(early_stopping, early_stopping),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    from paged_core.cli.prompts_file import read_tasks, task_of

    tasks = [task_of(text, asked) for text in prompt or ()]
    tasks += read_tasks(prompts_file, asked) if prompts_file else []
    if not tasks:
        raise SettingsError("give a prompt, or a file of prompts with --prompts-file")
    if stream and any(task.sampling.chooses_at_end for task in tasks):
        raise SettingsError(
            "--stream prints text as it comes, and --beam-width and --best-of choose theirs when "
            "all of it is there; leave one of them out"
        )
    resolved = given.resolve()
    report: _Report
    if as_json:
        report = _JsonLines(tasks, resolved.settings.model)
    else:
        report = _Stream(tasks) if stream else _Text(tasks)
    for place, task in enumerate(tasks):
        if task.problem is not None:
            report.refused(place, task.problem)
    if all(task.problem is not None for task in tasks):
        return FAILED
    from paged_core.llm import LLM

    with LLM.from_settings(resolved.settings, resolved.registry) as llm:
        return _generate(llm, tasks, report)


def _asked(**values: Any) -> dict[str, Any]:
    """Return the sampling parameters that the options ask for.

    Raises:
        SettingsError: they are out of range, or contradict each other.
    """
    from paged_core.sampling_params import SamplingParams

    asked = {name: value for name, value in values.items() if value is not None}
    try:
        SamplingParams(**{"max_tokens": _MAX_TOKENS, **asked})
    except RequestError as error:
        raise SettingsError(str(error)) from None
    return asked


def _sampling(llm: LLM, task: Task) -> SamplingParams:
    """Return the parameters of a task, and the model's own where it says nothing."""
    from paged_core.sampling_params import SamplingParams

    return SamplingParams(**llm.front_end.completed(task.asked, max_tokens=_MAX_TOKENS))


def _generate(llm: LLM, tasks: Sequence[Task], report: _Report) -> int:
    """Run all prompts that can be run; the exit status says whether that was all of them."""
    generations: list[Generation] = []
    for place, task in enumerate(tasks):
        if task.problem is not None:
            continue
        try:
            generation = llm.add(_prompt(llm, task), _sampling(llm, task), **task.fields)
        except (RequestError, PluginError) as error:
            report.refused(place, error)
        else:
            report.places[generation.group.id] = place
            generations.append(generation)
    status = FAILED if report.has_refusals else OK
    with _progress(len(tasks), report) as advance, _Interrupt() as interrupt:
        for changed in llm.steps(generations):
            for generation in changed:
                if generation.finished:
                    report.finished(generation)
                    advance()
                else:
                    report.advanced(generation)
            if interrupt.asked:
                report.interrupted(generations)
                return INTERRUPTED
    failed = any(
        sequence.error is not None
        for generation in generations
        for sequence in generation.group.sequences
    )
    return FAILED if failed else status


def _prompt(llm: LLM, task: Task) -> Any:
    """Return a task's prompt; messages go through the model's chat template."""
    if not isinstance(task.prompt, dict) or "messages" not in task.prompt:
        return task.prompt
    tokenizer = llm.get_tokenizer()
    text = str(
        tokenizer.apply_chat_template(
            task.prompt["messages"], tokenize=False, add_generation_prompt=True
        )
    )
    return {"prompt": text, "add_special_tokens": False}  # the template adds them


class _Interrupt:
    """Turns the first Ctrl-C into a request to stop after the current step; a second one exits."""

    asked = False

    def __enter__(self) -> _Interrupt:
        self._previous = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _ask(self, _number: int, _frame: object) -> None:
        if self.asked:
            os._exit(INTERRUPTED)
        self.asked = True


class _Report(ABC):
    """Prints results in the order of the prompts, each as soon as those before it are printed."""

    quiet = False

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.places: dict[str, int] = {}
        self.has_refusals = False
        self._tasks = tasks
        self._ready: dict[int, Callable[[], None]] = {}
        self._next = 0

    def refused(self, place: int, error: PagedCoreError) -> None:
        """The prompt at ``place`` can never be served."""
        self.has_refusals = True
        is_named = len(self._tasks) == 1 or self._tasks[place].problem is not None
        where = "" if is_named else f"prompt {place + 1}: "
        sys.stderr.write(f"error: {where}{error}\n")
        self._put(place, lambda: self.show_refusal(self._tasks[place], error))

    def finished(self, generation: Generation) -> None:
        """A request has ended."""
        place = self.places[generation.group.id]
        for sequence in generation.group.sequences:
            if sequence.error is not None:
                sys.stderr.write(f"error: prompt {place + 1}: {sequence.error}\n")
                break
        self._put(place, lambda: self.show(generation))

    def advanced(self, generation: Generation) -> None:  # noqa: B027 - a choice
        """A request that has not ended gained tokens."""

    def interrupted(self, generations: Sequence[Generation]) -> None:
        """Print what is finished although something before it is not."""
        for place in sorted(self._ready):
            self._ready.pop(place)()
        sys.stdout.flush()
        unfinished = sum(not generation.finished for generation in generations)
        left = f": {unfinished} of {len(self._tasks)} unfinished" if unfinished else ""
        sys.stderr.write(f"interrupted{left}\n")

    @abstractmethod
    def show(self, generation: Generation) -> None:
        """Print one request."""

    def show_refusal(self, task: Task, error: PagedCoreError) -> None:  # noqa: B027 - a choice
        """Print something in the place of a request that was refused."""

    def _put(self, place: int, show: Callable[[], None]) -> None:
        self._ready[place] = show
        while self._next in self._ready:
            self._ready.pop(self._next)()
            self._next += 1


class _JsonLines(_Report):
    """One object per prompt; in the batch format, for what was asked for in it."""

    def __init__(self, tasks: Sequence[Task], model: str) -> None:
        super().__init__(tasks)
        self._model = model

    def show(self, generation: Generation) -> None:
        from paged_core.text.outputs import to_json

        batch, output = self._tasks[self.places[generation.group.id]].batch, generation.output()
        row = batch.response(output, self._model) if batch else to_json(output)
        _print(json.dumps(row, ensure_ascii=False))

    def show_refusal(self, task: Task, error: PagedCoreError) -> None:
        if task.batch:
            _print(json.dumps(task.batch.failure(str(error)), ensure_ascii=False))
            return
        prompt = task.prompt
        token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else prompt
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        completion: dict[str, Any] = {
            "index": 0,
            "text": None,
            "token_ids": [],
            "finish_reason": "error",
            "is_cut": False,
            "error": str(error),
            "cumulative_logprob": None,
            "logprobs": None,
        }
        row = {
            "prompt": text if isinstance(text, str) else None,
            "prompt_token_ids": token_ids if isinstance(token_ids, list) else [],
            "num_cached_tokens": None,
            "outputs": [completion],
        }
        _print(json.dumps(row, ensure_ascii=False))


class _Text(_Report):
    """The prompt and what follows it, for people."""

    def show(self, generation: Generation) -> None:
        output = generation.output()
        for completion in output.outputs:
            if len(output.outputs) > 1:
                _print(f"[{completion.index}]")
            if completion.text is None:
                _print(" ".join(map(str, completion.token_ids)))
            else:
                _print(f"{output.prompt or ''}{completion.text}")
        if len(self._tasks) > 1:
            _print("")


class _Stream(_Text):
    """The same, but the first prompt that is not printed yet is printed as its text comes."""

    quiet = True

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        self._started = False

    def advanced(self, generation: Generation) -> None:
        if self.places[generation.group.id] == self._next:
            self._show_new_text(generation)

    def show(self, generation: Generation) -> None:
        if (
            len(generation.group.sequences) > 1
            or generation.text(generation.group.sequences[0]) is None
        ):
            super().show(generation)
            return
        self._show_new_text(generation)
        self._started = False
        _print("\n" if len(self._tasks) > 1 else "")

    def _show_new_text(self, generation: Generation) -> None:
        text = generation.update(generation.group.sequences[0])
        if text is None or generation.group.request.sampling.n > 1:
            return
        if not self._started:
            sys.stdout.write(generation.prompt or "")
            self._started = True
        sys.stdout.write(text.take())
        sys.stdout.flush()


@contextmanager
def _progress(total: int, report: _Report) -> Iterator[Callable[[], None]]:
    """Show a progress bar on standard error if it is a terminal and there are several prompts."""
    if total < 2 or report.quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(
        "generating",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("generating", total=total)
        yield lambda: bar.advance(task)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
