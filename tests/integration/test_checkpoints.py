"""A checkpoint that cannot be served is refused with a reason and a remedy; nothing is made up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
)
from structlog.testing import capture_logs
from transformers.utils import logging

from integration import tiny_models
from integration.step_driver import load_runner, settings
from paged_backends.checkpoint.config_fields import choose_dtype
from paged_backends.checkpoint.folder import Checkpoint, resolve_checkpoint
from paged_core import LLM, SamplingParams
from paged_core.errors import CheckpointError, PagedCoreError, SettingsError, UnsupportedModel
from paged_plugins.bench.measurement import peak_memory, reset_peak

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_models.save("llama", tmp_path)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refused(folder: Path | str, reason: str, **changes: Any) -> None:
    with pytest.raises(CheckpointError, match=reason):
        load_runner(settings(folder, **changes))


# ---------------------------------------------------------------------- where it is


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("./none", "there is no folder"),
        ("a/b/c", "there is no folder"),
        ("", "there is no folder"),
        ("pyproject.toml", "is a file"),
        ("a b/c", "neither a folder nor a hub id"),
        ("someone/some-model-that-is-nowhere", r"hub cannot be reached.*give a folder"),
    ],
)
def test_what_cannot_be_found_offline(
    model: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(CheckpointError, match=reason):
        resolve_checkpoint(model)


def unanswered(kind: type[Exception]) -> Exception:
    """An error of the hub without the response that some versions of its library ask for."""
    return kind.__new__(kind, "no such luck")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (unanswered(GatedRepoError), "users who accepted its terms"),
        (unanswered(RepositoryNotFoundError), r"no model a/b on the hub"),
        (unanswered(HfHubHTTPError), r"failed \(HfHubHTTPError"),
        (OSError("disk full\nand more"), r"failed \(disk full\); try again"),
    ],
)
def test_a_failed_download_says_why(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=message):
        resolve_checkpoint("a/b")


def test_a_download_fetches_pickles_and_code_only_if_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[list[str]] = []

    def fetch(_: str, *, allow_patterns: list[str], **__: Any) -> str:
        fetched.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    (tmp_path / "model.safetensors").touch()
    assert resolve_checkpoint("a/b") == tmp_path
    assert len(fetched) == 1
    assert not {"*.py", "pytorch_model*.bin", "model.onnx"} & set(fetched[0])
    resolve_checkpoint("a/b", allow_pickle=True)
    assert len(fetched) == 2
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").touch()
    resolve_checkpoint("a/b", allow_pickle=True, trust_remote_code=True)
    assert "*.py" in fetched[2]
    assert {"*.py", "pytorch_model*.bin"} <= set(fetched[3])
    assert len(fetched) == 4


@pytest.mark.parametrize(
    ("runner", "graph", "named"),
    [
        ("auto", "model.onnx", "."),
        ("native", "onnx/model_q4.onnx", "."),
        ("onnxruntime", "genai_config.json", "."),
        ("transformers", "a.onnx", "a.onnx"),
    ],
)
def test_an_exported_graph_is_refused_with_the_way_to_serve_its_weights(
    runner: str, graph: str, named: str, folder: Path
) -> None:
    (folder / "model.safetensors").unlink()
    (folder / graph).parent.mkdir(exist_ok=True)
    (folder / graph).write_bytes(b"{}")
    with pytest.raises(PagedCoreError) as raised:
        LLM(str(folder / named), runner=runner)
    assert f"{graph} is an exported ONNX graph" in str(raised.value)
    assert "as safetensors or GGUF; with runner onnxruntime, a graph is made" in str(raised.value)
    (folder / "config.json").unlink()
    with pytest.raises(UnsupportedModel, match="exported ONNX graph"):
        Checkpoint.open(str(folder / named))


def test_reading_a_checkpoint_and_its_tokenizer_imports_nothing_heavy() -> None:
    code = (
        "import sys; import paged_backends.plugin\n"
        "from paged_backends.checkpoint.folder import Checkpoint\n"
        "from paged_backends.text.tokenizer_loader import load_tokenizer\n"
        "c = Checkpoint.open('demo'); c.check_weights(allow_pickle=False);"
        "assert c.model_type == 'llama';"
        "load_tokenizer('demo').apply_chat_template([{'role': 'user', 'content': 'hello'}]);"
        "sys.exit(int(bool({'torch', 'transformers', 'gguf'} & set(sys.modules))))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------------- what it holds


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def cut(end: int) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:end])

    return edit


def garble(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:40] = b"x" * 32
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (write("config.json", "{"), "cannot be read as JSON"),
        (
            lambda folder: change(folder / "config.json", num_attention_heads="many"),
            "does not describe a model of type llama",
        ),
        (
            lambda folder: change(folder / "config.json", intermediate_size=80),
            "other shapes|cannot be loaded",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (cut(-1000), "its header promises"),
        (cut(100), "truncated"),
        (garble, "corrupt"),
        (
            write(
                "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
            ),
            "git lfs pull",
        ),
    ],
)
def test_damaged_files(folder: Path, damage: Callable[[Path], object], reason: str) -> None:
    damage(folder)
    refused(folder, reason)


def test_missing_shard(tmp_path: Path) -> None:
    tiny_models.save("llama", tmp_path, max_shard_size="100KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    assert load_runner(tmp_path).vocab_size == 300
    shards[0].unlink()
    refused(tmp_path, "lacks 1 of")


def test_pickles_only_where_allowed(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refused(folder, "allow_pickle")
    assert load_runner(settings(folder, allow_pickle=True)).vocab_size == 300


def test_weights_of_another_kind_of_model(tmp_path: Path) -> None:
    config = tiny_models.FAMILIES["llama"]()
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    refused(tmp_path, "lacks lm_head.weight among its weights")


# ---------------------------------------------------------------------- what it is


def test_unknown_architecture(folder: Path) -> None:
    change(folder / "config.json", model_type="lllama")
    with pytest.raises(UnsupportedModel, match=r"'lllama'.*does not know"):
        load_runner(folder)


def test_an_adapter_is_no_model_and_not_applied_to_one(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with capture_logs() as logs:
        load_runner(folder)
    assert [entry["event"] for entry in logs].count("adapter_not_applied") == 1
    for path in ("model.safetensors", "config.json"):
        (folder / path).unlink()
        with pytest.raises(UnsupportedModel, match=r"is an adapter.*merge"):
            load_runner(folder)


def test_code_from_the_checkpoint_is_not_run_unasked(folder: Path) -> None:
    change(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    (folder / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UnsupportedModel, match="trust_remote_code"):
        load_runner(folder)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.T5Config(d_model=16), "encoder-decoder"),
        (transformers.ViTConfig(), "not a causal language model"),
        (transformers.AriaConfig(), "only with what it reads beside text"),
    ],
)
def test_other_kinds_of_model(config: Any, reason: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason):
        load_runner(tmp_path)


def test_rope_that_depends_on_the_longest_sequence_bounds_the_length(tmp_path: Path) -> None:
    tiny_models.FAMILIES["phi3"]().save_pretrained(tmp_path)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 1.0,
    }
    change(tmp_path / "config.json", rope_parameters=rope, original_max_position_embeddings=64)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert load_runner(tmp_path).max_model_len == 64


# ---------------------------------------------------------------------- how it is loaded


@pytest.fixture(scope="module")
def folder_16_bit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bfloat16")
    model = transformers.AutoModelForCausalLM.from_config(tiny_models.FAMILIES["llama"]())
    model.to(torch.bfloat16).save_pretrained(path)
    return path


def test_a_small_16_bit_model_computes_in_float32_on_a_processor(folder_16_bit: Path) -> None:
    assert load_runner(folder_16_bit).layers[0].dtype == "float32"
    asked = load_runner(settings(folder_16_bit, dtype="bfloat16"))
    assert asked.layers[0].dtype == "bfloat16"


@pytest.mark.parametrize(("supported", "dtype"), [(True, "auto"), (False, torch.float32)])
def test_a_large_16_bit_model_does_so_where_bfloat16_is_slow(
    folder_16_bit: Path, supported: bool, dtype: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paged_backends.checkpoint.config_fields.SMALL_BYTES", 0)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    checkpoint = Checkpoint.open(str(folder_16_bit))
    assert choose_dtype("auto", checkpoint, torch.device("cpu")) == dtype
    assert choose_dtype("auto", checkpoint, torch.device("cuda")) == "auto"


def test_device_that_is_not_there(folder: Path) -> None:
    with pytest.raises(SettingsError, match="device"):
        load_runner(settings(folder, device="cuda:99"))


def test_loading_does_not_hold_the_weights_twice(folder: Path, tmp_path: Path) -> None:
    """Stored in 16 bits and computed in 32: they are converted one by one."""
    config = tiny_models.of("Llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=8)()
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "large")
    del model
    load_runner(folder, "native", kernels="off")  # imports what it needs
    reset_peak()
    before = peak_memory()
    runner = load_runner(settings(tmp_path / "large", dtype="float32"), "native", kernels="off")
    assert peak_memory() - before < 2 * runner.model_size().weight_bytes


def test_loading_is_silent_and_leaves_the_library_as_it_was(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()
    load_runner(folder)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("chunk", [8192, 16])
def test_what_reads_images_is_left_aside(chunk: int, tmp_path: Path) -> None:
    """The text model is served, or refused by what it is, and not by weights that it has beside."""
    text = tiny_models.FAMILIES["qwen3_moe"]().to_dict()
    names = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    small = {name: text[name] for name in (*names, "num_hidden_layers", "max_position_embeddings")}
    small |= {"intermediate_size": 96, "intermediate_size_mlp": 96, "num_local_experts": 2}
    widths = dict.fromkeys(("hidden_size", "vision_output_dim", "projector_input_dim"), 32)
    sees = {**widths, "intermediate_size": 128, "projector_output_dim": 32, "num_hidden_layers": 1}
    sees |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    small |= {"pad_token_id": 0, "attention_chunk_size": chunk, "initializer_range": 0.1}
    config = transformers.Llama4Config(text_config=small, vision_config=sees)
    model: Any = transformers.Llama4ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    assert any("vision_model" in name for name in model.state_dict())
    if chunk == 16:
        with pytest.raises(UnsupportedModel, match="chunked or two-way attention"):
            load_runner(tmp_path)
        return
    prompt = list(range(3, 43))
    with LLM(str(tmp_path), num_blocks=16, dtype="float32") as llm:
        (output,) = llm.generate(
            {"prompt_token_ids": prompt}, SamplingParams(max_tokens=6, temperature=0)
        )
    expected = model.eval().generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
    assert list(output.outputs[0].token_ids) == expected[0, len(prompt) :].tolist()
