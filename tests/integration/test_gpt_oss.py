"""Models with attention sinks through the whole engine, and their weights in MXFP4."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from integration import tiny_models
from paged_core import LLM, SamplingParams
from paged_core.errors import PagedCoreError

pytestmark = pytest.mark.heavy

NUM_TOKENS = 6
SHARED = list(range(40, 61))
PROMPTS = [[*SHARED, 5], [9], [*SHARED, 6], [*SHARED, 5]]
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
CHUNKED = {"max_num_batched_tokens": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("gpt_oss", tmp_path_factory.mktemp("gpt_oss"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    return tiny_models.generate(folder, PROMPTS, NUM_TOKENS)


def served(folder: Path, attention: str, times: int = 2) -> list[list[list[int]]]:
    """Return tokens generated in chunks, with the cache of the rounds before."""
    with LLM(
        str(folder), attention=attention, scheduler=CHUNKED, block_size=4, num_blocks=40,
        max_model_len=32,
    ) as llm:  # fmt: skip
        rounds = [llm.generate(PROMPTS, GREEDY) for _ in range(times)]
        assert times == 1 or rounds[-1][0].num_cached_tokens >= 20
        return [[output.outputs[0].token_ids for output in outputs] for outputs in rounds]


@pytest.mark.parametrize(
    "attention", ["torch", "cpu", pytest.param("triton", marks=pytest.mark.long)]
)
def test_every_attention_with_sinks_generates_what_the_library_does(
    folder: Path, expected: list[list[int]], attention: str
) -> None:
    assert served(folder, attention) == [expected] * 2


def test_attention_without_sinks_is_refused_with_those_that_have_them(folder: Path) -> None:
    with pytest.raises(PagedCoreError, match="flash"):
        served(folder, "flash_attn", 1)


FP4 = torch.tensor([sign * x for sign in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])
"""The numbers of E2M1, by their codes."""


def test_weights_in_mxfp4_are_dequantised(folder: Path, tmp_path: Path) -> None:
    """As those of the published checkpoints: codes of experts by 32 with a power of two each."""
    weights = load_file(folder / "model.safetensors")
    packed, random = {}, torch.Generator().manual_seed(0)
    for name, plain in weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = plain
            continue
        experts, inputs, outputs = plain.shape
        shape = (experts, outputs, inputs // 32)
        codes = torch.randint(16, (*shape, 32), generator=random, dtype=torch.uint8)
        scales = torch.randint(121, 126, shape, generator=random, dtype=torch.uint8)
        packed[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        packed[f"{name}_scales"] = scales
        numbers = FP4[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
        weights[name] = numbers.flatten(2).transpose(1, 2).contiguous()
    config = json.loads((folder / "config.json").read_text())
    quantised = {**config, "quantization_config": {"quant_method": "mxfp4"}}
    for place, described, tensors in (("plain", config, weights), ("packed", quantised, packed)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text(json.dumps(described))
        save_file(tensors, tmp_path / place / "model.safetensors", {"format": "pt"})
    plain_tokens, packed_tokens = (served(tmp_path / at, "cpu", 1) for at in ("plain", "packed"))
    assert plain_tokens == packed_tokens
    assert plain_tokens == [tiny_models.generate(tmp_path / "plain", PROMPTS, NUM_TOKENS)]
