"""``paged-core serve`` as a process: what it says, its signals, its exit status."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_core.plugins.registry import Registry
from paged_plugins.server.errors import ApiError
from paged_plugins.server.testing.services import serving
from server.served import SECONDS, ask, events, serve_process

pytestmark = pytest.mark.heavy

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "x", "ignore_eos": True, "max_tokens": 900, "stream": True}
SMALL = ("--num-blocks", "256")
THREAD = (*SMALL, "--server.engine", "thread")
"""Starts in half the time: without a process of the engine."""


def open_stream(port: int, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, Any]:
    """Send a request, and return what its answer is read from once it has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("POST", COMPLETIONS, json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200
    return connection, answer


def test_sigterm_lets_what_runs_finish_and_takes_no_more() -> None:
    with serve_process(*SMALL) as served:
        port = served.port()
        connection, answer = open_stream(port, {**LONG, "max_tokens": 400})
        served.send(signal.SIGTERM)
        served.wait_for(r"stopping: 1 requests have 30 s")
        for method, path in (("GET", "/ready"), ("POST", COMPLETIONS)):
            status, found, _ = ask(port, method, path, {"prompt": "x"})
            assert status == 503
            assert found["error"]["code"] == "engine_draining"
        assert ask(port, "GET", "/health")[0] == 200
        found = events(answer.read().decode())
        connection.close()
        assert found[-1] == "[DONE]"
        assert found[-2]["choices"][0]["finish_reason"] == "length"
        assert served.wait() == 0


def test_what_does_not_finish_in_time_is_told() -> None:
    with serve_process(*THREAD, "--server.grace-period", "0.1") as served:
        connection, answer = open_stream(served.port(), {**LONG, "n": 4})
        served.send(signal.SIGTERM)
        text = answer.read().decode()
        connection.close()
        assert "[DONE]" not in text
        assert events(text)[-1]["error"]["code"] == "engine_stopped"
        assert served.wait() == 0
        assert any("error=engine_stopped" in line for line in served.lines)
        assert any("1 requests have not finished" in line for line in served.lines)


def test_until_the_end_it_is_said_that_it_stops() -> None:
    async def main() -> None:
        async with serving(Registry.discover()) as service:
            service.is_stopping = True
            await service.client.close()  # while connections are still open
            with pytest.raises(ApiError) as caught:
                service.check_room()
        assert (caught.value.status, caught.value.code) == (503, "engine_draining")

    asyncio.run(main())


def test_a_second_signal_ends_at_once() -> None:
    with serve_process(*THREAD) as served:
        connection, _ = open_stream(served.port(), {**LONG, "n": 8})
        served.send(signal.SIGTERM)
        served.wait_for("stopping")
        served.send(signal.SIGTERM)
        assert served.wait() == 128 + signal.SIGTERM
        connection.close()


def test_a_signal_while_the_model_is_loaded_ends_it() -> None:
    with serve_process(*SMALL) as served:
        served.wait_for("listens")
        served.send(signal.SIGTERM)
        assert served.wait() == 0


def test_the_log_has_a_line_for_each_request_and_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("secret-of-the-file\n")
    with serve_process(
        *THREAD, "--api-key-file", str(path), PAGED_CORE_API_KEY="secret-of-the-environment"
    ) as served:
        port = served.port()
        for key in ("secret-of-the-file", "secret-of-the-environment", "another-secret"):
            headers = {"Authorization": f"Bearer {key}", "X-Request-Id": f"id-{len(key)}"}
            status = ask(port, "POST", f"{COMPLETIONS}?{len(key)}", {"prompt": "x"}, headers)[0]
            assert status == (401 if "another" in key else 200)
        for probe in ("/health", "/ready", "/metrics"):  # told only where something is wrong
            assert ask(port, "GET", probe, headers=headers)[0] == (401 if "m" in probe else 200)
        served.send(signal.SIGTERM)
        assert served.wait() == 0
        logged = [line for line in served.lines if "answered" in line]
        assert len(logged) == 4
        assert ["status=200" in line for line in logged] == [True, True, False, False]
        assert re.search(r"answered +method=POST path=/v1/completions status=200 ", logged[0])
        assert "request_id=id-18" in logged[0]
        assert "id=cmpl-" in logged[0]
        assert "completion_tokens=" in logged[0]
        assert "error=invalid_api_key" in logged[2]
        assert "secret" not in "".join(served.lines)


def test_all_lines_of_the_log_are_json_with_a_date_where_that_is_asked_for() -> None:
    """Lines of the server's start and end, of requests, and of the engine's process."""
    with serve_process(
        "--num-blocks=8", PAGED_CORE_LOG_FORMAT="json", PAGED_CORE_LOG_LEVEL="info"
    ) as served:
        port = served.port()
        assert ask(port, "POST", COMPLETIONS, {"prompt": "x", "max_tokens": 2})[0] == 200
        served.send(signal.SIGTERM)
        assert served.wait() == 0
    told = [json.loads(line) for line in served.lines if line.strip()]
    assert all(re.match(r"\d{4}-\d\d-\d\dT", each["timestamp"]) for each in told)
    events = [each["event"] for each in told]
    assert "answered" in events
    assert events[-1].startswith("stopping: ")


def test_settings_come_from_a_file_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(
        "num_blocks: 256\nserver: {served_model_name: [mine], port: 1, engine: thread}\n"
    )
    with serve_process(
        "--config", str(path), PAGED_CORE_SERVER__ALLOWED_HOSTS='["llm.example"]'
    ) as served:
        port = served.port()
        found = ask(port, "GET", "/v1/models", headers={"Host": "llm.example"})[1]
        assert [model["id"] for model in found["data"]] == ["mine"]
        served.send(signal.SIGINT)
        assert served.wait() == 130
        assert not any("Traceback" in line for line in served.lines)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--port", "{taken}"], r"cannot listen at 127.0.0.1, port \d+: .*--port"),
        (["--host", "no.such.host.invalid"], "server.host: .*is no address"),
        (["--api-key-file", "/nothing"], "server.api_key_file: cannot read /nothing"),
        (["--server.tls-certificate", "/nothing"], "server.tls_certificate"),
        (["--server.tls-key", "/nothing"], "server.*tls_certificate"),
        (["--model", "/nothing"], "/nothing"),
        (["--server", "htpp"], "did you mean 'http'"),
        (["--replicas", "0"], "replicas.count.*--replicas"),
        (
            ["--replicas.count", "3", "--server.engine", "thread"],
            "server.engine is thread.*replicas.count is 3",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_mistake_is_one_line(
    options: list[str], what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        given = [option.replace("{taken}", number) for option in options]
        assert main(["serve", *SMALL, "--port", "0", *given]) in (1, 2)
    told = capfd.readouterr().err
    errors = [line for line in told.splitlines() if "listens" not in line]
    assert len(errors) == 1, told
    assert re.search(what, errors[0]), errors
