"""``/live/events`` of a real server: resumed, over an engine that is lost, and at the end."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from tests.server.served import SECONDS, ServeProcess, ask, serve_process

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]


@contextmanager
def looking(port: int, since: int | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the events, each with its ``id``; they end with the stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    headers = {} if since is None else {"Last-Event-ID": str(since)}
    connection.request("GET", "/live/events", headers=headers)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )

    def events() -> Iterator[dict[str, Any]]:
        number = 0
        while line := answer.readline():
            field, _, value = line.decode().strip().partition(": ")
            if field == "id":
                number = int(value)
            elif field == "data":
                yield {"id": number, **json.loads(value)}

    try:
        yield events()
    finally:
        connection.close()


def complete(port: int, prompt: str) -> None:
    body = {"model": "demo", "prompt": prompt, "max_tokens": 8}
    status, _, _ = ask(port, "POST", "/v1/completions", body, {"Content-Type": "application/json"})
    assert status == 200


def engine_of(served: ServeProcess) -> psutil.Process:
    found = psutil.Process(served.process.pid).children(recursive=True)
    (engine,) = (each for each in found if any("process.main" in part for part in each.cmdline()))
    return engine


@pytest.mark.long
def test_events_go_on_where_a_viewer_was_over_a_lost_engine_and_end_with_the_server() -> None:
    with serve_process("--num-blocks", "64") as served:
        port = served.port()
        with looking(port) as events:
            first = next(events)
        assert first["view"]["whole"]
        assert first["view"]["engine"]["num_blocks"] == 64
        complete(port, "Once upon a time, a block table told a scheduler about its cache. ")
        with looking(port, first["id"]) as events:
            news = next(events)["view"]
        assert not news["whole"]
        assert news["totals"]["finished"] == 1
        assert news["cells"] and news["steps"]
        assert "Once" not in json.dumps(news)

        with looking(port) as events:
            assert next(events)["state"] == "ready"
            engine_of(served).kill()
            seen = []
            for event in events:
                seen.append(event)
                if event["state"] == "ready" and event["view"]:
                    break
            assert "restarting" in [event["state"] for event in seen]
            assert seen[-1]["view"]["whole"], "of the next one"
            served.send(signal.SIGTERM)
            states = [event["state"] for event in events if event["state"] != "ready"]
        assert states[-1:] in ([], ["draining"], ["failed"])
        assert served.wait() == 0
