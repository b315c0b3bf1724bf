"""Messages to and from an engine's process."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.client.news import Gain, News, Refusal, Start
from paged_core.errors import AdmissionRefused, PluginError
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.engine_process import wire

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(n=3, temperature=0.7, top_k=5, top_p=0.5, seed=2**64 - 1, stop=["a", "é"]),
    SamplingParams(n=2, best_of=4, temperature=1, max_tokens=None, bad_words=["x"]),
    SamplingParams(beam_width=3, early_stopping="never", length_penalty=0.5),
    SamplingParams(logit_bias={3: -1.5, 7: 100}, allowed_token_ids=[3, 4], bad_words_ids=[[1, 2]]),
    SamplingParams(logprobs=2, prompt_logprobs=-1, stop_token_ids=[2], truncate_prompt_tokens=4),
)


@given(
    sampling=st.sampled_from(SAMPLINGS),
    prompt=st.lists(st.integers(0, 2**31), min_size=1, max_size=8),
    priority=st.integers(-(2**31), 2**31),
    texts=st.tuples(st.text(max_size=5), st.none() | st.text(max_size=5), st.text(max_size=5)),
    remaining=st.none() | st.floats(0, 100),
)
def test_a_request_arrives_as_it_was_sent(
    sampling: SamplingParams,
    prompt: list[int],
    priority: int,
    texts: tuple[str, str | None, str],
    remaining: float | None,
) -> None:
    sent = Request(
        id=texts[0],
        prompt=tuple(prompt),
        sampling=sampling,
        priority=priority,
        arrival=50.0,
        cache_salt=texts[1],
        tenant=texts[2],
        deadline=None if remaining is None else 50.0 + remaining,
    )
    message = wire.decode_to_engine(wire.add_message(7, sent, 52.0))
    assert isinstance(message, wire.Add)
    got = wire.added_request(message)
    assert (message.number, message.age) == (7, 2.0)
    assert got.sampling == sent.sampling
    assert (got.id, got.prompt, got.priority) == (sent.id, sent.prompt, sent.priority)
    assert (got.cache_salt, got.tenant) == (sent.cache_salt, sent.tenant)
    assert (got.deadline is None) == (remaining is None)
    if remaining is not None:
        assert got.deadline == pytest.approx(remaining)


def test_news_arrive_as_they_were_told() -> None:
    news = News(
        [1, 2],
        [30, 40],
        [Start(number=1, num_cached=None, prompt_logprobs=[None, (2, [5, 6], [-0.5, -0.25])])],
        [Gain(number=3, index=1, token_ids=[9], logprobs=[(None, [9], [0.0])], stop_reason="x")],
        [3],
        [Refusal.of(4, AdmissionRefused("why", 2.5)), Refusal.of(5, PluginError("how"))],
    )
    message = wire.decode_from_engine(wire.encode(wire.Told(news)))
    assert isinstance(message, wire.Told)
    assert message.news == news
    refused, failed = (each.error() for each in message.news.refused)
    assert isinstance(refused, AdmissionRefused)
    assert (str(refused), refused.retry_after, type(failed)) == ("why", 2.5, PluginError)


@pytest.mark.parametrize("junk", [b"", b"\x80", b"\xc1", wire.encode(["add", 1]), b"\x93"])
def test_what_is_no_message_is_refused(junk: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        wire.decode_to_engine(junk)
