"""Several ranks of the runner ``native`` compute what one computes, each with its share.

Sums over the ranks are added in another order than in one product, so that logits in float32 may
differ in their last bits: here by less than 1e-5 of the largest. Greedy text is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from integration import test_gguf, test_quantized_checkpoints, tiny_models
from integration.gguf_files import K_QUANTS, SIMPLE
from integration.quantized_checkpoints import Awq, CompressedTensors, Gptq, Method
from integration.quantized_checkpoints import write as write_quantized
from integration.rank_threads import ThreadCommunicator, ThreadGroup
from integration.step_driver import (
    load_runner,
    prompt_logits,
    settings,
)
from paged_backends.attention.cache import layout_of
from paged_backends.attention.step import StepAttention
from paged_backends.checkpoint.gguf.tensors import QuantizedTensor
from paged_backends.checkpoint.quantized.stored_module import PackedCodes
from paged_backends.checkpoint.tensor_files import Part
from paged_backends.runners.native import runner as runner_module
from paged_backends.runners.native.decoder import SummedLinear
from paged_core.errors import ExecutorLost, UnsupportedModel
from paged_core.interfaces.runner import SupportsTopLogits
from paged_testing.attention_scene import attention_batch
from paged_testing.runner_scene import DenseAttention
from unit import attention_calls, cpu_kernels

pytestmark = pytest.mark.heavy


PROMPT = tiny_models.PROMPTS[2]
FAMILIES = {
    **tiny_models.NATIVE,
    "an uneven vocabulary and feed-forward": tiny_models.of(
        "Llama", vocab_size=303, intermediate_size=94
    ),
    "a tied, uneven vocabulary": tiny_models.of(
        "Qwen3", head_dim=16, vocab_size=301, tie_word_embeddings=True, attention_bias=True
    ),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the cache of compiled kernels stays
    monkeypatch.setattr(
        "paged_backends.quantization.disk_cache.cache_dir", lambda: tmp_path / "cache"
    )


def save(name: str, folder: Path, **changes: Any) -> Path:
    config = FAMILIES[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny_models.FAMILIES, name, lambda: config)
        return tiny_models.save(name, folder)


def load(folder: Path, **options: Any) -> Any:
    return load_runner(folder, "native", **options)


def ranks(
    chosen: Any, size: int, work: Callable[[Any], Any] = lambda runner: None, **options: Any
) -> list[Any]:
    """Load the runner of every rank, and return what ``work`` returns of each."""

    def rank(communicator: ThreadCommunicator) -> Any:
        return work(load_runner(chosen, "native", communicator, **options))

    return ThreadGroup(size).run(rank)


def found(runner: Any, prompt: Sequence[int] = PROMPT) -> tuple[Tensor, ...]:
    """Hidden states and logits of a prompt, its best tokens and scores, and the top ones."""
    assert isinstance(runner, SupportsTopLogits)
    attention = DenseAttention(runner.layers, 1)
    attention.begin([(0, len(prompt))])
    with torch.inference_mode():
        hidden = runner.forward(torch.tensor(prompt), torch.arange(len(prompt)), attention)
        logits = runner.logits(hidden)
        return hidden, logits, *runner.best_tokens(hidden), *runner.top_logits(hidden, 7)


def check_found(parts: list[tuple[Tensor, ...]], expected: tuple[Tensor, ...]) -> None:
    """Every rank finds the same bits, and nearly what one rank finds alone."""
    for part in parts[1:]:
        for first, other in zip(parts[0], part, strict=True):
            assert torch.equal(first, other)
    hidden, logits, best, score, top, tokens = parts[0]
    for computed, alone in ((hidden, expected[0]), (logits, expected[1])):
        assert float((computed - alone).abs().max()) < 1e-5 * float(alone.abs().max())
    assert torch.equal(best, logits.argmax(-1))
    assert torch.equal(score, logits.max(-1).values)
    assert torch.equal(tokens, logits.sort(dim=-1, descending=True, stable=True).indices[:, :7])
    assert torch.equal(top, logits.gather(1, tokens))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_ranks_find_what_one_finds(name: str, tmp_path: Path) -> None:
    folder = settings(save(name, tmp_path), dtype="float32")
    for kernels, size in (("auto", 2), ("off", 4)):
        expected = found(load_runner(folder, "native", kernels=kernels))
        check_found([expected], expected)
        check_found(ranks(folder, size, found, kernels=kernels), expected)


@pytest.mark.parametrize(("name", "dtype"), [("gemma2", "bfloat16"), ("gpt2", "float16")])
def test_in_16_bits_ranks_are_as_exact_as_one(name: str, dtype: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    exact = prompt_logits(load_runner(settings(tmp_path, dtype="float32"), "native"), PROMPT)

    def error(logits: Tensor) -> float:
        return float((logits.float() - exact).norm() / exact.norm())

    chosen = settings(tmp_path, dtype=dtype)
    alone = error(prompt_logits(load_runner(chosen, "native"), PROMPT))
    first, *others = ranks(chosen, 2, lambda runner: prompt_logits(runner, PROMPT))
    assert all(torch.equal(first, other) for other in others)
    assert error(first) < 1.5 * alone


def test_layers_are_those_of_the_share(tmp_path: Path) -> None:
    save("llama", tmp_path)  # 4 query heads, and 2 for keys and values
    for size, heads, kv_heads in ((1, 4, 2), (2, 2, 1), (4, 1, 1)):
        for runner in ranks(tmp_path, size, lambda runner: runner):
            described = {(layer.num_heads, layer.num_kv_heads) for layer in runner.layers}
            assert described == {(heads, kv_heads)}
            assert runner.vocab_size == 300
            whole = load_runner(tmp_path, "native").model_size()
            assert runner.model_size().head_weights == whole.head_weights // size


def test_one_rank_computes_as_without_a_communicator(tmp_path: Path) -> None:
    save("llama, llama3 rope, biases", tmp_path)
    group = ThreadGroup(1)
    runner = load_runner(tmp_path, "native", ThreadCommunicator(group, 0))
    assert torch.equal(prompt_logits(runner, PROMPT), prompt_logits(load(tmp_path), PROMPT))
    assert group.operations == []
    decoder = runner._decoder
    assert decoder.vocabulary is None
    for each in (decoder.layers[0].attention.output, decoder.layers[0].mlp.down):
        assert not isinstance(each, SummedLinear)


def test_random_weights_are_those_of_one_rank(tmp_path: Path) -> None:
    FAMILIES["gpt2"]().save_pretrained(tmp_path)
    expected = found(load(tmp_path, weights="random"))
    check_found(ranks(tmp_path, 2, found, weights="random"), expected)


def test_ranks_exchange_what_they_must_and_no_logits_for_the_best(tmp_path: Path) -> None:
    save("llama", tmp_path)
    group = ThreadGroup(2)

    def rank(communicator: ThreadCommunicator) -> None:
        runner = load_runner(settings(tmp_path, dtype="float32"), "native", communicator)
        attention = DenseAttention(runner.layers, 1)
        attention.begin([(0, 3)])
        hidden = runner.forward(torch.tensor([1, 2, 3]), torch.arange(3), attention)
        runner.best_tokens(hidden)
        runner.top_logits(hidden, 5)

    group.run(rank)
    operations = [operation for operation, _, _ in group.operations]
    assert operations.count("all_reduce") == 1 + 2 * 2  # of the embedding, and twice a layer
    gathered = [shape for name, shape, _ in group.operations if name == "all_gather"][-2:]
    assert gathered == [(3,), (3, 5)]


# ---------------------------------------------------------------------- layers in one call


WIDE = {"intermediate_size": 128, "hidden_act": "silu"}
"""Sizes that the kernels of both of two ranks can compute in one call."""


def one_call(runner: Any, block_size: int) -> Tensor:
    """Hidden states of the prompt, by the kernels' attention, and so by all layers in one call."""
    assert runner._decoder.fused is not None
    backend, chunks = attention_calls.make("cpu"), [(0, len(PROMPT))]
    bound = [
        backend.bind(spec, layout_of(backend).allocate_cache(spec, 20, "cpu"))
        for spec in runner.layers
    ]
    plan = backend.plan(attention_batch(np.arange(20)[None], chunks, block_size))
    tokens, positions = torch.tensor(PROMPT), torch.arange(len(PROMPT))
    with torch.inference_mode():
        return runner.forward(tokens, positions, StepAttention(bound, plan))  # type: ignore[no-any-return]


ONE_CALL = ["llama, llama3 rope, biases", "gemma2", "qwen3", "opt", "gpt2"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "bfloat16" if place < 2 else "float32") for place, name in enumerate(ONE_CALL)],
)
def test_all_layers_of_a_rank_in_one_call_are_those_one_by_one(
    name: str, dtype: str, tmp_path: Path
) -> None:
    """In bfloat16 too: a bias is added to the sum, with the residual or before the norm."""
    cpu_kernels.load("auto")  # skips the test where there are none
    changes = WIDE if name.startswith(("llama", "mistral", "qwen")) else {}
    changes = {"intermediate_size": 128} if name.startswith("gemma") else changes
    chosen = settings(save(name, tmp_path, **changes), dtype=dtype, block_size=4)

    def both(runner: Any) -> list[Tensor]:
        return [one_call(runner, chosen.block_size), found(runner)[0]]

    (fused, one_by_one), other = ranks(chosen, 2, both)
    assert torch.equal(fused, other[0])
    apart = (fused.float() - one_by_one.float()).norm() / one_by_one.float().norm()
    assert apart < (1e-5 if dtype == "float32" else 0.01)


class Lost(ThreadCommunicator):
    """Loses the other rank in the third sum, which is in the middle of a call of the kernels."""

    sums = 0

    def all_reduce(self, tensor: Tensor, /) -> None:
        self.sums += 1
        if self.sums >= 3:
            raise ExecutorLost("rank 1 of 2 has died")


def test_a_rank_that_is_lost_in_the_middle_of_a_call_is_reported(tmp_path: Path) -> None:
    cpu_kernels.load("auto")
    chosen = settings(save("llama", tmp_path, **WIDE), dtype="float32", block_size=4)
    lost = []

    def rank(communicator: ThreadCommunicator) -> None:
        lost.append(Lost(communicator._group, communicator.rank))
        runner = load_runner(chosen, "native", lost[-1])
        with pytest.raises(ExecutorLost, match="rank 1 of 2 has died"):
            one_call(runner, chosen.block_size)

    ThreadGroup(2).run(rank)
    assert [each.sums for each in lost] == [3, 3]  # no rank waits for another after that


def test_ranks_of_which_one_lacks_the_call_do_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They exchange other shapes there."""
    cpu_kernels.load("auto")
    folder = settings(save("llama", tmp_path, **WIDE), dtype="float32")
    whole = runner_module.fuse

    def fuse(*given: Any) -> Any:
        return whole(*given) if given[-1].rank else None

    monkeypatch.setattr(runner_module, "fuse", fuse)
    assert ranks(folder, 2, lambda runner: runner._decoder.fused) == [None, None]


@pytest.mark.long
def test_compiled_layers_leave_sums_to_the_communicator(tmp_path: Path) -> None:
    folder = settings(save("llama, llama3 rope, biases", tmp_path), dtype="float32")
    expected = found(load_runner(folder, "native"))
    check_found(ranks(folder, 2, found, compile=True), expected)


# ---------------------------------------------------------------------- quantised weights


@pytest.mark.parametrize(
    ("name", "quantization"),
    [("llama, llama3 rope, biases", "int8"), ("gpt2", "int4")],
)
def test_weights_quantised_at_load_are_those_of_one_rank(
    name: str, quantization: str, tmp_path: Path
) -> None:
    """Computed, and from the cache: each rank has a file of its own."""
    folder = settings(save(name, tmp_path), dtype="float32")
    options = {"quantization": quantization, "group_size": 32, "kernels": "off"}
    expected = found(load_runner(folder, "native", **options))
    for _ in range(2):
        check_found(ranks(folder, 2, found, **options), expected)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 3
    rounded = ranks(folder, 2, found)  # activations too
    assert float((rounded[0][1] - expected[1]).abs().mean()) < 0.05 * float(expected[1].std()) or (
        quantization == "int4"
    )


METHODS: list[Method] = [
    *(Gptq(bits=8), Gptq(group_size=-1), Gptq(act_order=True), Awq(group_size=64)),
    *(CompressedTensors(group_size=64), CompressedTensors(bits=8, format="naive-quantized")),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_matrices_of_safetensors_are_cut_on_the_borders_of_groups(
    method: Method, tmp_path: Path
) -> None:
    model = test_quantized_checkpoints.make(attention_bias=True)
    folder = settings(write_quantized(model, tmp_path, method), dtype="float32")
    expected = found(load_runner(folder, "native", kernels="off"))
    check_found(ranks(folder, 2, found, kernels="off"), expected)


UNEVEN = "a head that is the quantised embedding"
"""Four heads of 24 numbers, in groups of 32."""


IN_BLOCKS = [*("llama", "gpt2", "BF16"), *(kind.name for kind in (*SIMPLE, *K_QUANTS))]


@pytest.mark.parametrize("name", [*IN_BLOCKS, *test_gguf.MIXED])
def test_blocks_of_gguf_are_cut_whole(name: str, tmp_path: Path) -> None:
    made, *types = test_gguf.MADE[name]
    options = {} if made != test_gguf.LARGE else {"head_dim": 128}
    with pytest.MonkeyPatch.context() as patch:
        if options:
            larger = tiny_models.of(
                "Llama", hidden_size=256, intermediate_size=512, vocab_size=71, **options
            )
            patch.setitem(test_gguf.OWN, made, larger)
        model = test_gguf.make(made, *types)
    folder = settings(model.write(tmp_path / "model.gguf"), dtype="float32")
    expected = found(load_runner(folder, "native", kernels="off"))
    check_found(ranks(folder, 2, found, kernels="off"), expected)


# ---------------------------------------------------------------------- what cannot be cut


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    shape = {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3}
    tiny_models.of("Llama", head_dim=16, **shape)().save_pretrained(tmp_path)
    reason = "9 query heads and 3 KV heads, which 2 ranks cannot share; use 1, 3 or 9 ranks"
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        ranks(tmp_path, 2, weights="random")
    assert str(tmp_path) in str(refusal.value)


def test_groups_are_not_cut_apart(tmp_path: Path) -> None:
    model = test_quantized_checkpoints.make()  # 4 heads of 32; 320 wide
    folder = write_quantized(model, tmp_path / "awq", Awq(group_size=64))
    ranks(folder, 2)
    reason = (
        r"model.layers.0.self_attn.o_proj is quantised in groups of 64 inputs, and its 128 are "
        r"divided into 32 for each of 4 ranks, which cuts groups apart; use 1 or 2 ranks, or"
    )
    with pytest.raises(UnsupportedModel, match=reason):
        ranks(folder, 4)
    uneven = test_gguf.make(*test_gguf.MADE[UNEVEN]).write(tmp_path / "model.gguf")
    with pytest.raises(UnsupportedModel, match=r"groups of 32 inputs, and its 96 .* 48 for"):
        ranks(uneven, 2)
    plain = save("llama", tmp_path / "plain")  # 4 heads of 16; 96 wide
    with pytest.raises(UnsupportedModel, match=r"in groups of 64 inputs, and its 64 .* 32 for"):
        ranks(plain, 2, quantization="int8", group_size=64)


@pytest.mark.parametrize("name", ["transformers", "onnxruntime"])
def test_other_runners_refuse_by_name(name: str, tmp_path: Path) -> None:
    save("llama", tmp_path)
    communicator = ThreadCommunicator(ThreadGroup(2), 0)
    with pytest.raises(UnsupportedModel, match=f"{name}.* 2 ranks .*, or set runner to native"):
        load_runner(tmp_path, name, communicator)


# ---------------------------------------------------------------------- what is read


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Bytes of matrices that this thread has read since it last asked."""
    counts: dict[int, int] = {}

    def counted(owner: Any, name: str, size: Callable[[Any, Any], int]) -> None:
        whole = getattr(owner, name)

        def count(self: Any, *given: Any) -> Any:
            result = whole(self, *given)
            counts[get_ident()] = counts.get(get_ident(), 0) + size(self, result)
            return result

        monkeypatch.setattr(owner, name, count)

    counted(Part, "of", lambda _, read: read.nbytes if read.ndim == 2 else 0)
    counted(QuantizedTensor, "_blocks", lambda stored, _: stored.bytes_RB.nbytes)
    counted(PackedCodes, "matrix", lambda codes, _: codes.bytes_OB.nbytes + codes.scales_OG.nbytes)
    return lambda: counts.pop(get_ident(), 0)


SOURCES: dict[str, Callable[[Path], Path]] = {
    "safetensors": lambda folder: save("llama", folder),
    "transposed": lambda folder: save("gpt2", folder),
    "gptq": lambda folder: write_quantized(test_quantized_checkpoints.make(), folder, Gptq()),
    "gguf in blocks": lambda folder: test_gguf.make("qwen3", Type.Q4_0).write(folder / "a.gguf"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_each_rank_reads_its_share_of_the_matrices(
    source: str, tmp_path: Path, bytes_read: Callable[[], int]
) -> None:
    folder = SOURCES[source](tmp_path)

    def rank(communicator: ThreadCommunicator) -> int:
        bytes_read()
        load_runner(folder, "native", communicator)
        return bytes_read()

    bytes_read()
    load_runner(folder, "native")
    whole = bytes_read()
    replicated = 0 if source != "transposed" else 256 * 64 * 4  # learned positions
    assert whole > 40_000
    shares = ThreadGroup(2).run(rank)
    assert sum(shares) == whole + replicated
    assert max(shares) < 0.6 * whole  # a group more or less
