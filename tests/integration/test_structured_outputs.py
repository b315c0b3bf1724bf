"""Guided decoding, from sampled tokens of a real model on real executors."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from emulation.accelerator import EMULATED_LOCAL
from paged_backends.text.tokenizer import CheckpointTokenizer
from paged_core import LLM, AsyncLLM, CompletionOutput, SamplingParams, StructuredOutputs
from paged_core.engine.contexts import GrammarContext
from paged_core.errors import ExecutorLost, RequestError
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend, Matcher
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_testing import registry_with

pytestmark = pytest.mark.heavy


SCHEMAS: Mapping[str, Any] = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "date": {"type": "string", "format": "date"},
}
"""A few: the conformance class of grammars has a schema for each feature."""
PROMPTS = ["Who are you?", "Tell me a story.", "3, 2, 1"]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(seed=3) as made:
        yield made


def ask(llm: LLM, sampling: SamplingParams, prompts: Sequence[str] = PROMPTS) -> list[str]:
    """The texts of all sequences."""
    return [one.text for one in completions(llm, sampling, prompts)]


def completions(
    llm: LLM, sampling: SamplingParams, prompts: Sequence[str] = PROMPTS
) -> list[CompletionOutput]:
    return [one for output in llm.generate(list(prompts), sampling) for one in output.outputs]


def random(form: StructuredOutputs | None = None, **options: Any) -> SamplingParams:
    values: dict[str, Any] = {"temperature": 1.5, "max_tokens": 90, "seed": 5, **options}
    return SamplingParams(structured_outputs=form, **values)


# ---------------------------------------------------------------------- schemas


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_output_that_ends_is_valid(llm: LLM, name: str) -> None:
    compact = StructuredOutputs(json=SCHEMAS[name], disable_any_whitespace=True)
    laid_out = StructuredOutputs(json=SCHEMAS[name])
    found = completions(llm, random(compact, n=4)) + completions(llm, random(laid_out))
    found += completions(llm, SamplingParams(structured_outputs=compact, max_tokens=90))
    ended = [json.loads(one.text) for one in found if one.finish_reason == "stop"]
    assert ended, [one.text for one in found]
    for value in ended:
        jsonschema.validate(value, SCHEMAS[name], format_checker=jsonschema.FormatChecker())


def test_what_cannot_be_enforced_is_refused(llm: LLM) -> None:
    form = StructuredOutputs(json={"type": "string", "not": {"const": "a"}})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"^structured_outputs cannot be compiled by grammar"):
        llm.generate(["Hello", "you"], [random(), random(form)])
    assert llm.get_metrics().num_unfinished == 0


# ---------------------------------------------------------------------- other forms, and the end


def test_the_end_is_forced_where_nothing_else_is_left(llm: LLM) -> None:
    form = StructuredOutputs(regex="[0-9]{3}(ab)?")
    for one in completions(llm, random(form, n=3, min_tokens=1)):
        assert one.finish_reason == "stop"
        assert re.fullmatch("[0-9]{3}(ab)?", one.text)
        assert one.token_ids[-1] in llm.engine.capacity.eos_token_ids


def test_a_stop_token_of_the_request_ends_where_the_form_may_end(llm: LLM) -> None:
    (stop,) = llm.get_tokenizer().encode("!", add_special_tokens=False)
    form = StructuredOutputs(regex="(ab)+")
    bias = dict.fromkeys(llm.engine.capacity.eos_token_ids, -100.0)
    for one in completions(llm, random(form, stop_token_ids=[stop], logit_bias=bias)):
        if one.finish_reason == "stop":
            assert one.stop_reason == stop
            assert re.fullmatch("(ab)+!?", one.text)


def test_a_request_whose_parameters_leave_no_token_fails_alone(llm: LLM) -> None:
    form = StructuredOutputs(choice=["a"])
    (alone,) = completions(llm, random(), PROMPTS[:1])
    failed, other = llm.generate([PROMPTS[1], PROMPTS[0]], [random(form, min_tokens=9), random()])
    assert failed.outputs[0].finish_reason == "error"
    assert "every token is ruled out" in (failed.outputs[0].error or "")
    assert other.outputs[0].token_ids == alone.token_ids


def test_log_probabilities_are_those_of_the_model(llm: LLM) -> None:
    """As for every request: before anything is masked."""
    form = StructuredOutputs(choice=["0"])
    (free,) = completions(llm, SamplingParams(logprobs=5, max_tokens=1), PROMPTS[:1])
    (held,) = completions(
        llm, SamplingParams(logprobs=5, max_tokens=1, structured_outputs=form), PROMPTS[:1]
    )
    assert free.logprobs is not None
    assert held.logprobs is not None
    best = {token for token, _ in list(free.logprobs[0].items())[:5]}
    assert best <= set(held.logprobs[0])


def test_the_form_begins_after_a_text(llm: LLM) -> None:
    form = StructuredOutputs(choice=["yes", "no"], after="</think>")
    (before, *rest) = completions(llm, random(form, max_tokens=40))
    for one in (before, *rest):
        thoughts, closed, answer = one.text.partition("</think>")
        assert (answer in ("yes", "no")) if closed else one.finish_reason == "length"
        assert closed or thoughts
    forced = StructuredOutputs(choice=["yes", "no"], after="Q")
    tokens = llm.get_tokenizer().encode("Q", add_special_tokens=False)
    found = completions(llm, random(forced, logit_bias={tokens[0]: 50.0}))
    assert {one.text for one in found} <= {"Qyes", "Qno"}


# ---------------------------------------------------------------------- executors, preemption


MIXED = [
    random(StructuredOutputs(json=SCHEMAS["object"]), n=2),
    random(),
    random(StructuredOutputs(regex="([a-z]{3,8} ){4,8}end")),
    random(StructuredOutputs(json=SCHEMAS["array"]), temperature=0),
]


def mixed(**settings: Any) -> list[list[tuple[list[int], str | None]]]:
    with LLM(seed=3, registry=registry_with(EMULATED_LOCAL), **settings) as llm:
        outputs = llm.generate([*PROMPTS, PROMPTS[0]], MIXED)
    return [[(one.token_ids, one.finish_reason) for one in out.outputs] for out in outputs]


@pytest.fixture(scope="module")
def expected() -> list[list[tuple[list[int], str | None]]]:
    return mixed()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"executor": "process"}, marks=pytest.mark.long),
        {"executor": "emulated"},
        {"num_blocks": 36, "block_size": 4, "max_model_len": 128, "preemption": "swap"},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items()),
)
def test_the_schedule_does_not_change_an_output(
    expected: list[list[tuple[list[int], str | None]]], settings: dict[str, Any]
) -> None:
    assert mixed(**settings) == expected


def test_an_executor_without_grammars_refuses() -> None:
    form = StructuredOutputs(regex="a")
    with (
        LLM(executor={"name": "process", "inner": "memory"}) as llm,
        pytest.raises(RequestError, match=r"holds no output to a"),
    ):
        llm.generate([[1, 2]], random(form))


def test_a_form_that_was_not_compiled_before_is_compiled_in_a_step(llm: LLM) -> None:
    engine = llm.engine
    for regex in ("qq+", "(("):
        request = Request(
            id=regex, prompt=(9, 10), sampling=random(StructuredOutputs(regex=regex), max_tokens=4)
        )
        group = engine.add(request)
        while engine.has_unfinished:
            engine.step()
        (sequence,) = group.sequences
        if regex == "((":
            assert sequence.error is not None
            assert "cannot be compiled" in sequence.error
        else:
            text = llm.get_tokenizer().decode(sequence.output)
            assert set(text) == {"q"}


# ---------------------------------------------------------------------- components that fail


class FaultySettings(ComponentSettings):
    name: Literal["faulty"] = "faulty"


class _Matcher(Matcher):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.num_accepted = 0

    def accept(self, token_id: int, /) -> None:
        self.num_accepted += 1
        if self.kind == "accept" and self.num_accepted == 2:
            raise ZeroDivisionError("accept")

    @property
    def is_at_end(self) -> bool:
        if self.kind == "end":
            raise ZeroDivisionError("end")
        return False


class _Compiled(CompiledGrammar):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def matcher(self) -> _Matcher:
        if self.kind == "matcher":
            raise ZeroDivisionError("matcher")
        return _Matcher(self.kind)


class FaultyGrammar(GrammarBackend):
    """Allows every token of text; the regular expression names the call that fails."""

    calls: list[int]
    go_on = threading.Event()

    def __init__(self, options: FaultySettings, context: GrammarContext, /) -> None:
        type(self).calls = []
        self._ends = context.vocabulary.eos_token_ids

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if form.regex == "wait":
            self.go_on.wait(60)
        return _Compiled(form.regex or "")

    def fill(self, matchers: Sequence[Matcher], masks: NDArray[np.int32], /) -> Mapping[int, str]:
        self.calls.append(len(matchers))
        kinds = [matcher.kind for matcher in matchers if isinstance(matcher, _Matcher)]
        if "fill" in kinds:
            raise ZeroDivisionError("fill")
        masks[:] = -1
        for token in self._ends:
            masks[:, token // 32] &= ~(1 << token % 32)
        for row, kind in enumerate(kinds):
            if kind == "dead end":
                masks[row] = 0
        return {row: "it says so" for row, kind in enumerate(kinds) if kind == "problem"}


@pytest.fixture(scope="module")
def faulty() -> Iterator[LLM]:
    component = Component("grammar", FaultySettings, f"{__name__}:FaultyGrammar")
    registry = Registry.discover().extended(component)
    with LLM(seed=3, registry=registry, grammar="faulty") as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("matcher", "ZeroDivisionError: matcher"),
        ("accept", "ZeroDivisionError: accept"),
        ("end", "ZeroDivisionError: end"),
        ("fill", "ZeroDivisionError: fill"),
        ("problem", "it says so"),
        ("dead end", "allows no token here"),
    ],
)
def test_a_grammar_that_fails_ends_its_request_alone(faulty: LLM, kind: str, said: str) -> None:
    def params(kind: str) -> SamplingParams:
        return random(StructuredOutputs(regex=kind), max_tokens=6, stop_token_ids=[7])

    expected = ask(faulty, params("sound"), PROMPTS[:2])
    outputs = faulty.generate(
        [PROMPTS[0], PROMPTS[2], PROMPTS[1]], [params("sound"), params(kind), params("sound")]
    )
    one, failed, other = (output.outputs[0] for output in outputs)
    assert [one.text, other.text] == expected
    assert max(FaultyGrammar.calls) > 1, "the masks of a step are filled in one call"
    assert failed.finish_reason == "error"
    assert said in (failed.error or "")


def test_steps_go_on_while_a_form_is_compiled_and_who_left_is_not_served() -> None:
    """By an event loop: what is compiled holds up no other task."""
    component = Component("grammar", FaultySettings, f"{__name__}:FaultyGrammar")
    registry = Registry.discover().extended(component)

    async def main() -> list[str | None]:
        ended: list[str | None] = []

        async def serve(sampling: SamplingParams) -> None:
            async for output in llm.generate("Hello", sampling):
                one = output.outputs[0]
            ended.append(one.finish_reason)

        async with AsyncLLM(registry=registry, grammar="faulty") as llm:
            form = StructuredOutputs(regex="wait")
            waits = asyncio.create_task(serve(random(form, max_tokens=3)))
            leaves = asyncio.create_task(serve(random(form, max_tokens=3)))
            await asyncio.sleep(0)
            await asyncio.wait_for(serve(random(max_tokens=3)), 60)
            assert ended == ["length"]
            assert not waits.done()
            leaves.cancel()
            FaultyGrammar.go_on.set()
            await asyncio.wait_for(waits, 60)
            assert (await llm.get_metrics()).num_unfinished == 0
        return ended

    assert asyncio.run(main()) == ["length", "length"]


# ---------------------------------------------------------------------- processes, vocabularies


@pytest.mark.long
def test_a_process_that_has_ended_compiles_nothing_and_the_next_one_does() -> None:
    form = StructuredOutputs(choice=["a"])
    with LLM(executor="process") as llm:
        executor: Any = llm.engine.executor
        assert ask(llm, random(form), PROMPTS[:1]) == ["a"]
        pid = executor._workers[0].pid
        os.kill(pid, signal.SIGSTOP)
        waiting = executor.compile_grammar(StructuredOutputs(choice=["b"]))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ExecutorLost, match="has ended"):
            waiting.result(60)
        with pytest.raises(ExecutorLost):
            executor.compile_grammar(form).result(60)
        (lost,) = completions(llm, random(max_tokens=2), PROMPTS[:1])
        assert lost.finish_reason == "error"
        assert ask(llm, random(form), PROMPTS[:1]) == ["a"]


def test_a_form_is_served_after_a_fork(llm: LLM) -> None:
    form = StructuredOutputs(regex="[ab]{4}")
    expected = ask(llm, random(form))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(ask(llm, random(form))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    os.waitpid(child, 0)
    assert json.loads(found) == expected
    assert ask(llm, random(form)) == expected


def test_the_texts_of_tokens() -> None:
    pieces = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581a", "\u4e16"]

    def encode(text: str, special: bool) -> list[int]:
        assert not special
        return [pieces.index(f"<0x{byte:02X}>") for byte in f" {text}".encode()]

    def make(**changes: Any) -> CheckpointTokenizer:
        values: dict[str, Any] = {
            "special_ids": frozenset({0, 1}),
            "byte_ids": frozenset(range(2, 258)),
            "id_to_token": lambda n: pieces[n] if n < len(pieces) else None,
        }
        return CheckpointTokenizer(encode, lambda _: "", **{**values, **changes})

    texts = make().token_texts(300)
    assert texts[:3] == [None, None, b"\0"]
    assert texts[258:261] == [b" a", "\u4e16".encode(), None]
    assert len(texts) == 300
    with pytest.raises(RequestError, match="no pieces of text"):
        make(byte_ids=frozenset()).token_texts(300)
