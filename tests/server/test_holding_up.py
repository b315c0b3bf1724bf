"""Clients that go, stall, flood or forge, on real sockets: the server stays as it was."""

from __future__ import annotations

import tracemalloc
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from server.served import (
    LONG,
    Served,
    ask,
    events,
    open_request,
    read_to_end,
    read_until,
    wait_until,
)

pytestmark = pytest.mark.heavy

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def narrow() -> Iterator[Served]:
    """A server that computes one request at a time, and of which few may wait."""
    options = {"ping_interval": 0.05, "max_waiting_requests": 2, "max_waiting_tokens": 20}
    with Served(options, scheduler={"max_num_seqs": 1}) as served:
        yield served


# ---------------------------------------------------------------------- clients that go


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({}, True),
        ({}, False),
        ({"stream": False}, False),
        ({"prompt": ["a", "b", "c"], "n": 2}, True),
    ],
    ids=["in the midst", "before its answer", "before it is whole", "several prompts"],
)
def test_a_client_that_goes_leaves_nothing(
    served: Served, fields: dict[str, Any], reads: bool
) -> None:
    num_prompts = 3 if "prompt" in fields else 1
    with open_request(served, {**LONG, **fields}) as connection:
        if reads:
            read_until(connection, b"data: ")
        wait_until(lambda: served.health().num_unfinished == num_prompts, "it was not taken")
    served.wait_until_idle()


def test_a_client_that_goes_while_it_waits_leaves_nothing(narrow: Served) -> None:
    with open_request(narrow, LONG) as first:
        read_until(first, b"data: ")
        with open_request(narrow, {**LONG, "prompt": [1, 2]}):
            wait_until(lambda: narrow.health().num_waiting == 1, "it does not wait")
        wait_until(lambda: narrow.health().num_waiting == 0, "it still waits")
        assert narrow.health().num_unfinished == 1
    narrow.wait_until_idle()


# ---------------------------------------------------------------------- endings


def test_an_aborted_stream_ends_with_an_error_and_no_done(served: Served) -> None:
    with open_request(served, {**LONG, "request_id": "this"}) as connection:
        begun = read_until(connection, b"data: ")
        assert served.ask("POST", "/abort", {"request_id": "cmpl-this"})[1] == {"aborted": True}
        ended = begun + read_until(connection, b"0\r\n\r\n")
    assert ended.count(b"event: error\n") == 1
    assert b'"code":"aborted"' in ended
    assert b"[DONE]" not in ended
    served.wait_until_idle()


def test_a_deadline_ends_a_request(served: Served) -> None:
    whole = {**LONG, "stream": False, "deadline": 0.2}
    status, error = served.error(COMPLETIONS, whole)
    assert (status, error["code"]) == (504, "deadline_exceeded")
    with open_request(served, {**LONG, "deadline": 0.3}) as connection:
        ended = read_until(connection, b"0\r\n\r\n")
    assert b'"code":"deadline_exceeded"' in ended
    assert b"[DONE]" not in ended
    served.wait_until_idle()


def test_silence_is_filled_with_pings_and_an_error_after_one_is_an_event(narrow: Served) -> None:
    with open_request(narrow, LONG) as first:
        read_until(first, b"data: ")
        with open_request(narrow, {**LONG, "deadline": 0.2}) as late:
            ended = read_until(late, b"0\r\n\r\n")
        assert b"event: error" in ended
        assert b"[DONE]" not in ended
        with open_request(narrow, {**LONG, "max_tokens": 2}) as second:
            begun = read_until(second, b": ping\n\n")
            assert begun.startswith(b"HTTP/1.1 200 OK")
            first.close()
            ended = begun + read_until(second, b"0\r\n\r\n")
    assert b"data: [DONE]" in ended
    assert ended.index(b": ping") < ended.index(b"data: ")
    narrow.wait_until_idle()


# ---------------------------------------------------------------------- more load than fits


def test_more_than_may_wait_is_told_to_come_again(narrow: Served) -> None:
    large = {**LONG, "prompt": [5] * 30}
    before = narrow.service.rejections.snapshot()
    with open_request(narrow, large) as first:
        read_until(first, b"data: ")  # alone, it is taken
        with open_request(narrow, {**LONG, "prompt": [5] * 15}):
            wait_until(lambda: narrow.health().num_waiting == 1, "it does not wait")
            assert narrow.error(COMPLETIONS, {"prompt": [5] * 6})[0] == 429
            with open_request(narrow, {**LONG, "prompt": [5] * 4}):
                wait_until(lambda: narrow.health().num_waiting == 2, "it was refused")
                status, found, headers = narrow.ask("POST", COMPLETIONS, {"prompt": [5]})
                assert status == 429
                assert found["error"]["type"] == "rate_limit_error"
                assert found["error"]["code"] == "queue_full"
                assert int(headers["retry-after"]) >= 1
                chat = {"messages": [{"role": "user", "content": "x"}]}
                assert narrow.error("/v1/chat/completions", chat)[0] == 429
    narrow.wait_until_idle()
    after = narrow.service.rejections.snapshot()
    assert {name: after[name] - before[name] for name in after} == {
        "max_num_queued_reqs": 2,
        "max_num_queued_tokens": 1,
        "admission": 0,
    }
    assert narrow.ask("POST", COMPLETIONS, {"prompt": "x"})[0] == 200


def test_what_the_admission_refuses_is_told_when_to_come_again() -> None:
    with Served(admission={"name": "token_bucket", "rate": 0.01, "burst": 1}) as served:
        asked = {"prompt": [5], "max_tokens": 1, "user": "one"}
        assert served.ask("POST", COMPLETIONS, asked)[0] == 200
        for stream in (False, True):
            status, found, headers = served.ask("POST", COMPLETIONS, {**asked, "stream": stream})
            assert (status, found["error"]["code"]) == (429, "refused")
            assert "tenant 'one' is above 0.01 requests a second" in found["error"]["message"]
            assert 1 < int(headers["retry-after"]) <= 100
        assert served.ask("POST", COMPLETIONS, {**asked, "user": "another"})[0] == 200
        assert served.service.rejections.snapshot()["admission"] == 2
        served.wait_until_idle()


def test_what_the_admission_holds_back_waits_and_can_be_left() -> None:
    holds = {"name": "token_bucket", "rate": 2.0, "burst": 1, "over": "hold"}
    with Served(admission=holds) as served:
        asked = {"prompt": [5], "max_tokens": 1, "user": "one"}
        for _ in range(2):
            assert served.ask("POST", COMPLETIONS, asked)[0] == 200
        with open_request(served, {**LONG, "user": "one"}) as held:
            wait_until(lambda: served.health().num_waiting == 1, "it does not wait")
            held.close()
        served.wait_until_idle()


# ---------------------------------------------------------------------- what is sent


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(served: Served) -> None:
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {10 << 30}\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(head.encode())
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"max_body_size" in answer


def test_a_body_of_unknown_length_is_refused_when_it_is_too_large() -> None:
    with Served({"max_body_size": 10_000}) as served, served.connect() as connection:
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        tracemalloc.start()
        try:
            for _ in range(1000):
                connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()
        served.wait_until_idle()
        assert served.ask("GET", "/ready")[0] == 200


def test_a_request_that_does_not_come_in_time_is_ended_and_an_answer_may_take_longer() -> None:
    with Served({"read_timeout": 0.3}) as served:
        for sent in (
            b"",
            b"GET /health HT",
            b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ",
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
        ):
            with served.connect() as connection:
                connection.sendall(sent)
                assert read_to_end(connection).startswith(b"HTTP/1.1 408 "), sent
            assert served.ask("GET", "/load")[1]["server_load"] == 0
        text = ask(served.port, "POST", COMPLETIONS, {**LONG, "max_tokens": 300})[1]
        assert events(text)[-1] == "[DONE]"


def test_headers_have_an_end(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        for _ in range(200):
            connection.sendall(b"x: " + b"y" * 8000 + b"\r\n")
        answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"the headers have more than 65536 bytes" in answer
    assert served.ask("GET", "/health")[0] == 200


def test_what_is_no_http_is_refused(served: Served) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100):
        with served.connect() as connection:
            connection.sendall(sent)
            assert read_to_end(connection)[:12] in (b"HTTP/1.1 400", b"")


# ---------------------------------------------------------------------- hosts, origins, keys


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("first-key\nsecond-key\n")
    with Served({"api_key_file": str(path)}) as served:
        yield served


@pytest.mark.parametrize("length", ["content-length: 10000000000", "transfer-encoding: chunked"])
def test_who_has_no_key_cannot_go_on_sending(locked: Served, length: str) -> None:
    with locked.connect() as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
        connection.sendall(head.encode())
        answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer
        assert answer.count(b"HTTP/1.1 ") == 1, "it was waited for"


def test_every_route_but_two_needs_a_key(locked: Served) -> None:
    routes = [route for route in locked.server.routes if isinstance(route, Route)]
    assert len(routes) > 10
    paths = {route.path.replace("{model:path}", "demo") for route in routes}
    for path in {*paths, "/nothing", "/v1", "/health/", "//health"}:
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": ""}):
                status, _, _ = locked.ask(method, path, headers=headers)
                public = path in {"/health", "/ready"}
                assert (status == 401) != public, (method, path, headers, status)
    document = locked.ask("GET", "/openapi.json", headers={"x-api-key": "first-key"})[1]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path not in ("/health", "/ready"))


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_a_key_opens_in_each_of_its_forms(locked: Served, key: str) -> None:
    basic = b64encode(f"any:{key}".encode()).decode()
    for name, value in (
        ("Authorization", f"Bearer {key}"),
        ("authorization", f"bearer {key}"),
        ("x-api-key", key),
        ("Authorization", f"Basic {basic}"),
    ):
        assert locked.ask("GET", "/v1/models", headers={name: value})[0] == 200
    for name, value in (
        ("Authorization", key),
        ("Authorization", f"Bearer {key} x"),
        ("Authorization", f"Bearer {key[:-1]}"),
        ("Authorization", "Basic !"),
        ("x-api-key", key.upper()),
    ):
        status, found, headers = locked.ask("GET", "/v1/models", headers={name: value})
        assert (status, found["error"]["type"]) == (401, "authentication_error")
        assert headers["www-authenticate"].startswith("Bearer")
    assert locked.ask("GET", "/", headers={"Accept": "text/html"})[2][
        "www-authenticate"
    ].startswith("Basic")


def test_a_page_of_another_site_is_refused(served: Served) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        status, found, headers = served.ask("GET", "/v1/models", headers={"Origin": origin})
        assert (status, found["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in headers
    own = {"Origin": f"http://127.0.0.1:{served.port}"}
    assert served.ask("GET", "/v1/models", headers=own)[0] == 200


def test_a_forged_host_is_refused(served: Served) -> None:
    for host in ("evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example:80"):
        status, found, _ = served.ask("GET", "/v1/models", headers={"Host": host})
        assert (status, found["error"]["code"]) == (421, "host_not_allowed"), host
    for host in ("localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8000", "10.1.2.3:80"):
        assert served.ask("GET", "/v1/models", headers={"Host": host})[0] == 200, host


def test_a_page_and_a_host_that_are_named_are_served() -> None:
    origin = "https://pages.example"
    hosts = ["llm.example", "*.inner.example"]
    with Served({"allowed_origins": [origin], "allowed_hosts": hosts}) as served:
        own = {"Host": "llm.example", "Origin": origin}
        headers = {**own, "Access-Control-Request-Method": "POST"}
        status, _, found = served.ask("OPTIONS", COMPLETIONS, headers=headers)
        assert status == 204
        assert found["access-control-allow-origin"] == origin
        assert "authorization" in found["access-control-allow-headers"]
        for body, expected in (({"prompt": "x"}, 200), ({}, 400)):
            status, _, found = served.ask("POST", COMPLETIONS, body, own)
            assert (status, found["access-control-allow-origin"]) == (expected, origin)
        other = {**own, "Origin": "https://x.example"}
        assert served.ask("GET", "/", headers=other)[0] == 403
        for host, expected in (
            ("llm.example", 200),
            ("a.inner.example:1", 200),
            ("inner.example", 421),
            ("other.example", 421),
        ):
            assert served.ask("GET", "/health", headers={"Host": host})[0] == expected, host


# ---------------------------------------------------------------------- the engine is not there


def test_before_the_engine_is_ready_requests_are_told_so() -> None:
    with Served(start=False) as served:
        assert served.ask("GET", "/health")[:2] == (200, {"state": "starting", "reason": None})
        for method, path, body in (
            ("GET", "/ready", None),
            ("GET", "/v1/models", None),
            ("POST", COMPLETIONS, {"prompt": "x"}),
            ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("POST", "/tokenize", {"prompt": "x"}),
            ("GET", "/metrics", None),
            ("POST", "/reset_prefix_cache", None),
        ):
            status, found, _ = served.ask(method, path, body)
            assert status == 503, path
            assert found["error"]["code"] in ("engine_starting", "not_ready"), path
        served.call(served.client.start())
        assert served.ask("GET", "/ready")[0] == 200
        assert served.ask("POST", COMPLETIONS, {"prompt": "x"})[0] == 200


def test_an_engine_that_has_ended_is_no_secret() -> None:
    with Served() as served:
        with open_request(served, LONG) as connection:
            begun = read_until(connection, b"data: ")
            served.call(served.client.close())
            ended = begun + read_until(connection, b"0\r\n\r\n")
        assert b"event: error" in ended
        assert b"[DONE]" not in ended
        for path in ("/health", "/ready"):
            status, found, _ = served.ask("GET", path)
            assert (status, found["error"]["code"]) == (503, "engine_failed")
        assert served.error(COMPLETIONS, {"prompt": "x"})[0] == 503
