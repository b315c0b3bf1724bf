"""Beam search on real models: the hypotheses and scores of ``transformers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from integration import tiny_models
from paged_core import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.heavy

PROMPTS = [*tiny_models.PROMPTS[1:], list(range(60, 81)), [*range(60, 81), 5]]
NUM_TOKENS = 12
EVERY_THIRD = tuple(range(0, 300, 3))
"""Tokens that end a sequence: so many that some come up in every search."""

WAYS: dict[str, dict[str, Any]] = {
    "swap": {"block_size": 4, "num_blocks": 24, "preemption": "swap"},
    "v0": {"profile": "vllm-v0", "block_size": 4, "num_blocks": 24},
}
SEARCHES: list[dict[str, Any]] = [
    {"beam_width": width, "length_penalty": penalty, "early_stopping": early}
    for width, penalty, early in (
        *((1, 1.0, False), (2, 0.0, "never"), (2, -1.0, True), (3, 1.0, False), (3, 0.6, True)),
        *((4, 2.0, "never"), (4, -1.0, False), (4, 2.0, True), (5, 0.6, "never"), (5, 0.0, False)),
    )
]
"""Each penalty with most ways to stop."""


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(family: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(family, dtype=torch.float32).eval()


Found = list[tuple[list[int], float]]
"""Generated tokens, cut after what ends them, and scores."""


def search(model: Any, prompt: list[int], sampling: SamplingParams, **options: Any) -> Found:
    """Return what ``transformers`` finds."""
    stop = sampling.stop_token_ids
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            num_beams=sampling.beam_width,
            num_return_sequences=sampling.n,
            do_sample=False,
            max_new_tokens=sampling.max_tokens,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            eos_token_id=list(stop) or None,
            pad_token_id=299,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    rows = found.sequences[:, len(prompt) :].tolist()
    scores = found.sequences_scores.tolist() if sampling.beam_width != 1 else [None] * len(rows)
    return [(_cut(row, stop), score) for row, score in zip(rows, scores, strict=True)]


def _cut(row: list[int], stop: tuple[int, ...]) -> list[int]:
    end = next((place for place, token in enumerate(row) if token in stop), len(row))
    return row[: end + 1]


def assert_same(output: RequestOutput, expected: Found) -> None:
    assert [completion.token_ids for completion in output.outputs] == [row for row, _ in expected]
    for completion, (_, score) in zip(output.outputs, expected, strict=True):
        if score is not None:
            assert completion.score == pytest.approx(score, rel=1e-5, abs=1e-4)


def ids(search: dict[str, Any]) -> str:
    return "-".join(map(str, search.values()))


@pytest.mark.parametrize("options", SEARCHES, ids=ids)
def test_finds_what_transformers_finds(family: Path, model: Any, options: dict[str, Any]) -> None:
    with LLM(str(family), num_blocks=400, max_model_len=64, block_size=4) as llm:
        for stop in ((), (2, 5, 17, 40), EVERY_THIRD):
            sampling = SamplingParams(
                n=options["beam_width"],
                max_tokens=NUM_TOKENS,
                ignore_eos=True,
                stop_token_ids=stop,
                **options,
            )
            outputs = llm.generate(PROMPTS, sampling)
            for prompt, output in zip(PROMPTS, outputs, strict=True):
                assert_same(output, search(model, prompt, sampling))
        assert llm.engine.kv_cache.num_free == 400


OF_WIDTH_FOUR = [
    SamplingParams(
        n=3,
        beam_width=4,
        early_stopping=early,
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        stop_token_ids=stop,
    )
    for stop, early in (((), False), ((2, 5, 17, 40), "never"), (EVERY_THIRD, False))
]


@pytest.fixture(scope="module")
def expected(model: Any) -> list[list[Found]]:
    """Results of ``transformers`` for each search of width four and each prompt."""
    return [[search(model, prompt, sampling) for prompt in PROMPTS] for sampling in OF_WIDTH_FOUR]


@pytest.mark.parametrize("way", WAYS)
def test_finds_the_same_however_it_is_scheduled(
    family: Path, expected: list[list[Found]], way: str
) -> None:
    with LLM(str(family), **{"num_blocks": 400, "max_model_len": 64, **WAYS[way]}) as llm:
        for sampling, wanted in zip(OF_WIDTH_FOUR, expected, strict=True):
            generations = llm.submit(PROMPTS, sampling)
            for _ in llm.run(generations):
                pass
            for generation, found in zip(generations, wanted, strict=True):
                assert_same(generation.output(), found)
            if not sampling.stop_token_ids and llm.engine.kv_cache.num_blocks < 400:
                assert any(generation.group.num_preemptions for generation in generations) or (
                    llm.engine.kv_cache.num_host_blocks
                ), "the pool was meant to be too small"
        kv_cache = llm.engine.kv_cache
        assert kv_cache.num_free == kv_cache.num_blocks
        assert kv_cache.num_free_host == kv_cache.num_host_blocks


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"min_tokens": 5}, {"min_new_tokens": 5}),
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"logit_bias": {9: 1.5, 80: -2.0}}, {"sequence_bias": {(9,): 1.5, (80,): -2.0}}),
    ],
    ids=["min_tokens", "repetition_penalty", "logit_bias"],
)
def test_changes_log_probabilities_where_transformers_does(
    family: Path, model: Any, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    stop = EVERY_THIRD
    sampling = SamplingParams(
        n=3, beam_width=3, max_tokens=NUM_TOKENS, ignore_eos=True, stop_token_ids=stop, **ours
    )
    with LLM(str(family), num_blocks=400, max_model_len=64) as llm:
        for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, sampling), strict=True):
            assert_same(output, search(model, prompt, sampling, **theirs))
