"""Text from prompts and conversations by `LLM`, and refusals of what it cannot serve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from integration import tiny_models
from paged_core import LLM, BeamSearchParams, Logprob, Request, SamplingParams
from paged_core.engine.clock import VirtualClock
from paged_core.errors import EngineError, RequestError, SettingsError
from paged_core.log import get_logger
from paged_core.request import FinishReason
from paged_core.text.generation import OutputText
from paged_core.text.outputs import CompletionOutput, OutputDelta

USER = [{"role": "user", "content": "What is a block table?"}]


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


def complete(llm: LLM, prompt: Any = "Once upon a time", **values: Any) -> CompletionOutput:
    sampling = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, **values})
    return llm.generate(prompt, sampling)[0].outputs[0]


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


def test_several_sequences_share_a_prompt(llm: LLM) -> None:
    sampling = SamplingParams(n=3, temperature=2.0, seed=7, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate("Once upon a time", sampling)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) > 1
    assert llm.generate("Once upon a time", sampling)[0].outputs == output.outputs
    assert_idle(llm)


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


def test_logs_stay_out_of_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger().info("hello", who="you")
    assert capsys.readouterr() == ("", "")
    get_logger().warning("beware", who="you")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "beware" in captured.err


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


def test_an_aborted_request_is_yielded_by_the_next_step(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    one, other = llm.submit(["Once upon a time", "2 + 2 ="], sampling)
    steps = llm.steps([one, other])
    next(steps)
    llm.abort([other])
    seen = [changed for changed, _ in zip(steps, range(2), strict=False)]
    assert any(other in changed for changed in seen)
    steps.close()


def test_bad_words_are_not_generated(llm: LLM) -> None:
    free = complete(llm, max_tokens=24).text or ""
    words = [word for word in free.split() if word.isalpha()]
    assert len(set(words)) > 3
    for number in (1, 3):
        text = complete(llm, max_tokens=24, bad_words=words[:number]).text or ""
        assert not set(words[:number]) & set(text.split())
    assert complete(llm, max_tokens=24, bad_words=["Zanzibar"]).text == free


def test_a_bad_word_changes_its_own_request_alone(llm: LLM) -> None:
    free = SamplingParams(max_tokens=12)
    (alone,) = llm.generate("Once upon a time", free)
    word = (alone.outputs[0].text or "").split()[0]
    bad = free.clone(bad_words=[word], n=2, temperature=0.7, seed=1)
    outputs = llm.generate(["Once upon a time"] * 3, [free, bad, free])
    assert outputs[0].outputs == outputs[2].outputs == alone.outputs
    for completion in outputs[1].outputs:
        assert word not in (completion.text or "").split()


def test_only_allowed_tokens_are_generated(llm: LLM) -> None:
    allowed = llm.get_tokenizer().encode("yes no", add_special_tokens=False)
    for values in ({}, {"temperature": 2.0, "n": 3}, {"beam_width": 2}):
        sampling = SamplingParams(max_tokens=6, allowed_token_ids=allowed, **values)
        for completion in llm.generate("Is it?", sampling)[0].outputs:
            assert set(completion.token_ids) <= set(allowed)


def test_text_is_not_decoded_where_it_is_not_wanted(llm: LLM) -> None:
    with_text, without = complete(llm, logprobs=1), complete(llm, logprobs=1, detokenize=False)
    assert without.text == ""
    assert without.token_ids == with_text.token_ids
    assert without.logprobs is not None
    assert {each.decoded_token for entry in without.logprobs for each in entry.values()} == {None}
    streamed = list(llm.stream("Hello", SamplingParams(max_tokens=3, detokenize=False)))
    assert [output.outputs[0].text for output in streamed] == [""] * len(streamed)


def test_a_prompt_is_cut_to_its_last_tokens(llm: LLM) -> None:
    whole = llm.get_tokenizer().encode("What is the sum? 2 + 2 =")
    (output,) = llm.generate("What is the sum? 2 + 2 =", SamplingParams(truncate_prompt_tokens=4))
    assert output.prompt_token_ids == whole[-4:]
    assert output.prompt == "What is the sum? 2 + 2 ="
    longest = llm.engine.capacity.max_model_len - 1
    (output,) = llm.generate([5] * 9999, SamplingParams(truncate_prompt_tokens=-1))
    assert output.prompt_token_ids == [5] * longest
    assert len(output.outputs[0].token_ids) == 1


def test_log_probabilities_have_rank_and_text(llm: LLM) -> None:
    completion = complete(llm, logprobs=3, temperature=3.0, seed=5, max_tokens=20)
    decode = llm.get_tokenizer().decode
    assert completion.logprobs is not None
    ranks = []
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(entry)) == token
        own = entry[token]
        assert own.rank is not None
        ranks.append(own.rank)
        by_rank = sorted(entry.values(), key=lambda each: each.rank or 0)
        assert [each.rank for each in by_rank] == sorted({1, 2, 3, own.rank})
        assert [e.logprob for e in by_rank] == sorted([e.logprob for e in by_rank], reverse=True)
        for token_id, each in entry.items():
            assert each.decoded_token == decode([token_id], skip_special_tokens=False)
    assert max(ranks) > 3, "some of the tokens drawn were not among the best"
    assert min(ranks) == 1


def test_the_whole_vocabulary_is_reported(llm: LLM) -> None:
    vocab_size = llm.engine.capacity.vocab_size
    (output,) = llm.generate(
        [[5, 6, 7]], SamplingParams(max_tokens=2, logprobs=-1, prompt_logprobs=-1)
    )
    for entry in [*(output.outputs[0].logprobs or ()), *(output.prompt_logprobs or ())[1:]]:
        assert entry is not None and len(entry) == vocab_size
        assert math.isclose(sum(math.exp(each.logprob) for each in entry.values()), 1, abs_tol=1e-3)
        assert {each.rank for each in entry.values()} == set(range(1, len(entry) + 1))
    beams = complete(llm, beam_width=2, logprobs=-1, max_tokens=3)
    assert {len(entry) for entry in beams.logprobs or ()} == {4}, "all candidates of a beam"


def test_prompt_log_probabilities_have_ranks(llm: LLM) -> None:
    (output,) = llm.generate("2 + 2 =", SamplingParams(prompt_logprobs=1))
    assert output.prompt_logprobs is not None
    for token, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert entry is not None and isinstance(entry[token], Logprob)
        assert len(entry) == (1 if entry[token].rank == 1 else 2)


def test_the_tokenizer_formats_conversations(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(USER, add_generation_prompt=True)
    assert isinstance(text, str)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert str(tokenizer.apply_chat_template(USER, tokenize=False)) < text
    (chatted,) = llm.chat(USER)
    assert (chatted.prompt, chatted.prompt_token_ids) == (text, ids)


def test_a_model_without_a_tokenizer_says_so(without_text: LLM) -> None:
    for call in (
        without_text.get_tokenizer,
        lambda: without_text.chat(USER),
        lambda: complete(without_text, [5, 6], bad_words=["a"]),
    ):
        with pytest.raises(RequestError, match="needs a tokenizer"):
            call()
    assert complete(without_text, [5, 6], detokenize=False).text == ""


def test_the_content_of_a_message_may_be_parts(llm: LLM) -> None:
    parts = [{"type": "text", "text": "What is a"}, {"type": "text", "text": "block table?"}]
    (expected,) = llm.chat(USER)
    (output,) = llm.chat([{"role": "user", "content": parts}])
    assert (output.prompt, output.outputs) == (expected.prompt, expected.outputs)


def test_chat_options_reach_the_template(llm: LLM) -> None:
    def prompt(**options: Any) -> str:
        return llm.chat(USER, SamplingParams(max_tokens=1), **options)[0].prompt or ""

    started = prompt()
    assert started == prompt(add_generation_prompt=True)
    assert started.startswith(prompt(add_generation_prompt=False))
    assert len(started) > len(prompt(add_generation_prompt=False))
    template = "{{ tools[0].name if tools else 'none' }} {{ mood }}"
    shown = prompt(
        chat_template=template, tools=[{"name": "add"}], chat_template_kwargs={"mood": "calm"}
    )
    assert shown == "add calm"
    unfinished = [*USER, {"role": "assistant", "content": "It is a"}]
    (output,) = llm.chat(unfinished, continue_final_message=True)
    assert (output.prompt or "").endswith("It is a")


def test_tools_that_the_template_ignores_are_warned_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def warned(**options: Any) -> int:
        llm.chat(USER, SamplingParams(max_tokens=1), **options)
        return capsys.readouterr().err.count("tools_ignored")

    tools = [{"name": "add"}]
    with LLM("demo") as llm:
        assert warned() == 0
        assert warned(tools=[]) == 0
        assert warned(tools=tools, chat_template="{{ tools[0].name }}") == 0
        assert warned(tools=tools, chat_template="{{ tools[0]['name'] + 'x' }}") == 0
        assert warned(tools=tools) == 1
        assert warned(tools=tools) == 0


def test_the_prefix_cache_can_be_reset() -> None:
    with LLM(num_blocks=200) as made:
        prompt = list(range(100, 140))
        expected = complete(made, prompt).token_ids
        assert made.generate([prompt])[0].num_cached_tokens == 32
        assert made.reset_prefix_cache()
        (again,) = made.generate([prompt], SamplingParams(max_tokens=12, ignore_eos=True))
        assert (again.num_cached_tokens, again.outputs[0].token_ids) == (0, expected)
        stream = made.stream(prompt)
        next(stream)
        assert not made.reset_prefix_cache(), "a request is running"
        stream.close()  # type: ignore[attr-defined]
        pin = made.pin_prefix(prompt)
        assert not made.reset_prefix_cache(), "a prefix is pinned"
        made.release(pin)
        assert made.reset_prefix_cache()
        assert_idle(made)


def test_metrics_count_what_was_done() -> None:
    with LLM(num_blocks=12, scheduler={"max_num_seqs": 8}) as made:
        prompt = list(range(100, 140))
        for _ in range(2):
            complete(made, [prompt] * 6, max_tokens=30, temperature=1.0)
        made.submit([prompt])
        metrics = made.get_metrics()
        assert (metrics.num_finished, metrics.num_unfinished, metrics.num_failed) == (12, 1, 0)
        assert metrics.num_prompt_tokens == 12 * 40
        assert metrics.num_generated_tokens == 12 * 30
        assert metrics.num_cached_tokens >= 6 * 32
        assert metrics.num_preemptions
        assert metrics.num_steps == made.engine.num_steps
        assert (metrics.num_blocks, metrics.num_free_blocks) == (12, 12)
        assert metrics.seconds["model"] > 0


def test_a_progress_bar_is_shown(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SamplingParams(max_tokens=2), use_tqdm=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "generating" in captured.err
    seen: list[Any] = []

    def bar(items: Iterable[Any], *, total: int, desc: str) -> Iterator[Any]:
        seen.append((total, desc))
        yield from items

    assert len(llm.generate(["a", "b"], SamplingParams(max_tokens=2), use_tqdm=bar)) == 2
    assert seen == [(2, "generating")]


def test_a_progress_bar_that_raises_leaves_nothing_behind(llm: LLM) -> None:
    def broken(items: Iterable[Any], **_: Any) -> Iterable[Any]:
        raise ZeroDivisionError

    def lazy(items: Iterable[Any], **_: Any) -> Iterable[Any]:
        return itertools.islice(items, 0)

    with pytest.raises(ZeroDivisionError):
        llm.generate("a", use_tqdm=broken)
    (output,) = llm.generate("a", use_tqdm=lazy)
    assert output.outputs[0].finish_reason == "abort"
    assert_idle(llm)


@pytest.mark.parametrize("values", [{"top_p": 0.9}, {"n": 2}])
def test_greedy_sampling_is_not_silent(
    values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with LLM(executor="memory", num_blocks=8, max_model_len=32) as made:
        made.generate([1, 2], SamplingParams())
        made.generate([1, 2], SamplingParams(**values, temperature=0.5))
        made.generate([1, 2], SamplingParams(n=2, beam_width=2))
        assert capsys.readouterr().err == ""
        made.generate([[1, 2]] * 3, SamplingParams(**values))
        made.generate([1, 2], SamplingParams(**values))
    warning = capsys.readouterr().err
    assert warning.count("parameters_without_effect") == 1
    ((name, value),) = values.items()
    assert f"{name}={value}" in warning
    assert "set temperature" in warning


PROMPTS: dict[str, list[Any]] = {
    "token ids": [None, 3, b"hi", [b"hi"], [None], [["a"]]],
    "empty": ["", [[]], ["fine", ""]],
    "vocabulary": [[[5, 999_999]], [[-1]]],
    "prompt_token_ids": [{"text": "a"}],
    "has no other key": [{"prompt": "The capital", "prompt_token_ids": [5, 6]}],
    "max_model_len": [[[5] * 1024]],
}
MESSAGES: dict[str, list[Any]] = {
    "message|conversation": [
        *(None, 3, "hello", {"role": "user"}, [None], ["hello"], [[]], [[3]], [USER, 3])
    ],
    "type 'image_url'": [[{"type": "image_url", "image_url": {"url": "x"}}]],
    "needs a 'text'": [[{"type": "text"}], [{"type": "text", "text": 3}]],
    "type None": [[{"text": "a"}]],
    "not a int": [[3]],
}
"""Conversations; and below the first row, contents of a message."""
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("tools must be", {"tools": "add"}),
    ("tools", {"tools": [3]}),
    ("add_generation_prompt must be True or False", {"add_generation_prompt": "no"}),
    ("continue_final_message must be True or False", {"continue_final_message": 1}),
    ("contradict", {"continue_final_message": True, "add_generation_prompt": True}),
    ("chat_template must be text", {"chat_template": 3}),
    ("chat_template_kwargs must be a mapping", {"chat_template_kwargs": [1]}),
    ("name in chat_template_kwargs must be text", {"chat_template_kwargs": {1: 2}}),
    ("give it to chat", {"chat_template_kwargs": {"tools": []}}),
    ("give it to chat", {"chat_template_kwargs": {"messages": []}}),
    ("use_tqdm must be", {"use_tqdm": "yes"}),
    ("sampling_params must be SamplingParams", {"sampling_params": {"n": 1}}),
]
ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("sampling_params must be SamplingParams", {"sampling_params": {"n": 1}}),
    ("sampling_params must be SamplingParams", {"sampling_params": [{"n": 1}]}),
    ("sampling_params must be SamplingParams", {"sampling_params": 0}),
    ("0 entries for 1 prompts", {"sampling_params": []}),
    ("priority must be a whole number", {"priority": [float("nan")]}),
    ("priority must be a whole number", {"priority": True}),
    ("priority must be a whole number", {"priority": "1"}),
    ("2 entries for 1 prompts", {"priority": [1, 2]}),
    ("use_tqdm must be", {"use_tqdm": 1}),
    *(
        (f"{name} of request .* token id 99999", {"sampling_params": SamplingParams(**{name: ids})})
        for name, ids in (("allowed_token_ids", [99_999]), ("bad_words_ids", [[99_999]]))
    ),
]


def refusals() -> Iterator[tuple[str, Callable[[LLM], object]]]:
    """Yield patterns of messages, each with a call that raises one."""
    for message, prompts in PROMPTS.items():
        for prompt in prompts:
            yield message, lambda llm, prompt=prompt: llm.generate(prompt)
    for number, (message, given) in enumerate(MESSAGES.items()):
        for each in given:
            messages = [{"role": "user", "content": each}] if number else each
            yield message, lambda llm, messages=messages: llm.chat(messages)
    for message, options in OPTIONS:
        yield message, lambda llm, options=options: llm.chat(USER, **options)
    for message, arguments in ARGUMENTS:
        yield message, lambda llm, arguments=arguments: llm.generate(["a"], **arguments)
    for values in ({"bad_words": ["a"]}, {"truncate_prompt_tokens": -1}):
        request = Request(id="A", prompt=(5, 6), sampling=SamplingParams(**values))
        yield "only LLM knows", lambda llm, request=request: llm.engine.add(request)
    for wrong in (SamplingParams(), None, {"beam_width": 2}):
        yield "must be BeamSearchParams", lambda llm, wrong=wrong: llm.beam_search("a", wrong)


@pytest.mark.parametrize(("message", "call"), list(refusals()))
def test_a_call_that_can_never_be_served_is_refused_and_leaves_nothing(
    llm: LLM, message: str, call: Callable[[LLM], object]
) -> None:
    with pytest.raises(RequestError, match=message):
        call(llm)
    assert_idle(llm)


def test_the_engine_goes_on_after_a_refusal(llm: LLM) -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        llm.chat(USER, enable_thinking=False)  # type: ignore[call-arg]
    assert llm.generate("2 + 2 =")[0].outputs[0].finish_reason == "stop"


def test_beam_search_returns_all_beams(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    outputs = llm.beam_search(["2 + 2 =", "Hello"], params)
    assert [len(output.outputs) for output in outputs] == [3, 3]
    same = SamplingParams(beam_width=3, n=3, max_tokens=6, ignore_eos=True)
    assert outputs[0].outputs == llm.generate("2 + 2 =", same)[0].outputs


def test_a_request_is_run_and_aborted_by_its_own_llm_alone() -> None:
    with LLM(executor="memory") as ours, LLM(executor="memory") as other:
        mine, theirs = ours.add([1, 2]), other.add([1, 2])
        assert mine.group.id == theirs.group.id
        for use in (ours.abort, lambda them: next(ours.steps(them))):
            with pytest.raises(RequestError, match="'0' is being served by another LLM"):
                use([mine, theirs])
        assert not mine.finished
        assert [one.finished for one in other.run([theirs])] == [True]
        ours.abort([theirs, mine])
        assert mine.group.sequences[0].finish_reason is FinishReason.ABORT


def test_an_executor_without_a_model_and_a_clock_without_time() -> None:
    clock = VirtualClock(100.0)
    clock.sleep(-1.0)
    with LLM(executor="memory", tokenizer="none", num_blocks=64, clock=clock) as llm:
        output = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, logprobs=2))[0]
    assert output.metrics.arrival == output.metrics.finished == 100.0
    for entry in output.outputs[0].logprobs or ():
        assert {(one.rank, one.decoded_token) for one in entry.values()} == {(None, None)}


ASKED = [
    SamplingParams(max_tokens=12, logprobs=1, prompt_logprobs=1),
    SamplingParams(max_tokens=12, n=2, temperature=0.8, seed=3),
    SamplingParams(max_tokens=6, n=2, beam_width=3),
]


def test_a_model_says_the_same_without_its_cache() -> None:
    """A chunk of eight tokens at a time."""
    said = []
    for kv_cache in (True, False):
        chunks = {"name": "token_budget", "max_num_batched_tokens": 8}
        with LLM(scheduler=chunks, num_blocks=64, kv_cache=kv_cache) as llm:
            said.append(llm.generate(["Once upon a time there was a girl"] * len(ASKED), ASKED))
    for one, other in zip(*said, strict=True):
        assert [x.token_ids for x in one.outputs] == [x.token_ids for x in other.outputs]
    known, recomputed = (outputs[0].prompt_logprobs or [] for outputs in said)
    assert len(recomputed) == len(known) > 4
    for before, after in zip(known[1:], recomputed[1:], strict=True):
        assert list(after or ()) == list(before or ())
