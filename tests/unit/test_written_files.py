"""Files that commands write: whole or as before, through links, to devices; folders that cannot
be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paged_core.cli import main
from paged_plugins.written_files import WriteFailed, replacing, try_replacing, write_bytes

pytestmark = pytest.mark.heavy


ABLATION = """\
axes: {victim: [newest, fewest_computed]}
workloads: [{name: w, requests: 2, lengths: {prompt: 8, output: 2}}]
seeds: 1
"""
OLD = b"what was there before"
STUDY = ("compare", "chat", "--vary", "victim=newest,fewest_computed", "--seeds", "1")
WRITING = {
    "simulate --requests": ("simulate", "chat", "--requests", "FILE"),
    "lab workload --output": ("lab", "workload", "chat", "--output", "FILE"),
    "metrics": ("simulate", "chat", "--observers", '[{"name": "metrics", "path": "FILE"}]'),
    "chrome_trace": (
        "simulate",
        "chat",
        "--observers",
        '[{"name": "chrome_trace", "path": "FILE"}]',
    ),
    "compare --html": (*STUDY, "--html", "FILE"),
    "doctor --output": ("doctor", "--output", "FILE"),
}
"""Commands, each with the place of a file that it writes."""
IN_A_FULL_FOLDER = """
import json, resource, sys
from paged_core.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
print(json.dumps([main(each, {}) for each in json.loads(sys.argv[1])]))
"""
"""Runs commands where no file can have more than 200 bytes."""


@pytest.mark.parametrize(
    "command",
    [
        ("lab", "run", "ablation.yaml"),
        ("compare", "chat", "--vary", "victim=newest,fewest_computed"),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_that_cannot_be_made_is_named_before_anything_is_run(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ablation.yaml").write_text(ABLATION, "utf-8")
    assert main([*command, "--output", "ablation.yaml/results"], {}) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: --output: ablation.yaml/results cannot be written: Not a ")
    assert not out


def test_a_full_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "chat", "--requests", "/dev/full"], {}) == 1
    message = "error: /dev/full cannot be written: No space left on device; name another file\n"
    assert capsys.readouterr().err == message


@pytest.mark.skipif(os.name == "nt", reason="uses POSIX limits")
@pytest.mark.parametrize("count", [3, pytest.param(len(WRITING), marks=pytest.mark.long)])
def test_what_cannot_be_written_leaves_the_file_as_it_was(count: int, tmp_path: Path) -> None:
    commands, files = [], []
    for number, command in enumerate([*WRITING.values()][:count]):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_bytes(OLD)
        commands.append([part.replace("FILE", str(files[-1])) for part in command])
    child = [sys.executable, "-c", IN_A_FULL_FOLDER, json.dumps(commands)]
    done = subprocess.run(child, capture_output=True, text=True, check=True)
    for file in files:
        assert file.read_bytes() == OLD
        assert f"{file} cannot be written: File too large" in done.stderr
    assert sorted(tmp_path.iterdir()) == files
    assert "Traceback" not in done.stderr
    statuses = json.loads(done.stdout.splitlines()[-1])
    assert statuses[:2] == [1, 1]


def test_a_link_and_a_device_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    link, other, file = tmp_path / "link", tmp_path / "other", tmp_path / "file"
    file.write_bytes(OLD)
    link.symlink_to(other)
    other.symlink_to(file)
    write_bytes(link, b"after")
    assert link.is_symlink()
    assert other.is_symlink()
    assert file.read_bytes() == b"after"
    file.unlink()
    write_bytes(link, b"made")
    assert (other.readlink(), file.read_bytes()) == (file, b"made")
    write_bytes(Path("/dev/null"), b"content")
    assert Path("/dev/null").is_char_device()
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(WriteFailed, match="Too many levels of symbolic links"):
        write_bytes(link, b"after")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_what_is_open_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(OLD)
    with path.open("ab") as file:
        write_bytes(Path(f"/dev/fd/{file.fileno()}"), b"; content")
        assert os.fstat(file.fileno()).st_ino == path.stat().st_ino
    assert path.read_bytes() == OLD + b"; content"
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try_replacing(pipe)
    write_bytes(pipe, b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)


def test_a_file_is_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(WriteFailed, match=r"file cannot be written: No such file or directory"):
        write_bytes(path, b"content")
    path.parent.mkdir()
    path.write_bytes(OLD)
    path.chmod(0o640)
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half")
        file.flush()
        raise KeyError
    assert path.read_bytes() == OLD
    write_bytes(path, b"content")
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_what_killed_processes_left_of_a_file_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path, kept = tmp_path / "file", tmp_path / "kept"
    own, left = f"file.{os.getpid()}.partial", f"file.{dead.pid}.partial"
    names = [own, left, f"file.{os.getppid()}.partial", f"other.{dead.pid}.partial", "a.partial"]
    names.append(f"file.{10**10}.partial")
    for name in names:
        (tmp_path / name).write_bytes(OLD)
    kept.write_bytes(OLD)
    (tmp_path / own).unlink()
    (tmp_path / own).symlink_to(kept)
    try_replacing(path)
    assert {each.name for each in tmp_path.iterdir()} == {"kept", *names} - {own, left}
    assert kept.read_bytes() == OLD
