"""Engines as arms of a study, each resident in a process of its own: this one, and others.

An engine is run by a script, with the Python of whatever environment has it; ``peer.py`` beside the
scripts is the other side of what is said here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, Self

import psutil

from paged_core.errors import EngineError, SettingsError
from paged_core.processes.child import LocalChild
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, RunTotals
from paged_plugins.lab.tasks.task import Ran, Task
from paged_plugins.workloads.batch import NUM_IDS, by_turn, is_batch, longest
from paged_plugins.workloads.request import WorkloadRequest, token_ids
from paged_plugins.workloads.spec import WorkloadSpec

_OLDEST = (3, 11)
_ANSWER_SECONDS = 60
_ENDING = 10.0
"""Seconds that an engine may take to end when nothing more is asked of it."""
_WINDOW = 0.05
_IDLE_SHARE = 0.2
"""A process is idle if it uses at most this share of a core during ``_WINDOW`` seconds."""
_OF_TRANSFORMERS = ("transformers", "transformers")


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to compare with, and how to install it."""

    name: str
    script: str
    """Its file, without the suffix."""
    kind: str
    """Its class in the script."""
    package: str
    """The package that must be importable."""
    distribution: str
    """The distribution that provides it."""


OURS = Peer("paged_core", "paged_core_peer", "PagedCore", "paged_core", "paged-core")
_NANO_VLLM = "git+https://github.com/GeeeekExplorer/nano-vllm"
PEERS = {
    name: Peer(name, *rest)
    for name, *rest in (
        ("transformers_static", "transformers_peer", "TransformersStatic", *_OF_TRANSFORMERS),
        (
            "transformers_continuous",
            "transformers_peer",
            "TransformersContinuous",
            *_OF_TRANSFORMERS,
        ),
        ("nano_vllm", "nano_vllm_peer", "NanoVllm", "nanovllm", _NANO_VLLM),
        ("vllm", "vllm_peer", "Vllm", "vllm", "vllm"),
        ("openvino", "openvino_peer", "OpenVino", "openvino_genai", "openvino-genai"),
        ("llama_cpp", "llama_cpp_peer", "LlamaCpp", "llama_cpp", "llama-cpp-python"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Model and settings that an engine is to load."""

    model: str
    """A folder, or a hub id."""
    dtype: str
    """``bfloat16``, ``float16`` or ``float32``."""
    threads: int
    max_model_len: int
    longest_request: int
    """Tokens of the longest request, prompt and output."""
    cache_gib: int
    """GiB of KV cache, for peers that need to be told."""
    settings: dict[str, Any]
    """Settings of our own engine."""
    device: str = "cpu"
    """As torch names it, for peers that need to be told."""
    temperature: float = 0.0
    """0: greedy."""
    write_cache: bool = False
    """True if our own engine writes all of its cache before it is ready."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine and its Python."""

    peer: Peer
    python: str | None = None
    """Path of its interpreter; ``None``: ours."""
    settings: EngineSettings | None = None
    """Settings of this engine, where it takes part with others than those of the command."""
    label: str | None = None
    """Name in tables; ``None``: as the peer is called."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.label or self.peer.name


def named_peers(
    named: Sequence[str], model: str, dtype: str, temperature: float = 0.0
) -> list[Choice]:
    """Return peers given as ``NAME``, from this environment, or ``NAME=PYTHON``, from another.

    Raises:
        SettingsError: there is no such peer, it is named twice, its Python, package or converted
            checkpoint is missing, or it cannot decode at the temperature.
    """
    chosen: dict[str, Choice] = {}
    for text in named:
        name, _, path = text.partition("=")
        if name not in PEERS:
            raise SettingsError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
        if name in chosen:
            raise SettingsError(f"peer {name!r} is named twice; name it once")
        peer, python = PEERS[name], str(Path(path).expanduser()) if path else None
        found = ask(peer, python, model, dtype, temperature)
        shown = python or sys.executable
        if problem := found["problem"]:
            raise SettingsError(
                f"peer {name!r} cannot take part at temperature {temperature:g}: {problem}"
            )
        if not found["installed"]:
            raise SettingsError(
                f"peer {name!r} needs the package {peer.package}, and {shown} does not find it; "
                f"install it with `{shown} -m pip install {peer.distribution}`, or name the Python "
                f"of an environment that has it: --peer {name}=PATH"
            )
        if missing := found["missing"]:
            raise SettingsError(f"peer {name!r} has no checkpoint: {missing}")
        chosen[name] = Choice(peer, python)
    return list(chosen.values())


def ask(
    peer: Peer, python: str | None, model: str, dtype: str, temperature: float
) -> dict[str, Any]:
    """Ask a peer's script whether its package is ``installed``, and what is ``missing`` or a
    ``problem``; nothing is loaded.

    Raises:
        SettingsError: there is no Python at the path, or it is too old.
    """
    question = {"model": model, "dtype": dtype, "temperature": temperature}
    command = _command(peer, python, "check", question)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=True,
            env=_environ(python),
        )
        found: dict[str, Any] = json.loads(done.stdout)
        version = found["python"]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(
            f"{command[0]} does not work as a Python ({error.__class__.__name__}: "
            f"{str(error)[:200]}); give the path of an environment's Python, such as "
            "/opt/other/bin/python"
        ) from error
    if tuple(version) < _OLDEST:
        raise SettingsError(
            f"{command[0]} is Python {version[0]}.{version[1]}, and a peer needs "
            f"{_OLDEST[0]}.{_OLDEST[1]} or newer; make an environment with a newer Python"
        )
    return found


def _command(peer: Peer, python: str | None, what: str, values: dict[str, Any]) -> list[str]:
    """Return the command line of a peer's script.

    The scripts are beside this module in an installed package, and in ``tools`` in a checkout.
    """
    shipped = Path(__file__).with_name("peer_scripts")
    folder = shipped if shipped.is_dir() else Path(__file__).parents[4] / "tools" / "peers"
    script = str(folder / f"{peer.script}.py")
    return [python or sys.executable, script, what, json.dumps({"name": peer.kind, **values})]


def _environ(python: str | None) -> dict[str, str]:
    """Return our environment; for another Python, without ``PYTHONPATH`` and the like."""
    left_out = () if python is None else ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in left_out}


class PeerProcess:
    """One engine; leaving its ``with`` ends the process.

    Args:
        load: what all engines are to load; settings of the choice replace those in it.

    Raises:
        EngineError: it cannot load the model, or dies; its own messages are on standard error.
    """

    def __init__(self, choice: Choice, load: Load) -> None:
        self.name = choice.name
        if choice.settings is not None:
            settings = choice.settings.model_dump(mode="json", exclude_unset=True)
            load = replace(load, settings=settings)
        started = perf_counter()
        self._child = LocalChild(
            _command(choice.peer, choice.python, "serve", asdict(load)),
            choice.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            environ=_environ(choice.python) | {"OMP_NUM_THREADS": str(load.threads)},
        )
        try:
            ready = self._answer()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        self.version: str = ready["version"]
        self.cache_written: bool | None = ready["cache_written"]
        self.vocab_size: int | None = ready["vocab_size"]
        self.start_seconds = perf_counter() - started

    def run(self, firsts: Sequence[WorkloadRequest]) -> dict[str, Any]:
        """Complete requests; return ``elapsed``, ``peak_memory`` and ``outputs``, the tokens of
        each, by turn."""
        places: dict[str | None, int | None] = {None: None}
        items = []
        for place, (request, follows) in enumerate(by_turn(firsts)):
            places[request.id] = place
            prompt = token_ids(request.prompt, None)
            items.append(
                {"prompt": prompt, "num_output": request.output, "follows": places[follows]}
            )
        with suppress(BrokenPipeError):  # its last reply is read below
            self._child.stdin.write(json.dumps(items).encode() + b"\n")
            self._child.stdin.flush()
        return self._answer()

    def settle(self, seconds: float = 2.0) -> bool:
        """Wait until the process is idle, for at most ``seconds``; return whether it is.

        Threads of an engine may spin for a while after their last work, and would slow down the
        engine that runs next.
        """
        end = monotonic() + seconds
        used = self._processor_seconds()
        while True:
            sleep(_WINDOW)
            before, used = used, self._processor_seconds()
            if used - before <= _IDLE_SHARE * _WINDOW:
                return True
            if monotonic() > end:
                return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        # one that was interrupted may be in the middle of a run
        self._child.close(_ENDING if kind is None else 0.0)
        self._child.stdout.close()

    def _processor_seconds(self) -> float:
        """Return the processor time of the process and its children that are alive."""
        total = 0.0
        try:
            process = psutil.Process(self._child.pid)
            for one in [process, *process.children(recursive=True)]:
                times = one.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            return total
        return total

    def _answer(self) -> dict[str, Any]:
        line = self._child.stdout.readline()
        if not line:
            how, _ = self._child.how_it_ended()
            raise EngineError(
                f"{self._child.name} {how} and without an answer; its messages are on standard "
                "error"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer


# ---------------------------------------------------------------------- engines as arms


_LENGTH_STEP = 1024
_CACHE_GIB = 4
_ANY_TOKEN = 1 << 31


def load_of(
    settings: EngineSettings, workloads: Sequence[WorkloadSpec], *, device: str, temperature: float
) -> Load:
    """Return what all engines are to load for workloads; ``max_model_len`` is the longest request,
    rounded up to a multiple of 1,024 tokens.

    Raises:
        SettingsError: a workload is none of requests that arrive at once, or the model or its dtype
            may be another one in each engine.
    """
    if settings.dtype == "auto":
        raise SettingsError(
            "--dtype auto may select a different dtype in each engine; give bfloat16 or float32"
        )
    length = 0
    for workload in workloads:
        firsts = list(workload.build().draw(0))
        if not is_batch(firsts):
            raise SettingsError(
                f"workload {workload.name}: engines in processes of their own are given all "
                "requests at once; choose one without arrivals, such as W1"
            )
        length = max(length, longest(firsts))
    memory = settings.kv_cache_memory
    if isinstance(memory, float):
        memory = int(memory * psutil.virtual_memory().available)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Load(
        model=settings.model,
        dtype=settings.dtype,
        threads=settings.threads or min(psutil.cpu_count(logical=False) or 1, usable or 1),
        max_model_len=-(-length // _LENGTH_STEP) * _LENGTH_STEP,
        longest_request=length,
        cache_gib=max(1, round(memory / (1 << 30))) if memory else _CACHE_GIB,
        settings=settings.model_dump(mode="json", exclude_unset=True),
        device=device,
        temperature=temperature,
    )


class ResidentEngines:
    """Runs the tasks of arms on an engine each, which is resident while its tasks run.

    All engines are loaded before the first task, and take turns; or one at a time, each for all of
    its tasks. The tasks of one that fails fail, and the others go on.

    Args:
        engines: by the label of the arm.
        load: for all of them.
        tell: called with what is to be known of an engine besides its results.
    """

    def __init__(
        self,
        engines: Mapping[str, Choice],
        load: Load,
        *,
        one_at_a_time: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._choices = engines
        self._load = load
        self._one_at_a_time = one_at_a_time
        self._tell = tell
        self._vocab_size: int | None = None
        self._outputs: dict[str, list[list[int]]] = {}
        """The answers of each arm to the first requests."""

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Ran]:
        """Run tasks in their order, or arm by arm; yield each when it has ended."""
        groups = [tasks]
        if self._one_at_a_time:
            arms = dict.fromkeys(task.arm for task in tasks)
            groups = [[task for task in tasks if task.arm == arm] for arm in arms]
        for group in groups:
            yield from self._run(group)
        first = next(iter(self._outputs.values()), [])
        for arm, answers in list(self._outputs.items())[1:]:
            same = sum(one == other for one, other in zip(answers, first, strict=True))
            self._tell(f"{arm}: {same} of {len(first)} answers have the tokens of the first arm's")

    def _run(self, tasks: Sequence[Task]) -> Iterator[Ran]:
        engines: dict[str, PeerProcess | str] = {}
        with ExitStack() as stack:
            for arm in dict.fromkeys(task.arm for task in tasks):
                try:
                    engines[arm] = self._started(stack, arm)
                except EngineError as error:
                    engines[arm] = str(error)
            for task in tasks:
                engine = engines[task.arm]
                if isinstance(engine, str):
                    yield Ran(task, None, engine)
                    continue
                try:
                    record = self._record(engine, task)
                except EngineError as error:
                    engines[task.arm] = str(error)
                    yield Ran(task, None, str(error))
                    continue
                engine.settle()
                yield Ran(task, record, None)

    def _started(self, stack: ExitStack, arm: str) -> PeerProcess:
        engine = stack.enter_context(PeerProcess(self._choices[arm], self._load))
        self._vocab_size = self._vocab_size or engine.vocab_size
        written = {None: "not known", True: "yes", False: "no"}[engine.cache_written]
        self._tell(
            f"{arm}: {engine.version}, started in {engine.start_seconds:.1f} s; cache written "
            f"before: {written}"
        )
        prompt = (range(3, 27),)
        engine.run([WorkloadRequest(id=str(i), prompt=prompt, output=4) for i in range(2)])
        if not engine.settle():
            self._tell(
                f"{arm} uses the processor while it waits for requests, which slows down the "
                "others; compare with it alone (--one-at-a-time)"
            )
        return engine

    def _record(self, engine: PeerProcess, task: Task) -> RunRecord:
        """Run a task; EngineError if the engine fails, or generates a wrong number of tokens."""
        vocab_size = self._vocab_size or _ANY_TOKEN
        firsts = [
            _with_tokens(first, vocab_size) for first in task.workload.build().draw(task.seed)
        ]
        answer = engine.run(firsts)
        requests = [request for request, _ in by_turn(firsts)]
        for output, request in zip(answer["outputs"], requests, strict=True):
            if len(output) != request.output:
                raise EngineError(
                    f"{engine.name} generated {len(output)} tokens instead of {request.output}, so "
                    "its time cannot be compared"
                )
        self._outputs.setdefault(task.arm, answer["outputs"])
        return _record_of(requests, answer)


def _with_tokens(first: WorkloadRequest, vocab_size: int) -> WorkloadRequest:
    """Return a request, and those that follow it, with token ids of a vocabulary as its content."""
    ids = token_ids(first.prompt, None)
    tokens = [each % vocab_size for each in ids]
    if max(ids, default=0) >= NUM_IDS:  # drawn content, of which none is a token id
        tokens = token_ids(first.prompt, vocab_size)
    followers = tuple(_with_tokens(each, vocab_size) for each in first.followers)
    return replace(first, prompt=(tuple(tokens),), followers=followers)


def _record_of(requests: Sequence[WorkloadRequest], answer: Mapping[str, Any]) -> RunRecord:
    """Return the record of a run of which the time of the whole batch is known, and that of each
    request where the engine tells it.
    """
    elapsed = answer["elapsed"]
    times = answer.get("times") or [[0.0, None, elapsed]] * len(requests)
    records = [
        RequestRecord(
            id=request.id,
            arrival=arrival,
            admitted=None,
            first_token=first,
            finished=ended,
            num_prompt=request.num_new,
            num_cached=0,
            num_output=request.output,
            num_preemptions=0,
            finish_reason="length",
        )
        for request, (arrival, first, ended) in zip(requests, times, strict=True)
    ]
    totals = RunTotals(elapsed=elapsed, peak_memory=answer["peak_memory"])
    return RunRecord(requests=records, totals=totals)
