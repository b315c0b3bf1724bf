"""A fake of OpenVINO GenAI: the classes that our peer uses.

They refuse attributes and arguments of another type, as the real ones do.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from unit.made_up_model import generated


def _need(value: object, kind: type) -> None:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")


class _Typed:
    """Has only the attributes that are annotated, of just these types."""

    def __setattr__(self, name: str, value: object) -> None:
        _need(value, {"int": int, "bool": bool}[type(self).__annotations__[name]])
        super().__setattr__(name, value)


class SchedulerConfig(_Typed):
    cache_size: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool


class GenerationConfig(_Typed):
    max_new_tokens: int
    ignore_eos: bool
    do_sample: bool


class Tensor:
    def __init__(self, data: Any) -> None:
        _need(data, np.ndarray)
        self.data = data


class ContinuousBatchingPipeline:
    def __init__(
        self, models_path: str, scheduler_config: Any, device: str, properties: dict[str, Any]
    ) -> None:
        _need(scheduler_config, SchedulerConfig)
        assert (Path(models_path) / "openvino_model.xml").is_file()
        assert device == "CPU"
        self.asked = {**vars(scheduler_config), **properties}

    def generate(self, inputs: list[Any], configs: list[Any]) -> list[Any]:
        results = []
        for tensor, config in zip(inputs, configs, strict=True):
            _need(tensor, Tensor)
            assert (tensor.data.dtype, tensor.data.shape[0]) == (np.int64, 1)
            assert config.ignore_eos
            assert not config.do_sample
            tokens = generated(tensor.data[0].tolist(), config.max_new_tokens)
            results.append(SimpleNamespace(m_generation_ids=[tokens]))
        return results


def openvino_modules() -> dict[str, ModuleType]:
    """Return what ``import`` must find."""
    genai, openvino = ModuleType("openvino_genai"), ModuleType("openvino")
    for kind in (SchedulerConfig, GenerationConfig, ContinuousBatchingPipeline):
        setattr(genai, kind.__name__, kind)
    vars(genai)["get_version"] = lambda: "2026.4.1.0-2889-abc"
    vars(openvino)["Tensor"] = Tensor
    return {"openvino_genai": genai, "openvino": openvino}
