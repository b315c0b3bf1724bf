"""Everything in this folder needs a CUDA device, and is skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before ``-m`` selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; ``items`` has those of all folders."""
    no_device = pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} finds no CUDA device here",
    )
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(no_device)
