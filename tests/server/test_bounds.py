"""Bounds of what a client makes the server keep and wait for, on real sockets."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

import pytest
from starlette.routing import Route

from paged_plugins.server.http import server as http_server
from server.served import LONG, Served, open_request, read_to_end, read_until, wait_until

pytestmark = pytest.mark.heavy

COMPLETIONS = "/v1/completions"
SHORT = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
VERSION = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"


def post(body: bytes, *headers: str, path: str = COMPLETIONS, chunked: bool = False) -> bytes:
    """Return a request, its body whole or in a chunk."""
    length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    head = "\r\n".join((f"POST {path} HTTP/1.1", "host: localhost", *headers, length, "", ""))
    return head.encode() + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    """A server that waits for no one for long."""
    options = {"read_timeout": 0.5, "slow_reader_timeout": 0.5, "max_body_size": 1 << 20}
    with Served(options, num_blocks=2048, observers=["metrics", "live_view"]) as served:
        yield served


@contextmanager
def slow_client(served: Served) -> Iterator[socket.socket]:
    """Yield a connection of which the system keeps little."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.settimeout(60)
        yield connection


def connections(served: Served) -> int:
    return len(served.server._state.connections)


# ---------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("sent", "more"),
    [
        (post(SHORT, chunked=True)[:-2], b"x: " + b"y" * 1000 + b"\r\n"),
        (post(SHORT, chunked=True)[:-2] + b"x: ", b"y" * 1000),
        (post(b"", chunked=True)[:-10] + b"5;x=", b"y" * 1000),
        (VERSION + VERSION[:-2], b"x: " + b"y" * 1000 + b"\r\n"),
    ],
    ids=["trailers", "one trailer", "what follows a chunk's size", "headers of the second"],
)
def test_what_is_beside_a_body_has_an_end(served: Served, sent: bytes, more: bytes) -> None:
    with served.connect() as connection:
        connection.sendall(sent + more * 1000)
        assert b"HTTP/1.1 431 " in read_to_end(connection)


def test_trailers_are_no_headers(served: Served) -> None:
    with served.connect() as connection:
        sent = post(SHORT, chunked=True)[:-2] + b"x-request-id: late\r\nhost: evil\r\n\r\n"
        connection.sendall(sent + VERSION)
        answers = read_until(connection, b'"version"')
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert b"late" not in answers


@pytest.mark.parametrize("part", [VERSION[:8], post(SHORT)[:-5]], ids=["headers", "body"])
def test_a_request_behind_another_has_to_come_in_time_too(hasty: Served, part: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(VERSION + part)
        answers = read_to_end(connection)
    assert answers.count(b"HTTP/1.1 200 ") == answers.count(b"HTTP/1.1 408 ") == 1


def test_one_that_waits_for_an_answer_before_it_is_not_late(hasty: Served) -> None:
    body = json.dumps({**LONG, "n": 4}).encode()
    with hasty.connect() as connection:
        connection.sendall(post(body) + VERSION[:8])
        answers = read_until(connection, b"[DONE]\n\n\r\n0\r\n\r\n")
        connection.sendall(VERSION[8:])
        assert b"HTTP/1.1 200 " in read_until(connection, b'"version"')
    assert b"HTTP/1.1 408 " not in answers


def test_a_client_with_requests_behind_the_first_that_goes_leaves_nothing(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(post(json.dumps({**LONG, "stream": False}).encode()) + VERSION)
        wait_until(lambda: served.health().num_unfinished == 1, "it was not taken")
    served.wait_until_idle()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [2 << 20, 40 << 20])
def test_who_sends_all_before_reading_reads_why_it_is_refused(
    served: Served, size: int, chunked: bool
) -> None:
    limit = served.service.options.max_body_size
    with served.connect() as connection:
        key = "" if size > limit else "origin: https://evil.example"
        connection.sendall(post(b"x" * size, *filter(None, [key]), chunked=chunked))
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 413 " if size > limit else b"HTTP/1.1 403 ")


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_who_asks_for_another_protocol_is_served_in_this_one(
    served: Served, protocol: str, chunked: bool
) -> None:
    headers = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AA")
    with served.connect() as connection:
        sent = post(SHORT, *headers, chunked=chunked)
        connection.sendall(sent[:-9])  # a part of the body comes later
        sleep(0.05)
        connection.sendall(sent[-9:] + VERSION)
        assert read_until(connection, b'"version"').count(b"HTTP/1.1 200 ") == 2


def test_connections_leave_descriptors_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_most_connections", lambda: 2)
    with Served() as served:
        kept = [served.connect() for _ in range(2)]
        for each in kept:
            each.sendall(VERSION)
            read_until(each, b'"version"')
        with served.connect() as late:
            assert late.recv(1) == b""
        kept[0].close()
        wait_until(lambda: connections(served) == 1, "it is still open")
        assert served.ask("GET", "/ready")[0] == 200
        kept[1].close()


# ---------------------------------------------------------------------- answers

TEXTS = json.dumps({"prompt": "x" * 60_000, "return_token_strs": True}).encode()


@pytest.mark.parametrize(
    "sent",
    [
        post(TEXTS, path="/tokenize") * 8,
        post(json.dumps({**LONG, "n": 8, "logprobs": 20}).encode()),
        b"GET /live/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100,
    ],
    ids=["whole", "stream", "viewer", "many"],
)
def test_who_takes_nothing_of_any_answer_is_cut(hasty: Served, sent: bytes) -> None:
    wait_until(lambda: not connections(hasty), "others are open")
    with slow_client(hasty) as connection:
        connection.sendall(sent)
        wait_until(lambda: connections(hasty) == 1, "it was not taken")
        if b"/live/" in sent:  # else there is nothing to view
            hasty.ask("POST", COMPLETIONS, {**LONG, "n": 8})
        wait_until(lambda: not connections(hasty), "it is kept")
    hasty.wait_until_idle()


def test_who_takes_an_answer_slowly_gets_all_of_it(hasty: Served) -> None:
    body = json.dumps({**LONG, "n": 8, "logprobs": 20, "max_tokens": 200}).encode()
    end = b""
    with slow_client(hasty) as connection:
        connection.sendall(post(body))
        while not end.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            part = connection.recv(16384)
            assert part, end
            end = (end + part)[-40:]
            sleep(0.02)


def test_who_has_taken_nothing_yet_is_not_cut_by_the_first_look(served: Served) -> None:
    async def look() -> int:
        made = list(served.server._state.connections)
        for each in made:
            each.look()
        return sum(each._outlet.num_left() for each in made)

    with slow_client(served) as connection:
        connection.sendall(post(TEXTS, path="/tokenize") * 4 + VERSION)
        wait_until(lambda: served.call(look()) > 0, "all of it was taken")
        read_until(connection, b'"version"')


def test_head_of_any_path_ends(hasty: Served) -> None:
    routes = [each for each in hasty.server.routes if isinstance(each, Route)]
    paths = [each.path for each in routes if "GET" in (each.methods or ()) and "{" not in each.path]
    assert "/live/events" in paths
    for path in paths:
        status, text, _ = hasty.ask("HEAD", path)
        assert (status, text) == (200, ""), path
    wait_until(lambda: hasty.service.num_open == 0, "an answer goes on")


# ---------------------------------------------------------------------- names


def open_long(served: Served, prompt: Any, name: str) -> Any:
    return open_request(served, {**LONG, "prompt": prompt, "request_id": name})


def test_an_id_that_is_used_again_gets_a_suffix_and_names_one_answer(served: Served) -> None:
    with (
        open_long(served, "x", "a") as one,
        open_long(served, ["x", "y"], "a") as two,
        open_long(served, "x", "a-0") as other,
    ):
        ids = sorted(
            re.search(rb'"id":"([^"]+)"', read_until(each, b'"object"'))[1].decode()  # type: ignore[index]
            for each in (one, two, other)
        )
        assert ids == ["cmpl-a", "cmpl-a-0", "cmpl-a-2"]
        for name in ("cmpl-a-2", "cmpl-a"):
            assert served.ask("POST", "/abort", {"request_id": name})[1] == {"aborted": True}
        for each in (one, two):
            assert b'"code":"aborted"' in read_until(each, b"0\r\n\r\n")
        assert served.health().num_unfinished == 1
        assert not served.ask("POST", "/abort", {"request_id": "cmpl-a"})[1]["aborted"]
    served.wait_until_idle()
