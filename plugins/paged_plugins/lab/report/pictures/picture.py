"""A picture of a report, and the question that several of them answer together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One drawing."""

    title: str
    description: str
    """What it shows, for those who cannot see it."""
    svg: str
    """An ``<svg>`` element to be put into a page, safe as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A line or mark, and what it stands for."""

    label: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureGroup:
    """Pictures that share a legend: of one workload, say."""

    title: str
    legend: Sequence[LegendEntry]
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """The groups that answer a question."""

    question: str
    how_to_read: str
    groups: Sequence[PictureGroup]
    num_left_out: int = 0
    """What was not drawn, to keep the file small."""

    def __bool__(self) -> bool:
        """Whether there is anything to see."""
        return any(group.pictures for group in self.groups)
