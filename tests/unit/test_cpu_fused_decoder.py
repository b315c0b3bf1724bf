"""The fused decoder does what its operations do one by one, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from integration import tiny_models
from integration.dequantized_models import relative_error
from integration.step_driver import load_runner, prompt_logits, settings
from paged_backends.attention.cache import layout_of
from paged_backends.attention.step import StepAttention
from paged_core.interfaces.layer import KVCacheDtype
from paged_testing.attention_scene import attention_batch
from unit.attention_calls import make
from unit.cpu_kernels import SETS, load

pytestmark = pytest.mark.heavy


BLOCK = 4
LENGTHS = [(9, 1), (0, 5), (3, 1), (2, 4)]
"""Cached and new tokens of each sequence."""
PROMPTS = [[7 * place + number for place in range(sum(LENGTHS[number]))] for number in range(4)]
ODD = {
    **{"hidden_size": 100, "head_dim": 32, "num_attention_heads": 10, "num_key_value_heads": 2},
    **{"intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300},
}
OPT = {"hidden_size": 100, "num_attention_heads": 5, "ffn_dim": 96, "word_embed_proj_dim": 100}
CONFIGS: Mapping[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**ODD, attention_bias=True),
    "qwen3": lambda: transformers.Qwen3Config(**ODD),
    "gemma3": lambda: transformers.Gemma3TextConfig(**ODD, sliding_window=4),
    "opt": lambda: transformers.OPTConfig(**OPT, num_hidden_layers=2, vocab_size=300),
}
"""No row is a whole number of vectors."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    with pytest.MonkeyPatch.context() as patch:
        for name, config in CONFIGS.items():
            patch.setitem(tiny_models.FAMILIES, name, config)
        return {name: tiny_models.save(name, tmp_path_factory.mktemp(name)) for name in CONFIGS}


@cache
def expected(folder: Path) -> list[Tensor]:
    """Logits of whole prompts, by plain PyTorch in float32."""
    runner = load_runner(settings(folder, dtype="float32"), "native", kernels="off")
    return [prompt_logits(runner, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "kv_cache_dtype"), [*((name, "auto") for name in CONFIGS), ("llama", "int8")]
)
def test_equals_the_operations_one_by_one(
    folders: dict[str, Path], name: str, dtype: str, family: str, kv_cache_dtype: KVCacheDtype
) -> None:
    """In steps: what is cached first, a token of the others along with it; then all, twice."""
    load(name)
    values = {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype, "block_size": BLOCK}
    runner: Any = load_runner(settings(folders[family], **values), "native", kernels=name)
    assert runner._decoder.fused is not None
    backend = make({"name": "cpu", "instruction_set": name})
    bound = []
    for spec in runner.layers:
        assert backend.check(spec) is None
        held = layout_of(backend).allocate_cache(spec, 20, "cpu")
        held.view(torch.uint8).fill_(255)  # NaN
        bound.append(backend.bind(spec, held))

    def run(chunks: list[tuple[int, int]]) -> Tensor:
        pairs = [(prompt, range(c, c + n)) for prompt, (c, n) in zip(PROMPTS, chunks, strict=True)]
        tokens = torch.tensor([prompt[at] for prompt, places in pairs for at in places])
        positions = torch.tensor([at for _, places in pairs for at in places])
        batch = attention_batch(np.arange(20).reshape(4, 5), chunks, BLOCK)
        attend = StepAttention(bound, backend.plan(batch))
        with torch.inference_mode():
            return runner.logits(runner.forward(tokens, positions, attend))  # type: ignore[no-any-return]

    run([(0, max(1, cached)) for cached, _ in LENGTHS])
    for _ in range(2):  # the second time there are as many rows as before
        outputs = run(LENGTHS).split([new for _, new in LENGTHS])
    assert runner._decoder.fused._call.rows, "the kernels did not call attention"
    bound_of = {"float32": 1e-5 if kv_cache_dtype == "auto" else 0.01, "bfloat16": 0.05}
    for out, whole in zip(outputs, expected(folders[family]), strict=True):
        assert relative_error(out, whole[-len(out) :]) < bound_of[dtype]


def test_a_feed_forward_of_an_odd_width_is_computed_one_by_one(tmp_path: Path) -> None:
    config = tiny_models.of("Llama", intermediate_size=40)()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert load_runner(tmp_path, "native")._decoder.fused is None
