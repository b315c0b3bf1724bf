"""Every request that an engine can serve alone has to be served."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.engine import Engine
from paged_core.errors import RequestError
from paged_core.request import FinishReason, Request
from paged_testing.memory_engine import serve
from paged_testing.workload import Workload, simple_request

_NUM_NEW = 2
"""Tokens that each request generates."""


def check_serves_what_fits(
    engine: Engine, budget: int | None = None, max_num_seqs: int | None = None
) -> None:
    """Check that prompts of any length, one and several sequences, are accepted and served.

    Args:
        engine: a fresh one; left out is what would not fit it if it were empty.
        budget: tokens that a step computes at most; ``None``: there is no limit.
        max_num_seqs: sequences that may run; ``None``: there is no limit.

    Raises:
        AssertionError: a request was refused, ignored or cut short; the message says which and why.
    """
    groups = []
    for request in _requests(engine, budget, max_num_seqs):
        try:
            groups.append(engine.add(request))
        except RequestError as error:
            raise AssertionError(f"it fits alone, but is refused: {error}") from error
    serve(engine, Workload(()))
    for group in groups:
        for sequence in group.sequences:
            assert sequence.finish_reason is not FinishReason.IGNORED, (
                f"{group} fits alone, but is ignored: {sequence.error}"
            )
            assert len(sequence.output) == _NUM_NEW, f"{sequence} was cut short: {sequence.error}"


def _requests(engine: Engine, budget: int | None, max_num_seqs: int | None) -> Iterator[Request]:
    kv_cache, longest = engine.kv_cache, engine.capacity.max_model_len
    num_blocks = kv_cache.num_blocks - kv_cache.watermark_blocks
    for n, step in ((1, 1), (2, 3), (3, 5)):
        for length in range(1, longest - _NUM_NEW + 1, step):
            if (
                n * kv_cache.blocks_for(length + _NUM_NEW) <= num_blocks
                and (budget is None or n * (length + _NUM_NEW) <= budget)
                and (max_num_seqs is None or n <= max_num_seqs)
            ):
                yield simple_request(f"prompt{length}n{n}", length, _NUM_NEW, n=n)
