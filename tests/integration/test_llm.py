"""Text from prompts and conversations by `LLM`, and refusals of what it cannot serve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from integration import tiny_models
from paged_core import LLM, BeamSearchParams, Logprob, Request, SamplingParams
from paged_core.errors import EngineError, RequestError
from paged_core.request import FinishReason
from paged_core.text.outputs import CompletionOutput

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
    "settings",
    [
        {},
        {"scheduler": {"max_num_batched_tokens": 11}},
        {"scheduler": "prefill_or_decode"},
        {"block_allocator": "contiguous"},
    ],
    ids=["default", "chunks", "prefill or decode", "contiguous"],
)
def test_a_prompt_of_the_whole_length_has_log_probabilities(llm: LLM, settings: Any) -> None:
    """Its one token is not computed; requests for more of them are refused."""
    prompt = list(range(100, 164))
    scored = SamplingParams(max_tokens=1, prompt_logprobs=1)
    (expected,) = llm.generate([prompt], scored)
    with LLM(num_blocks=4, block_size=16, max_model_len=64, **settings) as small:
        (output,) = small.generate([prompt], scored)
        for refused in (SamplingParams(max_tokens=1), scored.clone(max_tokens=2)):
            with pytest.raises(RequestError, match="max_model_len"):
                small.generate([prompt], refused)
        with pytest.raises(RequestError, match="max_model_len"):
            small.generate([[*prompt, 5]], scored)
    assert output.prompt_logprobs is not None and expected.prompt_logprobs is not None
    assert [list(each or ()) for each in output.prompt_logprobs] == [
        list(each or ()) for each in expected.prompt_logprobs
    ]


def test_a_stream_yields_only_what_adds_to_it() -> None:
    """Nothing before the first token, though the prompt takes several steps."""
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    chunks = {"max_num_batched_tokens": 2}
    with LLM(num_blocks=100, async_scheduling=True, scheduler=chunks) as made:
        outputs = list(made.stream("Once upon a time", sampling))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4, 5]
    metrics = outputs[-1].metrics
    assert metrics.finished is not None
    assert metrics.first_token is not None
    assert metrics.arrival <= metrics.first_token <= metrics.finished


def test_forms_of_a_prompt(llm: LLM) -> None:
    text = "The capital of France is"
    ids = llm.get_tokenizer().encode(text)
    forms: list[Any] = [text, [text], ids, [ids], [{"prompt": text}], {"prompt_token_ids": ids}]
    outputs = [llm.generate(form) for form in forms]
    assert {tuple(each.outputs[0].token_ids) for listed in outputs for each in listed} == {
        tuple(outputs[0][0].outputs[0].token_ids)
    }


def test_stop_strings_cut_the_text(llm: LLM) -> None:
    prompt = "Count from one to ten:"
    whole = complete(llm, prompt, max_tokens=64).text
    assert whole is not None and "five" in whole
    completion = complete(llm, prompt, max_tokens=64, stop=["nothing", "five"])
    assert completion.text == whole[: whole.index("five")]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "five")
    kept = complete(llm, prompt, max_tokens=64, stop="five", include_stop_str_in_output=True)
    assert (kept.text or "").endswith("five")


def test_log_probabilities_have_rank_and_text(llm: LLM) -> None:
    completion = complete(llm, logprobs=3, temperature=3.0, seed=5, max_tokens=20)
    decode = llm.get_tokenizer().decode
    ranks = []
    for token, entry in zip(completion.token_ids, completion.logprobs or (), strict=True):
        assert next(iter(entry)) == token
        ranks.append(entry[token].rank or 0)
        by_rank = sorted(entry.values(), key=lambda each: each.rank or 0)
        assert [each.rank for each in by_rank] == sorted({1, 2, 3, ranks[-1]})
        assert [e.logprob for e in by_rank] == sorted([e.logprob for e in by_rank], reverse=True)
        for token_id, each in entry.items():
            assert each.decoded_token == decode([token_id], skip_special_tokens=False)
    assert max(ranks) > 3, "some of the tokens drawn were not among the best"
    assert min(ranks) == 1


def test_who_stops_listening_gives_up(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", SamplingParams(max_tokens=500, ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert_idle(llm)


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


def test_without_a_tokenizer_token_ids_are_served(without_text: LLM) -> None:
    (output,) = without_text.generate([[5, 6, 7]])
    assert output.outputs[0].text is None
    assert output.outputs[0].token_ids
    with pytest.raises(RequestError, match="token ids"):
        without_text.generate("text")
    with pytest.raises(RequestError, match="stop string"):
        without_text.generate([[5]], SamplingParams(stop="x"))
    for call in (
        without_text.get_tokenizer,
        lambda: without_text.chat(USER),
        lambda: complete(without_text, [5, 6], bad_words=["a"]),
    ):
        with pytest.raises(RequestError, match="needs a tokenizer"):
            call()
    assert complete(without_text, [5, 6], detokenize=False).text == ""


def test_a_processor_that_raises_fails_its_request_alone_with_steps_planned_ahead() -> None:
    def bad(output: Sequence[int], logits: Any) -> Any:
        if len(output) >= 2:
            raise ValueError("no")
        return logits

    params = [
        SamplingParams(logits_processors=[bad], ignore_eos=True),
        SamplingParams(max_tokens=6, ignore_eos=True),
    ]
    with LLM(async_scheduling=True, num_blocks=100) as made:
        for _ in range(2):
            failed, other = made.generate(["2 + 2 =", "What is preemption?"], params)
            assert "bad raised ValueError: no" in (failed.outputs[0].error or "")
            assert len(failed.outputs[0].token_ids) == 2
            assert len(other.outputs[0].token_ids) == 6
            assert_idle(made)


def test_bad_words_are_not_generated(llm: LLM) -> None:
    free = complete(llm, max_tokens=24).text or ""
    words = [word for word in free.split() if word.isalpha()]
    assert len(set(words)) > 3
    for number in (1, 3):
        text = complete(llm, max_tokens=24, bad_words=words[:number]).text or ""
        assert not set(words[:number]) & set(text.split())
    assert complete(llm, max_tokens=24, bad_words=["Zanzibar"]).text == free


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


def test_the_whole_vocabulary_is_reported(llm: LLM) -> None:
    vocab_size = llm.engine.capacity.vocab_size
    (output,) = llm.generate(
        [[5, 6, 7]], SamplingParams(max_tokens=2, logprobs=-1, prompt_logprobs=-1)
    )
    for entry in [*(output.outputs[0].logprobs or ()), *(output.prompt_logprobs or ())[1:]]:
        assert entry is not None and len(entry) == vocab_size
        assert math.isclose(sum(math.exp(each.logprob) for each in entry.values()), 1, abs_tol=1e-3)
        assert {each.rank for each in entry.values()} == set(range(1, len(entry) + 1))
    (output,) = llm.generate("2 + 2 =", SamplingParams(prompt_logprobs=1))
    for token, entry in zip(
        output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=True
    ):
        assert entry is not None and isinstance(entry[token], Logprob)
        assert len(entry) == (1 if entry[token].rank == 1 else 2)
    beams = complete(llm, beam_width=2, logprobs=-1, max_tokens=3)
    assert {len(entry) for entry in beams.logprobs or ()} == {4}, "all candidates of a beam"


def test_the_tokenizer_formats_conversations(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(USER, add_generation_prompt=True)
    assert isinstance(text, str)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert str(tokenizer.apply_chat_template(USER, tokenize=False)) < text
    for content in (
        USER[0]["content"],
        [{"type": "text", "text": "What is a"}, {"type": "text", "text": "block table?"}],
    ):
        (chatted,) = llm.chat([{"role": "user", "content": content}], SamplingParams(max_tokens=1))
        assert (chatted.prompt, chatted.prompt_token_ids) == (text, ids)


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


def test_a_progress_bar_that_raises_leaves_nothing_behind(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(items: Iterable[Any], **_: Any) -> Iterable[Any]:
        raise ZeroDivisionError

    def lazy(items: Iterable[Any], **_: Any) -> Iterable[Any]:
        return itertools.islice(items, 0)

    with pytest.raises(ZeroDivisionError):
        llm.generate("a", use_tqdm=broken)
    (output,) = llm.generate("a", use_tqdm=lazy)
    assert output.outputs[0].finish_reason == "abort"
    llm.generate(["a", "b"], SamplingParams(max_tokens=2), use_tqdm=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "generating" in captured.err
    assert_idle(llm)


def test_greedy_sampling_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(executor="memory", num_blocks=8, max_model_len=32) as made:
        made.generate([1, 2], SamplingParams(top_p=0.9, temperature=0.5))
        assert capsys.readouterr().err == ""
        made.generate([[1, 2]] * 3, SamplingParams(top_p=0.9))
        made.generate([1, 2], SamplingParams(top_p=0.9))
    warning = capsys.readouterr().err
    assert warning.count("parameters_without_effect") == 1
    assert "top_p=0.9" in warning
    assert "set temperature" in warning


def content(*parts: Any) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": list(parts)}]


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
LARGE = SamplingParams(allowed_token_ids=[99_999])
REFUSED: list[tuple[str, Callable[[LLM], object]]] = [
    ("token ids", lambda llm: llm.generate(b"hi")),  # type: ignore[arg-type]
    ("empty", lambda llm: llm.generate(["fine", []])),
    ("vocabulary", lambda llm: llm.generate([[5, 999_999]])),
    ("prompt_token_ids", lambda llm: llm.generate({"text": "a"})),
    ("has no other key", lambda llm: llm.generate({"prompt": "a", "prompt_token_ids": [5]})),
    ("max_model_len", lambda llm: llm.generate([[5] * 1024])),
    ("must be SamplingParams", lambda llm: llm.generate("a", {"n": 1})),  # type: ignore[arg-type]
    ("0 entries for 1 prompts", lambda llm: llm.generate(["a"], [])),
    ("2 entries for 1 prompts", lambda llm: llm.generate(["a"], priority=[1, 2])),
    ("allowed_token_ids of request .* token id 99999", lambda llm: llm.generate("a", LARGE)),
    ("conversation", lambda llm: llm.chat([None])),  # type: ignore[list-item]
    ("type 'image_url'", lambda llm: llm.chat(content(IMAGE))),
    ("needs a 'text'", lambda llm: llm.chat(content({"type": "text"}))),
    ("type None", lambda llm: llm.chat(content({"text": "a"}))),
    ("tools must be", lambda llm: llm.chat(USER, tools="add")),  # type: ignore[arg-type]
    ("chat_template must be text", lambda llm: llm.chat(USER, chat_template=3)),  # type: ignore[arg-type]
    ("give it beside", lambda llm: llm.chat(USER, chat_template_kwargs={"tools": []})),
    (
        "contradict",
        lambda llm: llm.chat(USER, continue_final_message=True, add_generation_prompt=True),
    ),
    (
        "only LLM knows",
        lambda llm: llm.engine.add(
            Request(id="A", prompt=(5, 6), sampling=SamplingParams(bad_words=["a"]))
        ),
    ),
    ("must be BeamSearchParams", lambda llm: llm.beam_search("a", SamplingParams())),  # type: ignore[arg-type]
    (
        "nothing to stream",
        lambda llm: next(llm.stream([1, 2], SamplingParams(best_of=2, temperature=1.0))),
    ),
]


@pytest.mark.parametrize(("message", "call"), REFUSED)
def test_a_call_that_can_never_be_served_is_refused_and_leaves_nothing(
    llm: LLM, message: str, call: Callable[[LLM], object]
) -> None:
    with pytest.raises(RequestError, match=message):
        call(llm)
    assert_idle(llm)


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
