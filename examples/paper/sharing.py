"""Blocks that the sequences of a request share."""

from __future__ import annotations

from dataclasses import dataclass

from figure import registry

from paged_core.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings import EngineSettings
from paged_plugins.workloads.request import WorkloadRequest, token_ids
from paged_plugins.workloads.spec import WorkloadSpec


@dataclass
class Sharing:
    """Blocks, added up over the steps of a run."""

    distinct: int = 0
    """That are held."""
    in_tables: int = 0
    """Entries of block tables: what would be held if nothing were shared."""

    @property
    def saved(self) -> float:
        """Share of the blocks that sharing saves."""
        return 1 - self.distinct / self.in_tables

    def look_at(self, engine: Engine) -> None:
        """Add what the running sequences hold at this moment."""
        for group in engine.groups:
            tables = [sequence.table.blocks for sequence in group.live]
            self.distinct += len(set().union(*tables))
            self.in_tables += sum(map(len, tables))


def measure(
    settings: EngineSettings, workload: WorkloadSpec, *, beams: bool, every: int
) -> Sharing:
    """Serve a workload, all of which arrives at once, and look at the tables.

    Args:
        beams: the sequences of a request are beams of one search, not samples.
        every: so many steps apart.
    """
    engine, sharing = build_engine(settings, registry()), Sharing()
    try:
        for each in workload.build().draw(0):
            engine.add(_request(each, beams))
        while engine.has_unfinished:
            engine.step()
            if engine.num_steps % every == 0:
                sharing.look_at(engine)
    finally:
        engine.close()
    return sharing


def _request(asked: WorkloadRequest, beams: bool) -> Request:
    sampling = SamplingParams(
        n=asked.n,
        beam_width=asked.n if beams else None,
        temperature=0.0 if beams else 1.0,
        max_tokens=asked.output,
        ignore_eos=True,
        detokenize=False,
    )
    return Request(id=asked.id, prompt=tuple(token_ids(asked.prompt, None)), sampling=sampling)
