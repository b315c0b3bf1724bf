"""Prints each component that is wrong on purpose, and the conformance test that finds it.

Run by ``make mutants``, or with arguments for pytest. The mutants are in ``tests/unit/mutants.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent / "tests" / "unit" / "test_testing_kit.py"
COLUMNS = ("slot", "mutant", "caught by", "written", "seconds", "message")


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
    sys.exit(pytest.main([str(TESTS), "-q", "-k", "test_catches", *sys.argv[1:]], [Table()]))
