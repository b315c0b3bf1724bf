"""Decisions of policies, here and in another process whose strings have other hashes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from traceback import format_exc
from typing import Any

from paged_core.errors import RequestError, SettingsError
from paged_core.plugins.registry import Registry
from paged_testing.doubles import WatchedScheduler
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import FOR_EVERY_POLICY, Situation

Decide = Callable[..., dict[str, list[Any]]]
"""A function that can be pickled, and takes the arguments of :func:`decisions`."""

_START = "import sys; sys.path[:] = {path!r}; from paged_testing.chance import answer; answer()"


def decisions(
    registry: Registry,
    slot: str,
    settings: Mapping[str, Any],
    *,
    beside: Mapping[str, Any] | None = None,
) -> dict[str, list[Any]]:
    """Return what engines with a component decide in each step of written situations.

    Args:
        slot: that of the component, which the settings name.
        beside: settings of another engine that is there, in the midst of serving such requests;
            it is made before the engine in every other situation, and after it in the others.
    """
    found = {}
    for number, (name, situation) in enumerate(FOR_EVERY_POLICY.items()):
        with suppress(SettingsError):
            if beside and not number % 2:
                _serve_beside(registry, situation, beside)
            engine = build_memory_engine(registry, **situation.values(settings))
            if beside and number % 2:
                _serve_beside(registry, situation, beside)
            watched = WatchedScheduler.install(engine, None, None)
            serve(engine, situation.workload)
            found[name] = watched.decisions
    return found


def _serve_beside(registry: Registry, situation: Situation, settings: Mapping[str, Any]) -> None:
    """Serve some steps of a situation in another engine, if such settings are possible."""
    with suppress(SettingsError):
        other = build_memory_engine(registry, **situation.values(settings))
        asked = [request for _, request in situation.workload.requests]
        for request in (replace(asked[0], id="beside"), *asked):
            with suppress(RequestError):
                other.add(replace(request, tenant="b"))
        for step in range(24):
            if step >= 4 and other.scheduler.queues().swapped:
                break
            other.step()


def decisions_elsewhere(
    decide: Decide, registry: Registry, slot: str, settings: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return what ``decide`` returns in a process whose hashes of strings are others, and in which
    no component has been made before, where processes can fork.

    Raises:
        AssertionError: the component cannot be imported there, or raises.
    """
    record = registry.get(slot, str(settings[slot]["name"]))
    modules = (record.factory.partition(":")[0], record.settings.__module__)
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in modules}
    child = _child()
    assert child.stdin is not None
    assert child.stdout is not None
    for part in ((sys.path, files), (decide, registry, slot, dict(settings))):
        pickle.dump(pickle.dumps(part), child.stdin)
    child.stdin.flush()
    try:
        answer = pickle.load(child.stdout)
    except EOFError:
        _child.cache_clear()
        answer = f"it ended with {child.wait()}"
    assert isinstance(answer, dict), (
        f"another process cannot decide; a component and its options are imported by name, so "
        f"define both at the top of a module that has a file: {answer}"
    )
    return answer


@cache
def _child() -> subprocess.Popen[bytes]:
    """Start the process that decides, once: it ends with this one, which holds its input."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    return subprocess.Popen(
        [sys.executable, "-c", _START.format(path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )


def answer() -> None:
    """Answer in copies of the other process, until its input ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a component prints is no answer
    while True:
        try:
            about, asked = pickle.load(sys.stdin.buffer), pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        copy = os.fork() if hasattr(os, "fork") else 0
        if copy:
            if status := os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]):
                pickle.dump(f"it ended with {status}", output)
                output.flush()
            continue
        try:
            sys.path[:], files = pickle.loads(about)
            for name, file in files.items():
                _import(name, file)
            decide, *of = pickle.loads(asked)
            found: object = decide(*of)
        except Exception:  # noqa: BLE001 - of a component
            found = format_exc()
        pickle.dump(found, output)
        output.flush()
        if hasattr(os, "fork"):
            os._exit(0)


def _import(name: str, file: str | None) -> None:
    """Import a module by its name or, as pytest does with a file of tests, from its file."""
    try:
        import_module(name)
    except ImportError:
        if file is None or (spec := spec_from_file_location(name, file)) is None:
            raise
        assert spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
