"""The client of OpenAI gets what the library gives, whole and as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from paged_core import LLM, SamplingParams
from server.served import Served

pytestmark = pytest.mark.heavy

PROMPT = "What is a block table?"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(num_blocks=256) as llm:
        yield llm


def text_of(llm: LLM, **parameters: Any) -> str:
    (output,) = llm.generate(PROMPT, SamplingParams(**parameters))
    return output.outputs[0].text or ""


# ---------------------------------------------------------------------- completions


def test_a_completion_is_what_the_library_gives(client: openai.OpenAI, llm: LLM) -> None:
    made = client.completions.create(model="demo", prompt=PROMPT, temperature=0)
    assert made.choices[0].text == text_of(llm)
    assert made.choices[0].finish_reason == "length"
    assert made.object == "text_completion"
    assert made.usage is not None
    assert made.usage.completion_tokens == 16, "OpenAI's default"
    assert made.usage.total_tokens == made.usage.prompt_tokens + 16


def test_prompts_may_be_texts_or_token_ids_or_lists_of_either(
    client: openai.OpenAI, llm: LLM
) -> None:
    ids = llm.get_tokenizer().encode(PROMPT)
    alone = client.completions.create(model="demo", prompt=PROMPT, temperature=0).choices[0].text
    for prompt in (ids, [PROMPT, "Hello"], [ids, [1, 2, 3]]):
        given: Any = prompt
        made = client.completions.create(model="demo", prompt=given, temperature=0)
        assert made.choices[0].text == alone
        assert len(made.choices) == (1 if prompt is ids else 2)


def test_choices_of_several_prompts_are_in_their_order(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "Hello"]
    options: Any = {"model": "demo", "n": 2, "temperature": 1, "seed": 3, "max_tokens": 8}
    alone = [
        choice.text
        for prompt in prompts
        for choice in client.completions.create(prompt=prompt, **options).choices
    ]
    made = client.completions.create(prompt=prompts, **options)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in made.choices] == alone


def test_the_temperature_is_one_unless_it_is_said(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(model="demo", prompt="The", max_tokens=12, seed=seed)
        .choices[0]
        .text
        for seed in range(6)
    }
    assert len(texts) > 1


def test_log_probabilities_of_a_completion(client: openai.OpenAI, llm: LLM) -> None:
    options: Any = {"model": "demo", "prompt": PROMPT, "temperature": 0, "logprobs": 2}
    (choice,) = client.completions.create(**options).choices
    found: Any = choice.logprobs
    (output,) = llm.generate(PROMPT, SamplingParams(logprobs=2))
    expected: Any = output.outputs[0].logprobs
    chosen = [next(iter(entry.values())) for entry in expected]
    assert found.tokens == [each.decoded_token for each in chosen]
    assert found.token_logprobs == pytest.approx([each.logprob for each in chosen])
    assert found.text_offset[0] == 0
    assert found.text_offset[1] == len(found.tokens[0])
    assert all(len(top) >= 2 for top in found.top_logprobs)


def test_log_probabilities_of_all_tokens_where_the_server_allows_it() -> None:
    with Served({"max_logprobs": -1}) as served:
        url = f"{served.address}/v1"
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
            asked: Any = {"model": "demo", "max_tokens": 1}
            extra = {"prompt_logprobs": -1}
            done: Any = client.completions.create(
                prompt=[5, 6], logprobs=-1, extra_body=extra, **asked
            )
            chat = client.chat.completions.create(
                messages=MESSAGES, logprobs=True, top_logprobs=-1, **asked
            )
            with pytest.raises(openai.BadRequestError, match="-1 for all, not -2"):
                client.completions.create(prompt="x", logprobs=-2, **asked)
    vocabulary = 2048
    assert len(done.choices[0].prompt_logprobs[1]) == vocabulary
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content
    assert len(chat.choices[0].logprobs.content[0].top_logprobs) == vocabulary


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (PROMPT, PROMPT),
        ("é€😀 is", "é€😀 is"),
        ([1, 317, 285, 0], "<|begin|>What is<|pad|>"),
    ],
    ids=["text", "characters of several tokens", "special tokens"],
)
def test_an_echo_begins_with_the_prompt_and_offsets_are_places_in_it(
    client: openai.OpenAI, prompt: Any, text: str
) -> None:
    options: Any = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 4}
    (choice,) = client.completions.create(model="demo", temperature=0, **options).choices
    assert choice.text.startswith(text)
    found: Any = choice.logprobs
    assert found.token_logprobs[0] is None
    assert all(value <= 0 for value in found.token_logprobs[1:])
    for token, offset in zip(found.tokens[1:], found.text_offset[1:], strict=True):
        assert choice.text.startswith(token, offset)


def test_an_echo_alone_generates_nothing_that_is_shown(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="demo", prompt=PROMPT, echo=True, max_tokens=0, logprobs=1
    )
    assert made.choices[0].text == PROMPT
    assert made.usage is not None
    assert made.usage.completion_tokens == 0
    found: Any = made.choices[0].logprobs
    assert len(found.tokens) == made.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_prompt_of_the_whole_length_is_echoed(client: openai.OpenAI, stream: bool) -> None:
    length = client.models.retrieve("demo").max_model_len  # type: ignore[attr-defined]
    for logprobs in (None, 1):
        asked: Any = {"prompt": [[5] * length, [6] * 9], "logprobs": logprobs}
        made: Any = client.completions.create(
            model="demo", echo=True, max_tokens=0, stream=stream, **asked
        )
        choices = [choice for each in (made if stream else [made]) for choice in each.choices]
        found = [choice for choice in choices if choice.text]
        assert sorted(choice.index for choice in found) == [0, 1]
        if logprobs:
            counts = [len(each.logprobs.tokens) for each in sorted(found, key=lambda c: c.index)]
            assert counts == [length, 9]
        else:
            assert all(choice.logprobs is None for choice in choices)


def test_best_of_returns_the_best(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="demo", prompt=PROMPT, n=2, best_of=3, temperature=0.8, seed=1
    )
    assert [choice.index for choice in made.choices] == [0, 1]


def test_a_beam_search_may_be_asked_for_as_of_vllm(client: openai.OpenAI) -> None:
    def ask(**extra: Any) -> list[str]:
        made = client.completions.create(
            model="demo", prompt=[PROMPT, "A"], n=2, max_tokens=6, extra_body=extra
        )
        return [choice.text for choice in made.choices]

    assert ask(use_beam_search=True, temperature=0) == ask(beam_width=2)
    assert len(set(ask(use_beam_search=True))) == 4
    assert ask(use_beam_search=False, seed=1) == ask(seed=1)


def test_extras_of_vllm(client: openai.OpenAI, llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPT)
    extra = {
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "min_tokens": 2,
        "stop_token_ids": [3],
        "priority": 1,
        "cache_salt": "salt",
        "return_token_ids": True,
        "truncate_prompt_tokens": 4,
        "prompt_logprobs": 1,
        "request_id": "mine",
        "deadline": 50,
    }
    made = client.completions.create(model="demo", prompt=PROMPT, user="u", extra_body=extra)
    choice: Any = made.choices[0]
    assert made.id == "cmpl-mine"
    assert choice.prompt_token_ids == ids[-4:]
    assert len(choice.token_ids) == 16
    assert choice.prompt_logprobs[0] is None
    assert set(choice.prompt_logprobs[1][str(ids[-3])]) == {"logprob", "rank", "decoded_token"}
    made = client.completions.create(model="demo", prompt=PROMPT, max_tokens=1)
    assert made.choices[0].to_dict().keys() == {"index", "text", "logprobs", "finish_reason"}


def test_either_end_of_a_prompt_may_be_left_out(client: openai.OpenAI) -> None:
    def ids_of(**extra: Any) -> Any:
        asked = {"return_token_ids": True, **extra}
        options: Any = {"model": "demo", "max_tokens": 1, "extra_body": asked}
        done: Any = client.completions.create(prompt=[PROMPT, [5, 6, 7, 8]], **options)
        chat: Any = client.chat.completions.create(messages=MESSAGES, **options)
        return [*(each.prompt_token_ids for each in done.choices), chat.prompt_token_ids]

    whole = ids_of()
    assert ids_of(truncation_side="right") == whole, "nothing is left out"
    for limit in (3, -1):
        first = ids_of(truncate_prompt_tokens=limit, truncation_side="right")
        last = ids_of(truncate_prompt_tokens=limit, truncation_side="left")
        assert last == ids_of(truncate_prompt_tokens=limit)
        if limit == -1:
            assert first == last == whole
        else:
            assert first == [ids[:limit] for ids in whole]
            assert last == [ids[-limit:] for ids in whole]


def test_a_stop_string_is_the_reason_of_the_end(client: openai.OpenAI) -> None:
    options: Any = {"model": "demo", "temperature": 0, "max_tokens": 50, "stop": [" maps", "zzz"]}
    (choice,) = client.completions.create(prompt=PROMPT, **options).choices
    assert (choice.text, choice.finish_reason) == (" A block table", "stop")
    assert choice.stop_reason == " maps"  # type: ignore[attr-defined]


def test_cached_tokens_are_told(client: openai.OpenAI) -> None:
    prompt = "A long prompt that fills blocks. " * 8
    first, second = (
        client.completions.create(model="demo", prompt=prompt, max_tokens=1) for _ in range(2)
    )
    found: list[Any] = [each.usage.prompt_tokens_details for each in (first, second) if each.usage]
    assert found[0].cached_tokens == 0
    assert found[1].cached_tokens >= 16


# ---------------------------------------------------------------------- chat


def test_a_chat_is_what_the_library_gives(client: openai.OpenAI, llm: LLM) -> None:
    made = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0)
    (output,) = llm.chat(MESSAGES, SamplingParams(max_tokens=None))
    assert made.choices[0].message.content == output.outputs[0].text
    assert made.choices[0].message.role == "assistant"
    assert made.choices[0].finish_reason == "stop", "up to the model's length"
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(output.prompt_token_ids)


def test_several_answers_with_log_probabilities(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="other/name",
        messages=MESSAGES,
        n=3,
        seed=4,
        max_completion_tokens=6,
        logprobs=True,
        top_logprobs=2,
    )
    assert made.model == "other/name"
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    for choice in made.choices:
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert "".join(each.token for each in content).startswith(choice.message.content or "")
        assert [len(each.top_logprobs) for each in content] == [2] * len(content)
        assert bytes(content[0].bytes or ()).decode() == content[0].token


def test_messages_are_as_clients_send_them(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=4, temperature=0
    )
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
        first.choices[0].message,
        {"role": "user", "content": "Go on", "name": "x"},
    ]
    made = client.chat.completions.create(
        model="demo",
        messages=messages,
        max_tokens=4,
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        response_format={"type": "text"},
    )
    assert made.choices[0].message.content


def test_the_last_message_can_be_continued(client: openai.OpenAI, llm: LLM) -> None:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "A block"}]
    made = client.chat.completions.create(
        model="demo",
        messages=messages,
        temperature=0,
        max_tokens=8,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    (output,) = llm.chat(messages, SamplingParams(max_tokens=8), continue_final_message=True)
    assert made.choices[0].message.content == output.outputs[0].text


def test_an_echo_of_a_chat_begins_with_the_assistant_s_message(client: openai.OpenAI) -> None:
    def ask(messages: Any, **options: Any) -> Any:
        extra = {"continue_final_message": True, **options.pop("extra", {})}
        return client.chat.completions.create(
            model="demo", messages=messages, seed=1, n=2, max_tokens=8, extra_body=extra, **options
        )

    content = [{"type": "text", "text": "A"}] * 2
    said: Any = [*MESSAGES, {"role": "assistant", "content": content}]
    plain = [each.message.content for each in ask(said).choices]
    echoed = ask(said, extra={"echo": True})
    texts = ["A A" + text for text in plain]
    assert [each.message.content for each in echoed.choices] == texts
    assert echoed.usage.completion_tokens <= 16
    other = {"echo": True, "continue_final_message": False}
    asked, again = (
        ask(MESSAGES, extra=other),
        ask(MESSAGES, extra={"continue_final_message": False}),
    )
    assert asked.choices[0].message.content == again.choices[0].message.content, "the user said it"


# ---------------------------------------------------------------------- the rest


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo", "other/name"]
    assert client.models.retrieve("other/name").object == "model"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("third")
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="no model is called 'third'"):
        client.completions.create(model="third", prompt="x")


def test_tokens_of_texts_and_conversations(served: Served, llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    asked = {"prompt": PROMPT, "return_token_strs": True}
    _, found, _ = served.ask("POST", "/tokenize", asked)
    assert found["tokens"] == tokenizer.encode(PROMPT)
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == 1024
    assert "".join(found["token_strs"]).endswith(PROMPT)
    _, text, _ = served.ask("POST", "/detokenize", {"tokens": found["tokens"]})
    assert text["prompt"].endswith(PROMPT)
    _, found, _ = served.ask("POST", "/tokenize", {"messages": MESSAGES})
    assert found["tokens"] == tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert served.error("/tokenize", {})[0] == 400


def test_how_it_is(served: Served) -> None:
    for path in ("/health", "/ready"):
        assert served.ask("GET", path)[:2] == (200, {"state": "ready", "reason": None})
    assert served.ask("GET", "/version")[1]["version"]
    assert served.ask("GET", "/load")[1]["num_unfinished"] == 0
    assert served.ask("POST", "/reset_prefix_cache")[:2] == (200, {"reset": True})
    assert served.ask("POST", "/abort", {"request_id": "x"})[1] == {"aborted": False}


def test_request_ids_are_the_clients(served: Served) -> None:
    assert (
        served.ask("GET", "/version", headers={"X-Request-Id": "a.b-1"})[2]["x-request-id"]
        == "a.b-1"
    )
    made = served.ask("GET", "/version", headers={"X-Request-Id": "a b\x00"[:3]})[2]
    assert made["x-request-id"] != "a b"
