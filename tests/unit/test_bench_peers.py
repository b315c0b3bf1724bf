"""Other engines: what they are asked, and what they answer for conversations."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from integration import tiny_models
from paged_plugins.bench.peers import Task
from paged_plugins.bench.workloads import NAMED, by_turn
from paged_plugins.workloads.request import token_ids
from unit.bench_tasks import bench_task
from unit.fake_llama_cpp import LlamaLibrary
from unit.fake_openvino import openvino_modules
from unit.made_up_model import VOCAB_SIZE, expected, generated
from unit.peer_scripts import Item, measure, script

LlamaCpp, num_common = script("llama_cpp_peer").LlamaCpp, script("llama_cpp_peer").num_common
NanoVllm = script("nano_vllm_peer").NanoVllm
OpenVino = script("openvino_peer").OpenVino
TransformersContinuous = script("transformers_peer").TransformersContinuous
Vllm, cores_to_use = script("vllm_peer").Vllm, script("vllm_peer").cores_to_use

ITEMS = [Item([5, 6, 7], 3), Item([8, 9], 5)]
CHAT = [*ITEMS, Item([4, 4], 2, follows=1), Item([1, 2, 3], 4, follows=0), Item([7], 1, follows=2)]


def items_of(name: str, repeat: int = 0) -> list[Item]:
    """The requests of a workload as the script of a peer gets them."""
    links = list(by_turn(NAMED[name].requests(repeat, vocab_size=VOCAB_SIZE)))
    places = {request.id: place for place, (request, _) in enumerate(links)}
    return [
        Item(token_ids(request.prompt, None), request.output, places[follows] if follows else None)
        for request, follows in links
    ]


def task(model: object, dtype: str = "bfloat16", **changes: Any) -> Task:
    return bench_task(model, **{"dtype": dtype, "threads": 2, "cache_gib": 3, **changes})


def offline_module(asked: dict[str, Any], allowed: dict[str, Any], **facts: Any) -> Any:
    """A module with the offline interface of vLLM and of nano-vLLM; it notes what it is asked.

    Args:
        allowed: what sampling parameters must be, but for the number of tokens.
    """

    class Engine:
        def __init__(self, model: str, **options: Any) -> None:
            asked.update(options, model=model)

        def generate(self, prompts: list[Any], sampling: list[Any], use_tqdm: bool) -> Any:
            assert not use_tqdm
            for prompt, some in zip(prompts, sampling, strict=True):
                count = some.pop("max_tokens")
                assert some == allowed
                if isinstance(prompt, list):
                    yield {"text": "", "token_ids": generated(prompt, count)}
                else:
                    tokens = tuple(generated(prompt["prompt_token_ids"], count))
                    yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)])

    return SimpleNamespace(LLM=Engine, SamplingParams=dict, **facts)


class TestVllm:
    def test_generates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}
        allowed = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
        module = offline_module(asked, allowed, __version__="0.32")
        monkeypatch.setitem(sys.modules, "vllm", module)
        engine = Vllm(task("some/model"))
        assert engine.version == "0.32"
        assert measure(engine, CHAT)["outputs"] == expected(CHAT)
        assert (asked["model"], asked["dtype"]) == ("some/model", "bfloat16")
        assert (asked["max_model_len"], asked["distributed_executor_backend"]) == (64, "uni")

    def test_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vllm_peer.find_library", lambda _: "libtc.so.4")
        monkeypatch.setattr("vllm_peer.cores_to_use", lambda _: [0, 2])
        monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        (tmp_path / "lib").mkdir()
        openmp = tmp_path / "lib" / "libiomp5.so"
        openmp.touch()
        found = Vllm.environment(task(tmp_path))
        assert found["LD_PRELOAD"] == f"libtc.so.4:{openmp}:/lib/other.so"
        assert found["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        assert (found["VLLM_CPU_OMP_THREADS_BIND"], found["VLLM_CPU_KVCACHE_SPACE"]) == ("0,2", "3")
        assert found["HF_HUB_OFFLINE"] == "1"

    def test_environment_without_these_libraries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("vllm_peer.find_library", lambda _: None)
        monkeypatch.delenv("LD_PRELOAD", raising=False)
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        found = Vllm.environment(task("some/model"))
        assert not found.keys() & {"LD_PRELOAD", "HF_HUB_OFFLINE"}

    def test_cores_come_before_their_second_threads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
        for processor, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
            (tmp_path / str(processor)).write_text(siblings)
        monkeypatch.setattr("vllm_peer._TOPOLOGY", f"{tmp_path}/{{}}")
        assert cores_to_use(2) == [0, 2]
        assert cores_to_use(3) == [0, 1, 2]
        monkeypatch.setattr("vllm_peer._TOPOLOGY", f"{tmp_path}/none{{}}")
        assert cores_to_use(2) == [0, 1]


class TestNanoVllm:
    def test_generates(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        asked: dict[str, Any] = {}
        module = offline_module(asked, {"temperature": 0.6, "ignore_eos": True})
        monkeypatch.setitem(sys.modules, "nanovllm", module)
        engine = NanoVllm(task(tmp_path, temperature=0.6))
        assert measure(engine, CHAT)["outputs"] == expected(CHAT)
        assert asked == {"model": str(tmp_path), "enforce_eager": False, "max_model_len": 64}
        assert NanoVllm.problem(0.6) is NanoVllm.missing(str(tmp_path), "bfloat16") is None
        assert NanoVllm.problem(0.0) == "it only samples at temperatures above 0"
        assert "it loads a folder" in (NanoVllm.missing("some/model", "bfloat16") or "")


class TestTransformersContinuous:
    @pytest.mark.parametrize("temperature", [0.0, pytest.param(0.6, marks=pytest.mark.slow)])
    def test_generates(self, temperature: float, tmp_path: Path) -> None:
        model = tiny_models.save("llama", tmp_path)
        prompts = tiny_models.PROMPTS[:2]
        engine = TransformersContinuous(bench_task(model, temperature=temperature))
        try:
            outputs = engine.run([Item(list(prompts[0]), 4), Item(list(prompts[1]), 2)])
        finally:
            engine.close()
        assert [len(output) for output in outputs] == [4, 2]
        if not temperature:
            expected = tiny_models.generate(model, prompts, 4)
            assert outputs == [expected[0], expected[1][:2]]


class TestOpenVino:
    @pytest.fixture
    def load(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        for name, module in openvino_modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        (tmp_path / "model.ov").mkdir()
        (tmp_path / "model.ov" / "openvino_model.xml").touch()
        return OpenVino

    def test_generates(self, load: Any, tmp_path: Path) -> None:
        engine = load(task(tmp_path / "model"))
        assert engine.version == "2026.4.1.0"
        assert measure(engine, CHAT)["outputs"] == expected(CHAT)

    @pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float32", "f32")])
    def test_what_it_is_asked(self, load: Any, dtype: str, precision: str, tmp_path: Path) -> None:
        assert load(task(tmp_path / "model", dtype))._pipeline.asked == {
            "cache_size": 3,
            "max_num_batched_tokens": 256,
            "enable_prefix_caching": True,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_NUM_THREADS": 2,
        }

    def test_a_checkpoint_that_is_missing(self, tmp_path: Path) -> None:
        message = OpenVino.missing(str(tmp_path / "model"), "bfloat16")
        assert message is not None
        assert f"neither {tmp_path}/model.ov/openvino_model.xml nor {tmp_path}/model/o" in message
        assert "`optimum-cli export openvino --model" in message
        assert message.endswith(f"--weight-format fp16 {tmp_path}/model.ov`")
        (tmp_path / "model" / "openvino").mkdir(parents=True)
        (tmp_path / "model" / "openvino" / "openvino_model.xml").touch()
        assert OpenVino.missing(str(tmp_path / "model"), "bfloat16") is None


class TestLlamaCpp:
    @pytest.fixture
    def library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LlamaLibrary:
        library = LlamaLibrary()
        monkeypatch.setitem(sys.modules, "llama_cpp", library)
        (tmp_path / "model.bf16.gguf").touch()
        (tmp_path / "model.f32.gguf").touch()
        return library

    @pytest.mark.parametrize("items", [ITEMS, CHAT, [Item([3] * 24, 4)] * 2, [Item([5], 1)]])
    def test_generates(self, items: list[Item], library: LlamaLibrary, tmp_path: Path) -> None:
        engine = LlamaCpp(task(tmp_path / "model"))
        for _ in range(2):
            assert measure(engine, items)["outputs"] == expected(items)

    @pytest.mark.parametrize("name", ["W1", "W3", "W7"])
    def test_workloads(self, name: str, library: LlamaLibrary, tmp_path: Path) -> None:
        engine = LlamaCpp(task(tmp_path / "model"))
        for turn in range(2):
            items = items_of(name, turn)
            assert measure(engine, items)["outputs"] == expected(items)
        assert max(map(len, library.batches)) <= 2048

    def test_a_common_prefix_is_computed_once(self, library: LlamaLibrary, tmp_path: Path) -> None:
        items = items_of("W3")
        measure(LlamaCpp(task(tmp_path / "model")), items)
        assert sum(map(len, library.batches)) == 512 + 24 * 32 + 24 * 31

    def test_a_later_turn_computes_what_it_adds(
        self, library: LlamaLibrary, tmp_path: Path
    ) -> None:
        engine = LlamaCpp(task(tmp_path / "model"))
        measure(engine, CHAT)
        assert sum(map(len, library.batches)) == sum(
            len(item.prompt) + (item.follows is not None) + item.num_output - 1 for item in CHAT
        )

    def test_room_follows_the_workload(self, library: LlamaLibrary, tmp_path: Path) -> None:
        engine = LlamaCpp(task(tmp_path / "model"))
        for items in (ITEMS, ITEMS, [Item([5] * 200, 100)], CHAT):
            assert measure(engine, items)["outputs"] == expected(items)
        sizes = [(context["n_seq_max"], context["n_ctx"]) for context in library.contexts]
        assert sizes == [(2, 512), (1, 512), (2, 512)]
        assert library.contexts[0]["n_threads"] == 2

    @pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", 1), ("float32", 0)])
    def test_the_cache_is_as_wide_as_the_weights(
        self, dtype: str, kind: int, library: LlamaLibrary, tmp_path: Path
    ) -> None:
        measure(LlamaCpp(task(tmp_path / "model", dtype)), ITEMS)
        assert library.contexts[0]["type_k"] == library.contexts[0]["type_v"] == kind

    def test_only_its_errors_are_shown(
        self, library: LlamaLibrary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert LlamaCpp(task(tmp_path / "model")).vocab_size == VOCAB_SIZE
        assert capsys.readouterr().err == "a real problem\n"

    def test_failures(self, library: LlamaLibrary, tmp_path: Path) -> None:
        engine = LlamaCpp(task(tmp_path / "model"))
        with pytest.raises(RuntimeError, match="a context of 300 sequences of 256 tokens"):
            engine.prepare(300, 100)
        engine.prepare(1, 100)
        with pytest.raises(RuntimeError, match="llama_decode ended with status 1"):
            engine.run([Item([1] * 300, 1)])
        library.loads = False
        with pytest.raises(RuntimeError, match=r"cannot load .*model\.bf16\.gguf"):
            LlamaCpp(task(tmp_path / "model"))

    def test_a_checkpoint_that_is_missing(self, tmp_path: Path) -> None:
        message = LlamaCpp.missing(str(tmp_path / "model"), "float32")
        assert message is not None
        assert message.startswith(f"{tmp_path}/model.f32.gguf does not exist; make it with llama")
        assert f"--outtype f32 --outfile {tmp_path}/model.f32.gguf`" in message
        (tmp_path / "model.f32.gguf").touch()
        assert LlamaCpp.missing(str(tmp_path / "model"), "float32") is None

    def test_a_gguf_file_is_loaded_as_it_is(self, tmp_path: Path) -> None:
        file = tmp_path / "model.Q4_K_M.gguf"
        assert LlamaCpp.missing(str(file), "bfloat16") == f"{file} does not exist"
        file.touch()
        assert LlamaCpp.missing(str(file), "bfloat16") is None

    def test_common_tokens(self) -> None:
        assert num_common([1, 2, 3], [1, 2, 4, 5]) == 2
        assert num_common([1, 2], [1, 2, 3]) == num_common([1, 2, 3], [1, 2]) == 2
        assert num_common([], [1]) == 0
