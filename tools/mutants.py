"""Prints each component that is wrong on purpose, and the conformance test that finds it; and each
fault planted in the path of a GPU, and the test that finds that.

Run by ``make mutants``, or with arguments for pytest. They are in ``tests/unit/mutants.py``,
``tests/unit/faulty_routers.py`` and ``tests/unit/planted_faults.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = (
    "unit/test_testing_kit.py",
    "unit/test_routers.py",
    "integration/test_planted_faults.py",
)
COLUMNS = ("slot", "mutant", "caught by", "seconds", "message")


class Table:
    """A pytest plugin that writes what the tests record as a table in Markdown."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.user_properties:
            self.rows.append(dict(report.user_properties))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = [COLUMNS, ("---",) * len(COLUMNS)]
        lines += [tuple(str(row.get(name, "")) for name in COLUMNS) for row in self.rows]
        for line in lines:
            terminalreporter.write_line(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    paths = [str(Path(__file__).parent.parent / "tests" / test) for test in TESTS]
    sys.exit(pytest.main([*paths, "-q", "-k", "test_catches", *sys.argv[1:]], [Table()]))
