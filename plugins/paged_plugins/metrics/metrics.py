"""Observer ``metrics``: what a monitor reads of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paged_core.engine.contexts import ObserverContext
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.sequence import SequenceGroup
from paged_plugins.instruments import exposition, merged_exposition
from paged_plugins.metrics.instruments import EngineInstruments
from paged_plugins.metrics.plugin import MetricsSettings
from paged_plugins.written_files import prepare_file, write_text

_LONGEST = 10_000_000
"""Where the settings do not say how long a sequence may become."""


@dataclass(slots=True)
class _Progress:
    """The progress of one request."""

    group: SequenceGroup
    num_prompt: int
    num_tokens: int = 0
    """Generated so far, by all of its sequences."""
    last_at: float = 0.0
    """When the newest of them were there."""
    num_preemptions: int = 0

    def count(self) -> int:
        """Return how many tokens there are now."""
        sequences = self.group.sequences
        if len(sequences) == 1:
            return len(sequences[0].tokens) - self.num_prompt
        return sum(len(each.tokens) - self.num_prompt for each in sequences)


class Metrics(Observer):
    """Counts from the start of the engine. Times are on the engine's clock.

    :meth:`snapshot` is for Python, :meth:`text` for Prometheus. Both may be called at any time, in
    the engine's thread.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: MetricsSettings, context: ObserverContext, /) -> None:
        settings = context.settings
        cache = {
            "block_size": str(settings.block_size),
            "cache_dtype": settings.kv_cache_dtype,
            "enable_prefix_caching": str(settings.block_allocator.name != "uncached"),
            "num_gpu_blocks": str(context.num_blocks),
            "num_cpu_blocks": str(settings.num_host_blocks or 0),
            "kv_cache_size_tokens": str(context.num_blocks * settings.block_size),
        }
        self._counts = EngineInstruments(settings.max_model_len or _LONGEST, cache)
        self.labels = {"model_name": options.model_name or settings.model, "engine": "0"}
        self._num_blocks = context.num_blocks
        self._live: dict[str, _Progress] = {}
        self._path = options.path
        if self._path is not None:
            prepare_file(self._path, "metrics.path")

    def snapshot(self) -> dict[str, Any]:
        """Return every value by its name: numbers; by label, numbers; of histograms, mappings with
        ``count``, ``sum`` and ``buckets``."""
        return {each.name: each.snapshot() for each in self._counts}

    def text(self) -> str:
        """Return every value in Prometheus' text format."""
        return exposition(self._counts, self.labels)

    def report(self, since: int, /) -> str:
        """Return :meth:`text`; a front end that is scraped asks for it."""
        return self.text()

    @staticmethod
    def merge_reports(reports: Mapping[int, str]) -> str:
        """Return one page of those of several engines; the label ``engine`` has their numbers."""
        return merged_exposition(
            text.replace(',engine="0"', f',engine="{number}"') for number, text in reports.items()
        )

    def on_step(self, step: StepRecord, /) -> None:
        counts, queues = self._counts, step.queues
        live = self._live
        self._advance((live[name] for name in step.scheduled if name in live), step.ended)
        if step.scheduled:
            counts.iteration_tokens.observe(sum(step.scheduled.values()))
        counts.evicted_blocks.add(len(step.evicted))
        counts.num_requests_running.set(len(queues.running))
        counts.num_requests_waiting.set(len(queues.waiting))
        counts.num_requests_waiting_by_reason.set(len(queues.waiting), "capacity")
        counts.num_requests_swapped.set(len(queues.swapped))
        counts.kv_cache_usage.set(1 - step.free_blocks / self._num_blocks)

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        counts = self._counts
        if event == "added":
            self._live[group.id] = _Progress(group, len(group.request.prompt))
            counts.added(group)
        elif event == "admitted" and not group.num_preemptions:
            counts.prefix_cache_queries.add(len(group.request.prompt))
            counts.prefix_cache_hits.add(group.num_cached or 0)
        elif event in {"preempted", "swapped_out"}:
            counts.num_preemptions.add(1)
            if group.id in self._live:
                self._live[group.id].num_preemptions += 1
        elif event == "finished" and group.id in self._live:
            self._finish(self._live.pop(group.id))

    def close(self) -> None:
        if self._path is not None:
            write_text(self._path, self.text())

    def _advance(self, advanced: Iterable[_Progress], now: float) -> None:
        """Count the tokens that requests have gained, which were there at ``now``."""
        counts, total = self._counts, 0
        gained_since: dict[float, int] = {}
        for progress in advanced:
            num_tokens = progress.count()
            gained = num_tokens - progress.num_tokens
            if gained <= 0:
                continue
            if progress.num_tokens:
                last_at = progress.last_at
                gained_since[last_at] = gained_since.get(last_at, 0) + gained
            else:
                counts.first_token(progress.group, now)
            total += gained
            progress.num_tokens, progress.last_at = num_tokens, now
        for last_at, gained in gained_since.items():
            counts.inter_token_latency.observe(now - last_at, gained)
        counts.generation_tokens.add(total)

    def _finish(self, progress: _Progress) -> None:
        """Count a request that has ended, whatever it has got to."""
        ended = progress.group.finished_at
        assert ended is not None
        self._advance([progress], ended)
        self._counts.ended(progress.group, ended, progress.num_tokens)
        self._counts.request_num_preemptions.observe(progress.num_preemptions)
