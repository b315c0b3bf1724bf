"""`LLM`: what a person who writes Python can do, and what happens when they err."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from paged_core import LLM, SamplingParams
from paged_core.errors import EngineError, RequestError, SettingsError
from paged_core.log import get_logger
from paged_core.text.generation import OutputText
from paged_core.text.outputs import OutputDelta


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(num_blocks=200) as made:
        yield made


@pytest.fixture(scope="module")
def without_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(
        str(tiny_models.save("llama", tmp_path_factory.mktemp("llama"))), num_blocks=50
    ) as made:
        yield made


def assert_idle(llm: LLM) -> None:
    assert not llm.engine.has_unfinished
    assert llm.engine.kv_cache.num_free == llm.engine.kv_cache.num_blocks


def test_text_in_text_out(llm: LLM) -> None:
    (output,) = llm.generate(["What is 2 + 2?"], SamplingParams(max_tokens=32))
    assert output.finished
    assert output.prompt == "What is 2 + 2?"
    assert "4" in (output.outputs[0].text or "")
    assert output.outputs[0].finish_reason == "stop"
    assert output.metrics.finished is not None
    assert output.metrics.first_token is not None
    assert output.metrics.arrival <= output.metrics.first_token <= output.metrics.finished


def test_forms_of_a_prompt(llm: LLM) -> None:
    assert llm.tokenizer is not None
    text = "The capital of France is"
    ids = llm.tokenizer.encode(text)
    forms: list[Any] = [text, [text], ids, [ids], [{"prompt": text}], {"prompt_token_ids": ids}]
    outputs = [llm.generate(form) for form in forms]
    assert {len(listed) for listed in outputs} == {1}
    assert {tuple(listed[0].outputs[0].token_ids) for listed in outputs} == {
        tuple(outputs[0][0].outputs[0].token_ids)
    }


def test_a_prompt_is_given_once(llm: LLM) -> None:
    both: Any = {"prompt": "The capital", "prompt_token_ids": [5, 6]}
    with pytest.raises(RequestError, match="'prompt_token_ids' has no other key"):
        llm.generate(both)


def test_several_sequences_share_a_prompt(llm: LLM) -> None:
    sampling = SamplingParams(n=3, temperature=2.0, seed=7, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate("Once upon a time", sampling)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) > 1
    assert llm.generate("Once upon a time", sampling)[0].outputs == output.outputs
    assert_idle(llm)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_as_many_sequences_as_the_prompt_has_tokens(llm: LLM, length: int) -> None:
    """Each draws from the last token of the prompt, and none from another."""
    prompt = list(range(40, 40 + length))
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    (alone,) = llm.generate(prompt, sampling)
    (several,) = llm.generate(prompt, replace(sampling, n=length))
    assert len(several.outputs) == length
    for completion in several.outputs:
        assert completion.token_ids == alone.outputs[0].token_ids


def test_a_seed_means_the_same_in_every_batch(llm: LLM) -> None:
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=16)
    alone = llm.generate("Tell me a story.", sampling)[0].outputs[0].token_ids
    others = ["Hello", "What is a scheduler?", "Tell me a story."]
    batch = llm.generate(others, [SamplingParams(temperature=1.0)] * 2 + [sampling])
    assert batch[2].outputs[0].token_ids == alone


def test_stop_strings_cut_the_text(llm: LLM) -> None:
    whole = llm.generate("Count from one to ten:", SamplingParams(max_tokens=64))[0].outputs[0].text
    assert whole is not None and "five" in whole
    (output,) = llm.generate(
        "Count from one to ten:", SamplingParams(max_tokens=64, stop=["nothing", "five"])
    )
    completion = output.outputs[0]
    assert completion.text == whole[: whole.index("five")]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "five")
    kept = SamplingParams(max_tokens=64, stop="five", include_stop_str_in_output=True)
    assert (llm.generate("Count from one to ten:", kept)[0].outputs[0].text or "").endswith("five")


def test_log_probabilities(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=4, logprobs=3, prompt_logprobs=1, ignore_eos=True)
    prompt = list(range(50, 90))
    (output,) = llm.generate([prompt], sampling)
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert completion.cumulative_logprob is not None
    chosen = [
        entry[token].logprob
        for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)
    ]
    assert math.isclose(sum(chosen), completion.cumulative_logprob, rel_tol=1e-5)
    assert all(len(entry) == 3 for entry in completion.logprobs), "the best one was chosen"
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    for token, entry in zip(prompt[1:], output.prompt_logprobs[1:], strict=True):
        assert entry is not None and next(iter(entry)) == token
    again = llm.generate([prompt], sampling)[0]
    assert again.num_cached_tokens == 0, "cached tokens would have no log-probabilities"
    assert again.prompt_logprobs == output.prompt_logprobs
    assert_idle(llm)


def test_chunks_and_preemption_leave_prompt_logprobs_whole(llm: LLM) -> None:
    prompts = [list(range(start, start + 40)) for start in (100, 200, 300)]
    sampling = SamplingParams(max_tokens=20, prompt_logprobs=0, ignore_eos=True)
    expected = [output.prompt_logprobs for output in llm.generate(prompts, sampling)]
    with LLM(num_blocks=9, scheduler={"max_num_batched_tokens": 11}) as small:
        generations = small.submit(prompts, sampling)
        list(small.run(generations))
        assert sum(generation.group.num_preemptions for generation in generations)
        got = [generation.output().prompt_logprobs for generation in generations]
    for theirs, ours in zip(expected, got, strict=True):
        assert theirs is not None and ours is not None
        assert [list(entry or ()) for entry in ours] == [list(entry or ()) for entry in theirs]


def test_streaming_adds_up(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=24)
    texts = [output.outputs[0].text or "" for output in llm.stream("Hello!", sampling)]
    assert len(texts) > 3
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == llm.generate("Hello!", sampling)[0].outputs[0].text


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=24, logprobs=1),
        SamplingParams(max_tokens=40, stop=["a", " be", "zzz"]),
        SamplingParams(max_tokens=12, n=3, temperature=1.0, seed=1),
        SamplingParams(max_tokens=6, beam_width=2),
    ],
)
def test_deltas_add_up_to_the_output(llm: LLM, sampling: SamplingParams) -> None:
    generations = llm.submit(["Hello!", "Once upon a time"], sampling)
    gained: dict[tuple[str, int], list[OutputDelta]] = {}
    for changed in llm.steps(generations):
        for generation in changed:
            for delta in generation.take():
                gained.setdefault((generation.group.id, delta.index), []).append(delta)
    for generation in generations:
        assert generation.take() == []
        for completion in generation.output().outputs:
            deltas = gained[generation.group.id, completion.index]
            assert "".join(delta.text or "" for delta in deltas) == completion.text
            assert [token for d in deltas for token in d.token_ids] == completion.token_ids
            reasons = [delta.finish_reason for delta in deltas]
            assert reasons == [None] * (len(deltas) - 1) + [completion.finish_reason]
            if completion.logprobs is not None:
                assert [e for d in deltas for e in d.logprobs or ()] == completion.logprobs
            if sampling.beam_width is None:
                assert all(len(delta.token_ids) <= 1 for delta in deltas)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_yields_only_what_adds_to_it(is_async: bool) -> None:
    """Nothing before the first token, though the prompt takes several steps."""
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    with LLM(
        num_blocks=100, async_scheduling=is_async, scheduler={"max_num_batched_tokens": 2}
    ) as made:
        outputs = [output.outputs[0] for output in made.stream("Once upon a time", sampling)]
    assert [len(output.token_ids) for output in outputs] == [1, 2, 3, 4, 5]


def test_text_is_decoded_once_per_token(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is looked at."""
    decoded: list[int] = []
    append = OutputText.append

    def counting(self: OutputText, token_ids: Sequence[int], /) -> str | None:
        decoded.extend(token_ids)
        return append(self, token_ids)

    monkeypatch.setattr(OutputText, "append", counting)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    *_, last = llm.stream("Once upon a time", sampling)
    assert decoded == last.outputs[0].token_ids


def test_who_stops_listening_gives_up(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", SamplingParams(max_tokens=500, ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert_idle(llm)


def test_a_stream_ends_though_another_call_did_its_steps(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    stream = llm.stream("2 + 2 =", sampling)
    next(stream)
    longer = SamplingParams(max_tokens=12, ignore_eos=True)
    llm.generate("3 + 4 =", longer)
    (rest,) = stream
    assert rest.finished
    assert len(rest.outputs[0].token_ids) == 6


def test_a_stream_ends_though_its_request_was_given_up(llm: LLM) -> None:
    (generation,) = llm.submit("Once upon a time", SamplingParams(max_tokens=99, ignore_eos=True))
    running = llm.steps([generation])
    next(running)
    llm.abort([generation])
    assert list(running)[-1] == [generation]


def test_each_request_ends_once_though_another_call_did_its_steps(llm: LLM) -> None:
    sampling = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (2, 2, 4)]
    generations = llm.submit(["2 + 2 =", "2 + 3 =", "2 + 4 ="], sampling)
    ended = []
    for generation in llm.run(generations):
        ended.append(generation)
        llm.generate("3 + 4 =", SamplingParams(max_tokens=12, ignore_eos=True))
    assert ended == generations


def test_a_closed_llm_says_so() -> None:
    made = LLM(executor="memory", num_blocks=8, max_model_len=32)
    made.close()
    made.close()
    with pytest.raises(EngineError, match="closed"):
        made.generate([1, 2, 3])


def test_a_second_thread_is_told_to_wait_for_the_first() -> None:
    with LLM(executor="memory", num_blocks=8, max_model_len=32) as made:
        with pytest.raises(EngineError, match="another thread"):
            made.driver.use(lambda: made.generate([1, 2, 3]))
        assert not made.engine.has_unfinished


def test_logs_stay_out_of_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger().info("hello", who="you")
    assert capsys.readouterr() == ("", "")
    get_logger().warning("beware", who="you")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "beware" in captured.err


@pytest.mark.parametrize("prompts", [None, 3, b"hi", [b"hi"], [None]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match="token ids"):
        llm.generate(prompts)
    assert_idle(llm)


def test_chat(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "What is a block table?"}]
    (output,) = llm.chat(conversation, SamplingParams(max_tokens=64))
    assert "block" in (output.outputs[0].text or "")
    assert len(llm.chat([conversation, conversation])) == 2


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty"),
        ([[]], "empty"),
        ([[5, 999_999]], "999999.*vocabulary"),
        ([[-1]], "vocabulary"),
        ([["a"]], "token ids"),
        ([{"text": "a"}], "prompt_token_ids"),
        ([[5] * 1024], "max_model_len"),
        (["fine", ""], "empty"),
    ],
)
def test_what_can_never_run_is_refused_and_the_engine_goes_on(
    llm: LLM, prompt: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt)
    assert_idle(llm)
    assert llm.generate("2 + 2 =")[0].outputs[0].finish_reason == "stop"


def test_without_a_tokenizer_token_ids_are_served(without_text: LLM) -> None:
    (output,) = without_text.generate([[5, 6, 7]])
    assert output.outputs[0].text is None
    assert output.outputs[0].token_ids
    with pytest.raises(RequestError, match="token ids"):
        without_text.generate("text")
    with pytest.raises(RequestError, match="stop string"):
        without_text.generate([[5]], SamplingParams(stop="x"))


def test_settings_are_keywords() -> None:
    with pytest.raises(SettingsError, match="did you mean 'scheduler'"):
        LLM(schedular="token_budget")


def test_from_config_reads_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("num_blocks: 64\nscheduler: prefill_or_decode\nexecutor: memory\n")
    monkeypatch.setenv("PAGED_CORE_BLOCK_ALLOCATOR__NAME", "uncached")
    with LLM.from_config(file, seed=3) as llm:
        settings = llm.settings
        assert (settings.num_blocks, settings.seed) == (64, 3)
        assert settings.scheduler.name == "prefill_or_decode"
        assert settings.block_allocator.name == "uncached"
        assert llm.generate([[1, 2, 3]])[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("runner", ["native", "transformers"])
def test_a_processor_that_raises_fails_its_request_alone_with_steps_planned_ahead(
    runner: str,
) -> None:
    def bad(output: Sequence[int], logits: Any) -> Any:
        if len(output) >= 2:
            raise ValueError("no")
        return logits

    params = [
        SamplingParams(logits_processors=[bad], ignore_eos=True),
        SamplingParams(max_tokens=6, ignore_eos=True),
    ]
    with LLM(async_scheduling=True, num_blocks=100, runner=runner) as made:
        for _ in range(2):
            failed, other = made.generate(["2 + 2 =", "What is preemption?"], params)
            assert "bad raised ValueError: no" in (failed.outputs[0].error or "")
            assert len(failed.outputs[0].token_ids) == 2
            assert len(other.outputs[0].token_ids) == 6
            assert_idle(made)


@pytest.mark.parametrize("is_async", [False, True])
def test_prompt_logprobs_of_a_prompt_that_is_preempted_in_mid_prefill(is_async: bool) -> None:
    scheduler = {"max_num_batched_tokens": 6, "reserve_full_sequence": False}
    with LLM(num_blocks=4, block_size=2, scheduler=scheduler, async_scheduling=is_async) as made:
        generations = made.submit(
            ["What is preemption?", "2 + 2 ="],
            [SamplingParams(max_tokens=3), SamplingParams(max_tokens=1, prompt_logprobs=0)],
        )
        list(made.run(generations))
        output = generations[1].output()
        assert generations[1].group.num_preemptions
        assert len(output.prompt_logprobs or ()) == len(output.prompt_token_ids)


def test_an_aborted_request_is_yielded_by_the_next_step(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    one, other = llm.submit(["Once upon a time", "2 + 2 ="], sampling)
    steps = llm.steps([one, other])
    next(steps)
    llm.abort([other])
    seen = [changed for changed, _ in zip(steps, range(2), strict=False)]
    assert any(other in changed for changed in seen)
    steps.close()
