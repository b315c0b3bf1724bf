"""Blocks that the sequences of a request share."""

from __future__ import annotations

from figure import registry

from paged_core.engine.wiring import build_engine
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings import EngineSettings
from paged_plugins.workloads.request import WorkloadRequest, token_ids
from paged_plugins.workloads.spec import WorkloadSpec

_EVERY = 8
"""Steps between two looks at the block tables."""


def saved(settings: EngineSettings, workload: WorkloadSpec, *, beams: bool) -> float:
    """Return the share of the blocks that sharing saves of a workload which arrives at once.

    Args:
        beams: the sequences of a request are beams of one search, not samples.
    """
    engine = build_engine(settings, registry())
    distinct = in_tables = 0
    try:
        for each in workload.build().draw(0):
            engine.add(_request(each, beams))
        while engine.has_unfinished:
            engine.step()
            for group in engine.groups if engine.num_steps % _EVERY == 0 else ():
                tables = [sequence.table.blocks for sequence in group.live]
                distinct += len(set().union(*tables))
                in_tables += sum(map(len, tables))
    finally:
        engine.close()
    return 1 - distinct / in_tables


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
