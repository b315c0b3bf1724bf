"""Counts as they are handed to the process that serves metrics."""

from __future__ import annotations

from pathlib import Path

from paged_core_vllm.counts import CountsWriter, read_counts
from paged_core_vllm.faults import Tally


def test_counts_are_read_as_they_were_written_a_second_ago(tmp_path: Path) -> None:
    tally, path = Tally(), tmp_path / "folder" / "x.0.json"
    tally.victim.name = "newest"
    writer = CountsWriter(path, tally)
    assert read_counts(path) == {}
    writer.write(10.0)
    tally.victim.decided(True, False)
    writer.write(10.5)
    assert read_counts(path)["victim"]["decisions"] == 0
    writer.write(11.0)
    told = {"name": "newest", "decisions": 1, "choices": 1, "differed": 0, "faults": 0}
    assert read_counts(path)["victim"] == told
    writer.close()
    assert read_counts(path) == {}


def test_a_folder_that_cannot_be_made_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = CountsWriter(tmp_path / "file" / "x.json", Tally())
    writer.write(1.0)
    writer.close()
