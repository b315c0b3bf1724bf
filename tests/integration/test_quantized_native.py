"""Runner ``native`` with quantised weights: they are what the codes stand for, and no more."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from structlog.testing import capture_logs
from torch import Tensor

from integration import tiny_models
from integration.dequantized_models import dequantized_model, relative_error
from integration.gguf_files import GgufModel
from integration.step_driver import load_runner, prompt_logits, settings
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.decoder import Linear
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.quantized_linears import check_quantization, quantized_decoder
from paged_backends.runners.native.source import ModelSource
from paged_backends.runners.settings import NativeSettings
from paged_core import LLM
from paged_core.errors import CheckpointError, SettingsError
from paged_core.interfaces.runner import Runner

pytestmark = pytest.mark.heavy


PROMPT = tiny_models.PROMPTS[2]
INT8: dict[str, Any] = {"quantization": "int8", "group_size": 32}
INT4: dict[str, Any] = {"quantization": "int4", "group_size": 64}
PLAIN: dict[str, Any] = {"kernels": "off"}
ERROR = {"int8": 0.02, "int4": 0.4}
"""Relative error of logits, at most, of models with random weights."""
ROUNDED: list[tuple[str, dict[str, Any], float]] = [
    ("native", PLAIN, 1e-5),
    ("native", {}, 0.02),
    ("onnxruntime", {}, 1e-5),
]
"""The same beside a model with the weights that codes stand for: the kernels round activations."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of quantised weights for each test; the one of compiled kernels is shared."""
    monkeypatch.setattr(
        "paged_backends.quantization.disk_cache.cache_dir", lambda: tmp_path / "cache"
    )
    return tmp_path / "cache" / "quantized"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("model"))


def load(chosen: Any, **options: Any) -> Any:
    return load_runner(chosen, "native", **options)


def logits(runner: Runner) -> Tensor:
    return prompt_logits(runner, PROMPT)


def events(logs: Any) -> list[bool]:
    return [entry["cached"] for entry in logs if entry["event"] == "weights_quantized"]


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize(("place", "name"), enumerate(tiny_models.NATIVE))
def test_logits_are_those_of_the_weights_that_codes_stand_for(
    place: int, name: str, tmp_path: Path
) -> None:
    options = (INT8, INT4)[place % 2]
    model = tiny_models.save(name, tmp_path)
    weight_format = NativeSettings(**options).weight_format
    assert weight_format is not None
    same = dequantized_model(model, weight_format).double()
    with torch.inference_mode():
        expected = same(torch.tensor([PROMPT])).logits[0]
    whole = logits(load(model))
    for runner, kernels, bound in ROUNDED:
        found = logits(load_runner(model, runner, **options, **kernels))
        assert relative_error(found, expected) < bound
        most = ERROR[options["quantization"]] + bound / 2
        assert 1e-4 < relative_error(found, whole) < most


@pytest.mark.parametrize(
    ("group_size", "dtype"), [(64, "float32"), (128, "bfloat16"), (32, "float16")]
)
def test_every_group_size_and_dtype(llama: Path, group_size: Any, dtype: str) -> None:
    whole = logits(load(llama))
    chosen = settings(llama, dtype=dtype)
    found = logits(load(chosen, quantization="int8", group_size=group_size))
    assert 1e-4 < relative_error(found, whole) < 0.06


# ---------------------------------------------------------------------- the cache on disk


def test_runners_have_the_same_file(llama: Path, cache: Path) -> None:
    with capture_logs() as logs:
        found = logits(load(llama, **INT4, **PLAIN))
        again = logits(load_runner(llama, "onnxruntime", **INT4))
    assert events(logs) == [False, True]
    assert relative_error(again, found) < 1e-5
    assert len(list(cache.glob("*.safetensors"))) == 1


def test_a_checkpoint_that_changed_is_quantised_again(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "changing")
    before = logits(load(folder, **INT4))
    state = (folder / "model.safetensors").stat()
    tiny_models.save("llama", folder, seed=1)
    os.utime(folder / "model.safetensors", ns=(state.st_atime_ns, state.st_mtime_ns))
    with capture_logs() as logs:
        after = logits(load(folder, **INT4))
    assert events(logs) == [False]
    assert relative_error(after, before) > 0.5


def test_generated_weights_are_quantised_without_a_file(llama: Path, cache: Path) -> None:
    whole, found = (logits(load(llama, weights="random", **more)) for more in ({}, INT8))
    assert 1e-4 < relative_error(found, whole) < 0.03
    assert not cache.exists()


def test_a_gguf_file_of_16_bits(llama: Path, tmp_path: Path) -> None:
    path = save_gguf(llama, tmp_path / "model.gguf", Type.BF16)
    with capture_logs() as logs:
        first, again = (logits(load(path, **INT8, **PLAIN)) for _ in range(2))
        os.utime(path)
        load(path, **INT8, **PLAIN)
    assert events(logs) == [False, True, False]
    assert torch.equal(first, again)
    assert 1e-4 < relative_error(first, logits(load(path))) < 0.03


def save_gguf(folder: Path, path: Path, kind: Type) -> Path:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return GgufModel(model, kind).write(path)


# ---------------------------------------------------------------------- memory and refusals


def test_the_size_of_the_model_is_that_of_its_codes(llama: Path) -> None:
    whole, small = load(llama).model_size(), load(llama, **INT4).model_size()
    assert whole.layer_weights == small.layer_weights
    assert whole.weight_bytes == 4 * (whole.layer_weights + whole.head_weights)
    assert small.weight_bytes == round(whole.weight_bytes * (0.5 + 2 / 64) / 4)


class CountingOps(Ops):
    """Counts the quantised matrices that are in memory when another layer is made."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[int] = []
        self._seen: list[weakref.ref[Tensor]] = []

    def quantized(self, matrix: QuantizedMatrix, bias_O: Tensor | None = None) -> Linear:  # noqa: N803
        self._seen.append(weakref.ref(matrix.codes_OGY))
        self.alive.append(sum(seen() is not None for seen in self._seen))
        return super().linear(torch.zeros(matrix.shape))


@pytest.mark.parametrize("weights", ["checkpoint", "random"])
def test_matrices_are_let_go_one_by_one(
    llama: Path, weights: Literal["checkpoint", "random"], cache: Path
) -> None:
    """Weights of a checkpoint are in memory here, because there is no folder for them."""
    cache.parent.write_text("a file")
    ops = CountingOps()
    source = ModelSource.open(settings(llama), weights)
    quantized_decoder(source, ops, WeightFormat(4, 32))
    assert ops.alive == [1] * (2 * 4 + 1)


@pytest.mark.parametrize(
    ("options", "device", "message"),
    [
        ({}, "cuda", r"quantization: int8 is computed on a CPU, .* cuda; set device to cpu"),
        ({"compile": True}, "cpu", r"compile cannot compile; leave one of them out"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    llama: Path, options: dict[str, Any], device: Literal["cpu", "cuda"], message: str
) -> None:
    source = ModelSource.open(settings(llama), "checkpoint")
    elsewhere = replace(source, device=torch.device(device))
    with pytest.raises(SettingsError, match=message):
        check_quantization(NativeSettings(**INT8, **options), elsewhere)


def test_weights_that_are_quantised_already_are_refused(llama: Path, tmp_path: Path) -> None:
    path = save_gguf(llama, tmp_path / "model.gguf", Type.Q8_0)
    with pytest.raises(SettingsError, match=r"model\.gguf are quantised already, as Q8_0; set it"):
        LLM(str(path), runner={"name": "onnxruntime", **INT8}, num_blocks=40)


def test_weights_that_are_not_finite_are_refused(llama: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] = float("inf")
    model.save_pretrained(tmp_path / "broken")
    with pytest.raises(
        CheckpointError, match=r"broken \[\d+, \d+\] cannot be quan.* NaN or an inf"
    ):
        load(tmp_path / "broken", **INT8)
