"""Models whose tokens depend on the rest of their row are refused before they are served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.models.llama import modeling_llama

from integration import tiny_models
from integration.step_driver import load_runner, settings
from paged_core.errors import UnsupportedModel
from paged_core.interfaces.scheduler import StepLimits

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 256 positions."""
    return tiny_models.save("llama", tmp_path_factory.mktemp("model"))


def places(rows: Tensor) -> Tensor:
    """The places in the row [T, 1]."""
    return torch.arange(rows.shape[-2])[:, None]


FAULTS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "queries by their place": ("rotary", lambda q: q * (1 + 0.2 * (places(q) >= 40))),
    "queries by the log of it beyond the positions of the config": (
        "rotary",
        lambda q: q * (1 + 0.1 * torch.log1p(places(q) // 256)),
    ),
    "queries by their place near the longest step": (
        "rotary",
        lambda q: q * (1 + 0.2 * (places(q) >= 2040)),
    ),
    "queries by the length of the row": ("rotary", lambda q: q * (1.2 if q.shape[-2] > 60 else 1)),
    "queries by a neighbour": ("rotary", lambda q: q + 0.2 * functional.pad(q, (0, 0, 1, -1))),
    "queries by the parity of their place": ("rotary", lambda q: q * (1 + 0.1 * (places(q) % 2))),
    "angles by the position of the first": (
        "cos",
        lambda cos, at: cos * (1 + 0.1 * at[:, :1, None]),
    ),
    "angles by the furthest of a row": ("cos", lambda cos, at: cos * (1.2 if at.max() > 99 else 1)),
    "an MLP by the place": ("mlp", lambda x: x * (1 + 0.3 * (places(x) >= 1000))),
    "an MLP by all before in the row": ("mlp", lambda x: x + x.cumsum(-2) * (places(x) >= 70)),
}


def plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every Llama have it."""
    where, wrong = FAULTS[fault]
    rotate = modeling_llama.apply_rotary_pos_emb
    angles, mlp = modeling_llama.LlamaRotaryEmbedding.forward, modeling_llama.LlamaMLP.forward

    def rotated(query: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        query, key = rotate(query, *rest, **options)
        return wrong(query).to(query.dtype), key

    def angled(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = angles(self, x, position_ids)
        return wrong(cos, position_ids).to(cos.dtype), sin

    def computed(self: Any, x: Tensor) -> Tensor:
        return wrong(mlp(self, x)).to(x.dtype)

    if where == "rotary":
        monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotated)
    elif where == "cos":
        monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", angled)
    else:
        monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", computed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_depends_on_the_row_is_seen(
    fault: str, dtype: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = SimpleNamespace(step_limits=StepLimits(num_seqs=8, num_tokens=2048))
    chosen = settings(folder, dtype=dtype, scheduler=steps)
    load_runner(chosen)
    plant(fault, monkeypatch)
    with pytest.raises(UnsupportedModel, match=r"llama cannot be served: .* differ"):
        load_runner(chosen)


class _Rows(TorchFunctionMode):
    """Notes how many rows linear layers are computed for."""

    most = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            self.most = max(self.most, args[0].flatten(0, -2).shape[0])
        return func(*args, **(kwargs or {}))


def test_a_long_row_costs_hardly_more_than_a_short_one(folder: Path) -> None:
    with _Rows() as rows:
        load_runner(folder)
    assert 48 < rows.most < 64


@pytest.mark.parametrize(
    ("num_tokens", "named"), [(16384, None), (30000, {"first_place": 20000}), (20000, None)]
)
def test_thresholds_that_no_tried_row_reaches_are_named(
    num_tokens: int, named: dict[str, int] | None, folder: Path, tmp_path: Path
) -> None:
    changed = shutil.copytree(folder, tmp_path / "model") / "config.json"
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"first_place": 20000}))
    steps = SimpleNamespace(step_limits=StepLimits(num_seqs=8, num_tokens=num_tokens))
    with capture_logs() as logs:
        load_runner(settings(changed.parent, scheduler=steps))
    found = [log["not_tried"] for log in logs if log["event"] == "steps_longer_than_trial"]
    assert found == ([] if named is None else [named])


@pytest.mark.parametrize(
    "raised", [TypeError("no"), KeyError("x"), AttributeError(), ImportError("a")]
)
def test_what_the_model_raises_is_a_refusal(
    raised: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", fail)
    with pytest.raises(
        UnsupportedModel, match=f"^llama cannot .* {type(raised).__name__} .*choose"
    ):
        load_runner(folder)


def test_a_tensor_that_attention_would_not_heed_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = partialmethod(modeling_llama.LlamaAttention.forward, block_indices=torch.zeros(2))
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forward)
    with pytest.raises(UnsupportedModel, match=r"'block_indices' of shape \(2,\)"):
        load_runner(folder)
