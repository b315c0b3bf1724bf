"""The option ``--ray``, with and without an address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from paged_core.cli.frame import SettingsCommand
from paged_plugins.lab.tasks.ray_cluster import LOCAL

_ADDRESS = re.compile(rf"auto|{LOCAL}|\S+:\S*")
OnRay = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Run on a Ray cluster: auto or host:port; alone, one is started here.",
    ),
]


class RayCommand(SettingsCommand):
    """Takes ``--ray`` with and without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let ``--ray`` alone mean a cluster that is started here."""
        return super().parse_args(ctx, list(with_address(args)))


def with_address(args: Sequence[str]) -> Iterator[str]:
    """Yield arguments, those of ``--ray`` completed."""
    for place, word in enumerate(args):
        following = args[place + 1] if place + 1 < len(args) else ""
        alone = word == "--ray" and not _ADDRESS.fullmatch(following)
        yield f"--ray={LOCAL}" if alone else word
