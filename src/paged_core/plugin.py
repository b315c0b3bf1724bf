"""The plugin ``core``: the engine's own slots, and the commands that run and inspect an engine."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.plugins.component import Command, Slot
from paged_core.plugins.hooks import hookimpl

_SLOTS: tuple[tuple[str, str, str | tuple[str, ...], str], ...] = (
    # settings key, interface, default (a tuple where several may be chosen), summary
    (
        "block_allocator",
        "allocator:BlockAllocator",
        "hash_cached",
        "which blocks are handed out, and which are found again by what they hold",
    ),
    ("evictor", "evictor:Evictor", "lru", "which idle cached block is evicted first"),
    ("queue_order", "queue_order:QueueOrder", "fcfs", "which waiting request is admitted first"),
    (
        "length_predictor",
        "length_predictor:LengthPredictor",
        "none",
        "how many tokens a request is expected to generate",
    ),
    (
        "admission",
        "admission:Admission",
        "always",
        "whether a request that arrives is served, refused or held back",
    ),
    ("scheduler", "scheduler:Scheduler", "token_budget", "what each step computes, and for whom"),
    ("victim", "victim:Victim", "newest", "which request is preempted when blocks run out"),
    ("preemption", "preemption:Preemption", "recompute", "how a preempted request is restored"),
    ("attention", "attention:AttentionBackend", "auto", "how paged attention is computed"),
    ("runner", "runner:Runner", "auto", "what runs the model"),
    ("executor", "executor:Executor", "local", "where the model runs"),
    (
        "communicator",
        "communicator:Communicator",
        "auto",
        "how ranks of one model exchange tensors",
    ),
    ("grammar", "grammar:GrammarBackend", "auto", "what holds an output to a form"),
    ("observers", "observer:Observer", (), "what is told of each step and request"),
)
_COMMANDS = (
    Command("generate", "paged_core.cli.generate:command", "Complete prompts, offline."),
    Command("plugins", "paged_core.cli.plugins:command", "What is installed, and its options."),
    Command("config", "paged_core.cli.config:command", "The settings, and where each comes from."),
    Command("schema", "paged_core.cli.schema:command", "The JSON schema of a settings file."),
)


@hookimpl
def paged_core_slots() -> Iterator[Slot]:
    for key, interface, default, summary in _SLOTS:
        path, many = f"paged_core.interfaces.{interface}", isinstance(default, tuple)
        auto = default == "auto"
        yield Slot(key, path, default, many, summary=summary, auto=auto, makeable=False)


@hookimpl
def paged_core_commands() -> tuple[Command, ...]:
    return _COMMANDS
