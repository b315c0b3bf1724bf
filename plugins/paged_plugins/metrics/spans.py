"""Observer ``spans``: the phases of each request as OpenTelemetry spans.

Where they go is said by OpenTelemetry's own variables: ``OTEL_EXPORTER_OTLP_ENDPOINT`` and its kin.
Names of attributes are those of its conventions for generative models, as far as those go.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from paged_core.engine.contexts import ObserverContext
from paged_core.errors import SettingsError
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.sequence import SequenceGroup
from paged_plugins.metrics.plugin import SpansSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_PHASES = ("queue", "prefill", "decode")
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


class Spans(Observer):
    """Sends a span for each request when it has ended, with one for each of its phases: ``queue``,
    ``prefill``, ``decode``.

    Args:
        exporter: ``None``: OTLP over HTTP. Spans are sent by a thread of the SDK's.

    Raises:
        SettingsError: the packages are not installed.
    """

    def __init__(
        self,
        options: SpansSettings,
        context: ObserverContext,
        /,
        exporter: SpanExporter | None = None,
    ) -> None:
        reason = unavailable_reason(options)
        if reason is not None:
            raise SettingsError(f"observer 'spans' cannot run here: {reason}")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": options.service_name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("paged_core")
        self._model = context.settings.model
        self._epoch: float | None = None
        """Seconds to add to the engine's clock for the time of day."""

    def on_step(self, step: StepRecord, /) -> None:
        self._epoch = time.time() - step.ended

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished" and group.finished_at is not None:
            if self._epoch is None:  # it ended before any step
                self._epoch = time.time() - group.finished_at
            self._send(group, group.finished_at, self._epoch)

    def close(self) -> None:
        self._provider.shutdown()

    def _send(self, group: SequenceGroup, finished: float, epoch: float) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        def at(seconds: float) -> int:
            """Return a moment of the engine's clock in nanoseconds of the time of day."""
            return int((epoch + seconds) * 1e9)

        first = group.first_token_at
        whole = self._tracer.start_span(
            "llm_request",
            kind=SpanKind.SERVER,
            start_time=at(group.arrival),
            attributes=self._attributes(group, finished),
        )
        inside = set_span_in_context(whole)
        moments = [group.arrival, group.admitted_at, first, finished]
        for name, (start, end) in zip(_PHASES, pairwise(moments), strict=True):
            if start is None:
                break
            phase = self._tracer.start_span(name, inside, start_time=at(start))
            phase.end(at(finished if end is None else end))
        failed = next((each.error for each in group.sequences if each.error), None)
        if failed is not None:
            whole.set_status(Status(StatusCode.ERROR, failed))
        whole.end(at(finished))

    def _attributes(self, group: SequenceGroup, finished: float) -> dict[str, Any]:
        sampling = group.request.sampling
        reasons = [each.finish_reason.value for each in group.sequences if each.finish_reason]
        found = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": self._model,
            "gen_ai.request.id": group.id,
            "gen_ai.request.temperature": float(sampling.temperature),
            "gen_ai.request.top_p": float(sampling.top_p),
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.n": sampling.n,
            "gen_ai.response.finish_reasons": reasons,
            "gen_ai.usage.input_tokens": len(group.request.prompt),
            "gen_ai.usage.output_tokens": sum(len(each.output) for each in group.sequences),
            "gen_ai.usage.cached_tokens": group.num_cached or 0,
            "gen_ai.latency.e2e": finished - group.arrival,
            "paged_core.num_preemptions": group.num_preemptions,
        }
        if group.admitted_at is not None:
            found["gen_ai.latency.time_in_queue"] = group.admitted_at - group.arrival
        if group.first_token_at is not None:
            found["gen_ai.latency.time_to_first_token"] = group.first_token_at - group.arrival
        return {name: value for name, value in found.items() if value is not None}


def unavailable_reason(options: SpansSettings, /) -> str | None:
    """Say why spans cannot be sent from here, if they cannot."""
    try:
        missing = [name for name in _NEEDED if find_spec(name) is None]
    except ModuleNotFoundError:
        missing = ["opentelemetry"]
    if missing:
        return "OpenTelemetry is not installed: `pip install paged-core[otel]`"
    return None
