"""The page of the league: who wins where, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean
from typing import Any

from paged_plugins.lab.league.league import OURS, Entrant, Match
from paged_plugins.lab.measures import MEASURES, value_text
from paged_plugins.lab.statistics.comparison import Comparison
from paged_plugins.lab.statistics.differences import Difference
from paged_plugins.lab.study.arms import BASE

_PACKAGE = "paged_plugins.lab.league"


@dataclass(frozen=True, kw_only=True)
class Place:
    """An entrant on one workload and one GPU."""

    entrant: Entrant
    workload: str
    gpu: str
    found: Mapping[str, Difference]
    """By measure; empty for the default, and for what failed."""
    values: Mapping[str, str]
    """Means, by measure."""
    asked: str
    never: str | None
    """Why it was never asked; ``None``: it was."""
    notes: str
    """Label of its load, and what was refused."""
    failure: str | None
    is_winner: bool


@dataclass(frozen=True, kw_only=True)
class Table:
    """A division on all GPUs."""

    slot: str
    title: str
    measures: Sequence[str]
    columns: Sequence[tuple[str, str]]
    """Workloads and GPUs."""
    places: Mapping[str, Mapping[tuple[str, str], Place]]
    """By label of the entrant and column."""
    entrants: Sequence[Entrant]

    def winner(self, column: tuple[str, str]) -> Place:
        """Return who won, which may be the default."""
        return next(each[column] for each in self.places.values() if each[column].is_winner)

    def bounds(self, column: tuple[str, str]) -> Iterator[Place]:
        """Yield what knows the future."""
        for each in self.entrants:
            if each.knows_future and each.label in self.places:
                yield self.places[each.label][column]

    def count(self, entrant: Entrant, verdict: str) -> int:
        """Return on how many columns the ranking measure of an entrant has a verdict."""
        ranked = self.measures[0]
        places = self.places.get(entrant.label, {}).values()
        return sum(
            ranked in each.found and each.found[ranked].verdict == verdict for each in places
        )


def tables(played: Sequence[tuple[Match, Comparison]]) -> list[Table]:
    """Return a table of each division."""
    made = []
    for slot in dict.fromkeys(match.slot for match, _ in played):
        own = [each for each in played if each[0].slot == slot]
        places: dict[str, dict[tuple[str, str], Place]] = {}
        for match, found in own:
            for place in _places(match, found):
                around = places.setdefault(place.entrant.label, {})
                around[place.workload, place.gpu] = place
        match = own[0][0]
        made.append(
            Table(
                slot=slot,
                title=match.division.title,
                measures=[each for each in match.division.measures if each in MEASURES],
                columns=[
                    (name, each.gpu) for name in own[0][1].results.workloads for each, _ in own
                ],
                places=places,
                entrants=_with_default(match),
            )
        )
    return made


def _with_default(match: Match) -> list[Entrant]:
    """Return the entrants, the default first."""
    found = sorted(match.entrants, key=lambda each: not each.is_default)
    if not found[0].is_default:
        found.insert(0, Entrant(label="default", changes={}, package=OURS, is_default=True))
    return found


def _places(match: Match, told: Comparison) -> Iterator[Place]:
    results, ranked = told.results, match.division.measures[0]
    found = {(each.arm, each.workload, each.measure): each for each in told.differences}
    sign = 1 if MEASURES[ranked].better == "higher" else -1
    for workload in results.workloads:
        better = {
            each.label: sign * difference.change
            for each in match.entrants
            if not each.knows_future
            and (difference := found.get((each.label, workload, ranked)))
            and difference.verdict == "better"
        }
        best = max(better, key=better.__getitem__, default=None)
        for entrant in _with_default(match):
            if entrant.reason:
                continue
            arm = BASE if entrant.is_default else entrant.label
            means = {name: results.mean(arm, workload, name) for name in match.division.measures}
            failure = results.failures.get(arm)
            own = [each for each in told.asked if (each.arm, each.workload) == (arm, workload)]
            asked = [each for each in own if each.slot != "length_predictor"]  # others decide
            never = [each.never for each in asked if each.never]
            yield Place(
                entrant=entrant,
                workload=workload,
                gpu=match.gpu,
                found={
                    name: each
                    for name in match.division.measures
                    if (each := found.get((arm, workload, name)))
                },
                values={
                    name: value_text(name, each) for name, each in means.items() if each is not None
                },
                asked="; ".join(_asked(each.row) for each in asked if each.row),
                never="; ".join(never) if asked and len(never) == len(asked) else None,
                notes=_notes(told, arm, workload),
                failure=str(failure) if failure else None,
                is_winner=entrant.is_default if best is None else entrant.label == best,
            )


def _asked(row: Sequence[str]) -> str:
    _, _, noun, decisions, choices, differed = row
    otherwise = "" if differed == "-" else f", {differed.partition(' ')[0]} otherwise"
    return f"{choices} of {decisions} {noun}{otherwise}"


def _notes(told: Comparison, arm: str, workload: str) -> str:
    results = told.results
    saturation = results.saturation.get((arm, workload))
    refused = results.values(arm, workload, "failed")
    parts: list[str] = [saturation.label if saturation else "-"]
    if refused and fmean(refused):
        parts.append(f"{value_text('failed', fmean(refused))} failed")
    return ", ".join(parts)


def page(played: Sequence[tuple[Match, Comparison]], facts: Mapping[str, Any]) -> str:
    """Return the league as one HTML page that needs nothing else.

    Args:
        facts: ``command``, ``date``, ``version``, ``model`` (the cost model) and ``minutes``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    chosen = {match.slot: match for match, _ in played}
    rendered = environment.get_template("page.html").render(
        tables=tables(played),
        matches=chosen,
        measures=MEASURES,
        css=files("paged_plugins.lab.report").joinpath("page.css").read_text("utf-8"),
        seeds=len(played[0][0].study.seeds),
        gpus=list(dict.fromkeys(match.gpu for match, _ in played)),
        **facts,
    )
    return "\n".join(line for line in rendered.splitlines() if line) + "\n"
