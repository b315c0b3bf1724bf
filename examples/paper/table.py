"""A table of plain text, which is Markdown too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Numbers by row and column."""

    columns: Sequence[str]
    """Headings: of the names of rows, and of each number."""
    rows: Mapping[str, Sequence[float]]

    def __str__(self) -> str:
        lines = [list(self.columns), ["-"] * len(self.columns)]
        lines += [[name, *(f"{number:.4g}" for number in row)] for name, row in self.rows.items()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines[1] = ["-" * width for width in widths]
        return "\n".join(
            f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
            for line in lines
        )
