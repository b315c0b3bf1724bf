"""The notebooks under examples/notebooks run, and are kept without what they showed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from architecture.snippets import ROOT

FILES = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
LEFT = {
    "your_first_policy": "test_my_evictor.py",
    "a_figure_for_your_paper": "hit_rate.pdf",
}
"""A file that each notebook leaves."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    shown = [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"]]
    assert not shown, "clear the outputs: they are of one run, and make each change a large one"


@pytest.mark.heavy
@pytest.mark.long
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the extra `dev` is not installed")
    pytest.importorskip("ipykernel", reason="the extra `dev` is not installed")
    import nbformat

    for name in (each for each in os.environ if each.startswith("PAGED_CORE_")):
        monkeypatch.delenv(name)
    book = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources=where).execute()
    outputs = [each for cell in book.cells for each in cell.get("outputs", ())]
    assert any("srcdoc=" in each.get("data", {}).get("text/html", "") for each in outputs)
    assert (tmp_path / LEFT[path.stem]).stat().st_size > 0
