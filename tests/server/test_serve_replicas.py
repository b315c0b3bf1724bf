"""``paged-core serve --replicas``: what monitors, clients and signals see of several engines."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from server.served import ask, events, serve_process, wait_until
from server.test_serve_command import COMPLETIONS, LONG, SMALL, open_stream

pytestmark = pytest.mark.heavy


def engines_of(pid: int) -> list[psutil.Process]:
    """Return the processes of the engines of a server."""
    return [
        child
        for child in psutil.Process(pid).children()
        if "paged_plugins.engine_process" in " ".join(child.cmdline())
    ]


def wait_for_all(port: int) -> None:
    def are_ready() -> bool:
        status, found, _ = ask(port, "GET", "/ready")
        return status == 200 and found["reason"] is None

    wait_until(are_ready, "not all are ready")


def routed(port: int) -> list[int]:
    """Return how many requests each engine has ended."""
    counts = Counter[str]()
    for line in ask(port, "GET", "/metrics")[1].splitlines():
        if line.startswith("vllm:request_success_total"):
            counts[line.partition('engine="')[2][0]] += int(float(line.rpartition(" ")[2]))
    return [counts[number] for number in "01"]


@pytest.mark.long
def test_a_killed_engine_is_told_and_its_requests_go_to_the_other(tmp_path: Any) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("replicas: {router: round_robin}\n", "utf-8")
    options = ("--replicas", "2", "--router", "least_loaded", "--config", str(config))
    with serve_process(*SMALL, *options) as served, ThreadPoolExecutor(6) as pool:
        port = served.port()
        wait_for_all(port)
        first, second = engines_of(served.process.pid)
        connection, answer = open_stream(port, LONG)
        while not answer.readline().startswith(b"data: "):
            pass  # pings
        whole = {**LONG, "stream": False, "max_tokens": 300}
        asked = [pool.submit(ask, port, "POST", COMPLETIONS, whole) for _ in range(5)]
        wait_until(lambda: ask(port, "GET", "/load")[1]["num_unfinished"] == 6, "not all are taken")
        os.kill(first.pid, signal.SIGKILL)
        text = answer.read().decode()
        connection.close()
        status, found, _ = ask(port, "GET", "/ready")
        assert (status, found["state"]) == (200, "ready")
        assert "1 of 2 replicas are ready" in found["reason"]
        for each in asked:
            status, found, _ = each.result()
            assert status == 200, found
            assert found["usage"]["completion_tokens"] == 300
        assert events(text)[-1]["error"]["code"] == "engine_lost"
        assert not any("round_robin" in line for line in served.lines)
        wait_for_all(port)
        assert second.pid in {each.pid for each in engines_of(served.process.pid)}
        served.send(signal.SIGTERM)
        assert served.wait() == 0


def test_a_killed_engine_ends_streams_and_serves_the_rest_again() -> None:
    with serve_process(*SMALL) as served, ThreadPoolExecutor(1) as pool:
        port = served.port()
        assert ask(port, "GET", "/replicas")[0] == 404, "it has no routes of several"
        check_engines_that_are_not_there(port, "0 alone")
        engine = engines_of(served.process.pid)[0].pid
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
        assert engines_of(served.process.pid)[0].pid != engine
        served.send(signal.SIGTERM)
        assert served.wait() == 0


def check_engines_that_are_not_there(port: int, there: str) -> None:
    """The page has no data of them."""
    for path in ("/live/events", "/live/about"):
        for number in ("7", "-1", "x", "", "00"):
            status, found, _ = ask(port, "GET", f"{path}?engine={number}")
            assert (status, found["error"]["type"]) == (404, "not_found_error"), (path, number)
            assert f"'{number}'" in found["error"]["message"]
            assert there in found["error"]["message"]
    assert ask(port, "GET", "/live/about?engine=0")[0] == 200


def states(port: int) -> list[str]:
    """Return how each engine is."""
    return [each["state"] for each in ask(port, "GET", "/replicas")[1]["replicas"]]


def test_an_engine_is_drained_and_started_over_http_and_a_server_ends_meanwhile() -> None:
    """Even if the client that asked has gone."""
    options = ("--replicas", "2", "--server.grace-period", "1")
    with serve_process(*SMALL, *options) as served, ThreadPoolExecutor(3) as pool:
        port = served.port()
        wait_for_all(port)
        before = engines_of(served.process.pid)
        connection, answer = open_stream(port, LONG)
        while not answer.readline().startswith(b"data: "):
            pass
        found = ask(port, "GET", "/replicas")[1]["replicas"]
        busy = next(each["number"] for each in found if each["num_unfinished"])
        draining = pool.submit(ask, port, "POST", f"/replicas/{busy}/drain")
        wait_until(lambda: states(port)[busy] == "draining", "it is not drained")
        assert ask(port, "GET", "/ready")[0] == 200
        for verb in ("drain", "start"):
            status, found, _ = ask(port, "POST", f"/replicas/{busy}/{verb}")
            assert (status, "already" in found["error"]["message"]) == (409, True)
        for _ in range(3):
            assert ask(port, "POST", COMPLETIONS, {"prompt": "x", "max_tokens": 2})[0] == 200
        assert not draining.done()
        connection.close()  # what it served ends
        status, found, _ = draining.result()
        assert (status, found["state"], found["num_unfinished"]) == (200, "draining", 0)
        assert found["num_routed"] == 1
        wait_until(lambda: len(engines_of(served.process.pid)) == 1, "it has not ended")
        status, found, _ = ask(port, "POST", f"/replicas/{1 - busy}/drain")
        assert (status, "no other replica" in found["error"]["message"]) == (409, True)
        status, found, _ = ask(port, "POST", f"/replicas/{busy}/start")
        assert (status, found["state"]) == (200, "ready")
        assert len({*engines_of(served.process.pid)} - {*before}) == 1
        for number in ("2", "-1", "x", "00"):
            status, found, _ = ask(port, "POST", f"/replicas/{number}/drain")
            assert (status, "0 to 1" in found["error"]["message"]) == (404, True)
        check_engines_that_are_not_there(port, "0 to 1")

        streams = [open_stream(port, LONG) for _ in range(2)]
        wait_until(lambda: ask(port, "GET", "/load")[1]["num_unfinished"] == 2, "none is taken")
        with socket.create_connection(("127.0.0.1", port)) as asking:
            asking.sendall(b"POST /replicas/0/drain HTTP/1.1\r\nhost: localhost\r\n\r\n")
            wait_until(lambda: states(port)[0] == "draining", "it is not drained")
        assert states(port)[0] == "draining"
        served.send(signal.SIGTERM)
        assert served.wait() == 0
        assert not [line for line in served.lines if "Traceback" in line or "never" in line]
        for connection, _ in streams:
            connection.close()


@pytest.mark.long
def test_sessions_are_named_by_header_or_field_and_engines_end_with_the_server() -> None:
    body = {"prompt": "Hello", "max_tokens": 2}
    with serve_process(*SMALL, "--replicas", "2", "--router", "session") as served:
        port = served.port()
        wait_for_all(port)
        for _ in range(6):
            assert ask(port, "POST", COMPLETIONS, body, {"X-Session-Id": "talk"})[0] == 200
            assert ask(port, "POST", COMPLETIONS, {**body, "prompt_cache_key": "talk"})[0] == 200
        assert sorted(routed(port)) == [0, 12]
        for number in range(12):
            assert ask(port, "POST", COMPLETIONS, {**body, "user": f"user {number}"})[0] == 200
        assert min(routed(port)) > 0
        engines = engines_of(served.process.pid)
        assert len(engines) == 2
        served.process.kill()
        served.wait()
        for engine in engines:
            engine.wait(60)
