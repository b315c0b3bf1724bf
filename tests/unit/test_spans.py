"""Observer ``spans``: what a collector receives of each request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from paged_core import LLM, SamplingParams
from paged_core.plugins.registry import Registry
from paged_plugins.metrics.plugin import SpansSettings
from paged_plugins.metrics.spans import unavailable_reason
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import simple_request
from unit.span_collector import collecting


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    with collecting() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        yield spans


def attributes(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


def test_the_phases_of_each_request_are_sent(collector: list[Any]) -> None:
    with LLM(num_blocks=64, observers=[{"name": "spans", "service_name": "tests"}]) as llm:
        llm.generate(["Once upon a time", "Hello"], SamplingParams(max_tokens=4))
    whole = [span for span in collector if span.name == "llm_request"]
    assert len(whole) == 2
    for span in whole:
        inside = {each.name: each for each in collector if each.parent_span_id == span.span_id}
        assert list(inside) == ["queue", "prefill", "decode"]
        queue, prefill, decode = inside.values()
        assert span.start_time_unix_nano == queue.start_time_unix_nano
        assert queue.end_time_unix_nano == prefill.start_time_unix_nano
        assert prefill.end_time_unix_nano == decode.start_time_unix_nano
        assert decode.end_time_unix_nano == span.end_time_unix_nano
        assert all(each.trace_id == span.trace_id for each in inside.values())
        found = attributes(span)
        assert found["gen_ai.request.model"] == "demo"
        assert found["gen_ai.usage.output_tokens"] == 4
        assert found["gen_ai.usage.input_tokens"]
        assert found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]


def test_what_never_ran_has_waited_only(collector: list[Any]) -> None:
    engine = build_memory_engine(
        Registry.discover(), observers=[{"name": "spans", "service_name": "tests"}]
    )
    engine.add(simple_request("A", 6, 2))
    engine.abort("A", "no reader waits for it")
    engine.close()
    assert {span.name for span in collector} == {"llm_request", "queue"}
    (whole,) = (span for span in collector if span.name == "llm_request")
    assert whole.status.message == "no reader waits for it"


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from paged_plugins.metrics import spans

    assert unavailable_reason(SpansSettings()) is None
    monkeypatch.setattr(spans, "find_spec", lambda name: None)
    assert "paged-core[otel]" in str(unavailable_reason(SpansSettings()))
