"""What users of vLLM and of transformers know of sampling parameters and of `LLM`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from integration import tiny_models
from paged_core import LLM, BeamSearchParams, Logprob, SamplingParams
from paged_core.errors import RequestError
from paged_core.settings.schema import EngineSettings
from paged_core.text.outputs import CompletionOutput

USER = [{"role": "user", "content": "What is a block table?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(num_blocks=200) as made:
        yield made


@pytest.fixture(scope="module")
def without_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("llama"))
    with LLM(str(folder), num_blocks=50) as made:
        yield made


def complete(llm: LLM, prompt: Any = "Once upon a time", **values: Any) -> CompletionOutput:
    sampling = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, **values})
    return llm.generate(prompt, sampling)[0].outputs[0]


def assert_idle(llm: LLM) -> None:
    assert not llm.engine.has_unfinished
    assert llm.engine.kv_cache.num_free == llm.engine.kv_cache.num_blocks


# --- sampling parameters --------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["allowed_token_ids", "bad_words_ids"])
def test_tokens_outside_the_vocabulary_are_refused(llm: LLM, name: str) -> None:
    ids = [[99_999]] if name == "bad_words_ids" else [99_999]
    with pytest.raises(RequestError, match=rf"{name} of request .* token id 99999"):
        complete(llm, **{name: ids})
    assert_idle(llm)


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


def test_what_only_the_llm_can_resolve_is_refused_by_the_engine(llm: LLM) -> None:
    from paged_core import Request

    for values in ({"bad_words": ["a"]}, {"truncate_prompt_tokens": -1}):
        request = Request(id="A", prompt=(5, 6), sampling=SamplingParams(**values))
        with pytest.raises(RequestError, match="only LLM knows"):
            llm.engine.add(request)


# --- log-probabilities ----------------------------------------------------------------------------


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


def test_executors_that_report_no_ranks() -> None:
    with LLM(executor="memory", num_blocks=8, max_model_len=32) as made:
        completion = complete(made, [1, 2, 3], logprobs=2, max_tokens=3)
    assert completion.logprobs is not None
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert (entry[token].rank, entry[token].decoded_token) == (None, None)


# --- the LLM --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "type 'image_url'"),
        ({"type": "text"}, "needs a 'text'"),
        ({"type": "text", "text": 3}, "needs a 'text'"),
        ({"text": "a"}, "type None"),
        (3, "not a int"),
    ],
)
def test_parts_that_are_no_text_are_refused(llm: LLM, part: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.chat([{"role": "user", "content": [part]}])
    assert_idle(llm)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": "add"}, "tools must be"),
        ({"tools": [3]}, "tools"),
        ({"add_generation_prompt": "no"}, "add_generation_prompt must be True or False"),
        ({"continue_final_message": 1}, "continue_final_message must be True or False"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "contradict"),
        ({"chat_template": 3}, "chat_template must be text"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs must be a mapping"),
        ({"chat_template_kwargs": {1: 2}}, "name in chat_template_kwargs must be text"),
        ({"chat_template_kwargs": {"tools": []}}, "give it to chat"),
        ({"chat_template_kwargs": {"messages": []}}, "give it to chat"),
        ({"use_tqdm": "yes"}, "use_tqdm must be"),
        ({"sampling_params": {"n": 1}}, "sampling_params must be SamplingParams"),
    ],
)
def test_chat_refuses_what_it_does_not_know(
    llm: LLM, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.chat(USER, **options)
    with pytest.raises(TypeError, match="unexpected keyword"):
        llm.chat(USER, enable_thinking=False)  # type: ignore[call-arg]
    assert_idle(llm)


@pytest.mark.parametrize(
    "messages", [None, 3, "hello", {"role": "user"}, [None], ["hello"], [[]], [[3]], [USER, 3]]
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match=r"message|conversation"):
        llm.chat(messages)
    assert_idle(llm)


def test_beam_search_returns_all_beams(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    outputs = llm.beam_search(["2 + 2 =", "Hello"], params)
    assert [len(output.outputs) for output in outputs] == [3, 3]
    same = SamplingParams(beam_width=3, n=3, max_tokens=6, ignore_eos=True)
    assert outputs[0].outputs == llm.generate("2 + 2 =", same)[0].outputs
    scores = [completion.score or 0 for completion in outputs[0].outputs]
    assert scores == sorted(scores, reverse=True)
    for wrong in (SamplingParams(), None, {"beam_width": 2}):
        with pytest.raises(RequestError, match="must be BeamSearchParams"):
            llm.beam_search("a", wrong)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="beam_width must be at least 1"):
        llm.beam_search("a", BeamSearchParams(beam_width=0, max_tokens=3))


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling_params": {"n": 1}}, "sampling_params must be SamplingParams"),
        ({"sampling_params": [{"n": 1}]}, "sampling_params must be SamplingParams"),
        ({"sampling_params": []}, "0 entries for 1 prompts"),
        ({"sampling_params": 0}, "sampling_params must be SamplingParams"),
        ({"priority": [float("nan")]}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"priority": "1"}, "priority must be a whole number"),
        ({"priority": [1, 2]}, "2 entries for 1 prompts"),
        ({"use_tqdm": 1}, "use_tqdm must be"),
    ],
)
def test_arguments_of_generate_are_checked(
    llm: LLM, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(["a"], **arguments)
    assert_idle(llm)


@pytest.mark.parametrize(("given", "meant"), [("half", "float16"), ("float", "float32")])
def test_dtypes_may_have_their_names_in_vllm(given: str, meant: str) -> None:
    assert EngineSettings(dtype=given).dtype == meant  # type: ignore[arg-type]
