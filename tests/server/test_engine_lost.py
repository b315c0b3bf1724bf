"""The engine's process is killed under a server: clients and monitors are told the truth."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from server.served import ask, events, serve_process, wait_until
from server.test_serve_command import COMPLETIONS, LONG, SMALL, open_stream


def engine_of(pid: int) -> int:
    """Return the process of the engine of a server."""
    found = [
        child.pid
        for child in psutil.Process(pid).children()
        if "paged_plugins.engine_process" in " ".join(child.cmdline())
    ]
    assert len(found) == 1, found
    return found[0]


def test_a_killed_engine_ends_streams_and_serves_the_rest_again() -> None:
    with serve_process(*SMALL) as served, ThreadPoolExecutor(1) as pool:
        port = served.port()
        engine = engine_of(served.process.pid)
        connection, answer = open_stream(port, {**LONG, "n": 4})
        while not answer.readline().startswith(b"data: "):
            pass  # pings
        whole = {**LONG, "stream": False, "max_tokens": 300}
        asked = pool.submit(ask, port, "POST", COMPLETIONS, whole)
        wait_until(lambda: ask(port, "GET", "/load")[1]["num_unfinished"] == 2, "it is not taken")
        os.kill(engine, signal.SIGKILL)
        text = answer.read().decode()
        connection.close()
        assert events(text)[-1]["error"]["code"] == "engine_lost"
        assert "[DONE]" not in text
        states = set[Any]()

        def is_ready() -> bool:
            status, found, _ = ask(port, "GET", "/ready")
            states.add((status, found.get("error", {}).get("code")))
            return status == 200

        wait_until(is_ready, "it is not started again")
        assert (503, "engine_restarting") in states
        assert ask(port, "GET", "/health")[0] == 200
        status, found, _ = asked.result()
        assert status == 200
        assert found["usage"]["completion_tokens"] == 300
        assert engine_of(served.process.pid) != engine
        served.send(signal.SIGTERM)
        assert served.wait() == 0


def test_an_engine_does_not_survive_its_server() -> None:
    with serve_process(*SMALL) as served:
        connection, answer = open_stream(served.port(), LONG)
        assert answer.readline()
        engine = psutil.Process(engine_of(served.process.pid))
        served.process.kill()
        served.wait()
        engine.wait(60)
        connection.close()


def test_nothing_is_left_of_a_server_that_is_killed_while_its_engine_starts() -> None:
    with (
        TemporaryDirectory(dir="/tmp") as folder,  # short enough for names of sockets
        serve_process(*SMALL, TMPDIR=folder) as served,
    ):
        temporary = Path(folder)
        served.wait_for("is being loaded")
        engines: list[int] = []

        def has_begun() -> bool:
            with suppress(AssertionError, psutil.Error):
                engines[:] = [engine_of(served.process.pid)]
            return bool(engines) and bool(list(temporary.glob("paged-core-*")))

        wait_until(has_begun, "no engine is started")
        # it has read its orders, and is at work: its threads are there
        wait_until(lambda: psutil.Process(engines[0]).num_threads() > 1, "it does not begin")
        engine = psutil.Process(engines[0])
        served.process.kill()
        served.wait()
        engine.wait(60)
        assert not list(temporary.iterdir())
