"""Content of files reaches a terminal as text: in errors, in logs and in tables."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import structlog

from paged_core.cli import main
from paged_core.errors import CheckpointError, RequestError, error_text
from paged_core.log import get_logger
from paged_core.terminal import printable

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b8m\r\b\u202eabc"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b8m\r\x08\u202eabc"


def test_it_is_written_as_python_writes_it() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("two\nlines\tof é 中 🙂") == "two\nlines\tof é 中 🙂"
    assert printable("\x1b[31mred\x1b[0m\x1b[2J", keep_colours=True) == "\x1b[31mred\x1b[0m\\x1b[2J"


def test_every_error_is_printable() -> None:
    assert str(CheckpointError(HOSTILE)) == SHOWN
    assert str(pickle.loads(pickle.dumps(RequestError(HOSTILE)))) == SHOWN
    assert error_text(ValueError(HOSTILE)) == f"ValueError: {SHOWN}"


@pytest.mark.parametrize("configured", [False, True])
def test_lines_of_the_log(configured: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if configured:
        structlog.configure(processors=[structlog.dev.ConsoleRenderer(colors=True)])
    try:
        get_logger().warning("file_read", name=HOSTILE.replace("\r", ""))
    finally:
        structlog.reset_defaults()
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert "title" in said
    assert configured or not captured.out
    assert not {"\x07", "\x9b", "\u202e"}.intersection(said)
    assert "\x1b]" not in said


def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine.yaml").write_text(json.dumps({"model": "a\x1b[2Jb"}))
    assert main(["config", "--config", "engine.yaml"], {}) == 0
    assert main(["generate", "x", "--config", "engine.yaml"], {}) != 0
    captured = capsys.readouterr()
    for said in (captured.out, captured.err):
        assert "\\x1b[2J" in said
        assert "\x1b[2J" not in said
