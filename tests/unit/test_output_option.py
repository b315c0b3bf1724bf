"""A file that cannot be written is refused before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import BadParameter

from paged_plugins.command_options import check_writable


def test_a_file_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    assert check_writable(file) == file
    assert not file.exists()
    with pytest.raises(BadParameter, match="is a folder; give the name of a file"):
        check_writable(tmp_path)
    with pytest.raises(BadParameter, match=r"there is no folder .*missing; make it first"):
        check_writable(tmp_path / "missing" / "results.json")
    with pytest.raises(BadParameter, match="cannot be written: No such file or directory; name"):
        check_writable(Path("/proc/results.json"))
    file.touch()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(BadParameter, match="cannot be written: Permission denied; name another"):
        check_writable(file)
