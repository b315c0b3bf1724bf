"""``chat``: what a user types, and what the server answers."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_plugins.server.chat_command import Chat
from server.served import Served

pytestmark = pytest.mark.heavy

CHAT = [sys.executable, "-m", "paged_core", "chat"]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(num_blocks=512, max_model_len=1024) as server:
        yield server


def chat(served: Served, typed: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*CHAT, served.address, "--temperature", "0", "--max-tokens", "12", *options]
    return subprocess.run(command, input=typed, capture_output=True, text=True, check=False)


def test_messages_are_answered_in_their_conversation(served: Served) -> None:
    done = chat(served, "What is a block table?\n\n/retry\n/undo\n/retry\nHello\n/quit\nmore\n")
    assert done.returncode == 0, done.stderr
    first, again, hello = done.stdout.splitlines()
    assert first == again
    assert first
    assert hello
    assert "no message to answer again" in done.stderr


def test_settings_are_shown_changed_and_sent(served: Served) -> None:
    done = chat(
        served,
        '/set max_tokens 1\n/set stop ["x"]\n/set seed\n/system Be brief.\n/settings\nHello\n'
        "/set max_tokens nonsense\nHello\n/what\n/help\n",
    )
    assert done.returncode == 1
    assert "max_tokens: 1" in done.stdout
    assert 'system: "Be brief."' in done.stdout
    assert 'stop: ["x"]' in done.stdout
    assert "error: " in done.stderr
    assert "max_tokens" in done.stderr
    assert "there is no /what" in done.stderr
    assert "/retry" in done.stdout


def test_a_url_may_end_as_openai_s_clients_want_it(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    assert main(["chat", f"{served.address}/v1/", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().out.strip()


def test_what_keeps_it_from_a_server_is_said_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a key is missing, starting another server would be no help."""
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    with Served({"api_key_file": str(keys)}) as locked:
        assert main(["chat", locked.address]) == 2
    told = capsys.readouterr().err
    assert "OPENAI_API_KEY" in told
    assert "paged-core serve" not in told
    assert main(["chat", "http://127.0.0.1:9"]) == 2
    assert "paged-core serve" in capsys.readouterr().err


class Thinks:
    """A client of a server whose model thinks."""

    async def events(self, path: str, body: Any) -> AsyncIterator[str]:
        for delta in ({"reasoning_content": "Hm."}, {"reasoning_content": "So", "content": "Yes"}):
            yield json.dumps({"choices": [{"delta": delta}]})
        yield "[DONE]"


def test_thoughts_are_shown_and_only_the_answer_is_sent_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    talk = Chat(Thinks(), "m", system=None, settings={})  # type: ignore[arg-type]
    assert talk.run(iter(["Hello"])) == 0
    assert capsys.readouterr().out == "Hm.SoYes\n"
    assert talk.messages[-1] == {"role": "assistant", "content": "Yes"}


class Starts(Thinks):
    """A server whose engine is being loaded while it is asked for the first times."""

    def __init__(self) -> None:
        self.states = ["starting", "restarting", "ready"]

    async def get(self, path: str) -> Any:
        return {"state": self.states.pop(0)}


def test_it_waits_for_an_engine_that_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paged_plugins.server.chat_command._POLL_SECONDS", 0)
    client = Starts()
    assert Chat(client, "m", system=None, settings={}).run(iter(["Hello"])) == 0  # type: ignore[arg-type]
    assert not client.states
    told = capsys.readouterr()
    assert told.out == "Hm.SoYes\n"
    assert told.err.count("is being loaded") == 1


def test_ctrl_c_stops_an_answer_and_the_talk_goes_on(served: Served) -> None:
    """In a terminal: a pseudo-terminal is standard input and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*CHAT, served.address, "--max-tokens", "900"])
    seen = b""

    def wait_for(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(terminal, 4096)
        seen = seen.partition(text)[2]

    try:
        wait_for(b"> ")
        os.write(terminal, b"/set ignore_eos true\n")
        wait_for(b"> ")
        os.write(terminal, b"Hello\n")
        wait_for(b"Hello\r\n")
        while not seen:
            seen += os.read(terminal, 4096)
        os.kill(pid, signal.SIGINT)
        wait_for(b"> ")
        os.write(terminal, b"/quit\n")
        _, status = os.waitpid(pid, 0)
        pid = 0
        assert os.waitstatus_to_exitcode(status) in (0, 130)
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
    served.wait_until_idle()
