"""Files of the lab that cannot be written, and those that are no regular files."""

from __future__ import annotations

from pathlib import Path

import pytest

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_plugins.lab.results.tables import write_bytes

ABLATION = """\
axes: {victim: [newest, fewest_computed]}
workloads: [{name: w, requests: 2, lengths: {prompt: 8, output: 2}}]
seeds: 1
"""


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


def test_a_full_disk_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "chat", "--requests", "/dev/full"], {}) == 2
    message = "error: /dev/full cannot be written: No space left on device; name another file\n"
    assert capsys.readouterr().err == message


def test_a_link_and_a_device_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    file.write_bytes(b"before")
    link.symlink_to(file)
    write_bytes(link, b"after")
    assert link.is_symlink()
    assert file.read_bytes() == b"after"
    write_bytes(Path("/dev/null"), b"content")
    assert Path("/dev/null").is_char_device()


def test_a_file_is_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(SettingsError, match=r"file cannot be written: No such file or directory"):
        write_bytes(path, b"content")
    path.parent.mkdir()
    write_bytes(path, b"content")
    assert [each.name for each in path.parent.iterdir()] == ["file"]
