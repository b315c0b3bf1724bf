"""OpenVINO GenAI on a CPU: continuous batching over a converted checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from peer import SHORT, Item, PeerEngine, Task, main

_MODEL = "openvino_model.xml"
_BATCHED_TOKENS = 256
"""Tokens per step: the default of OpenVINO's scheduler."""


def converted(model: str) -> Path | None:
    """Return the folder of the converted checkpoint; ``None``: there is none."""
    folder = Path(model)
    places = (folder.with_name(f"{folder.name}.ov"), folder / "openvino")
    return next((place for place in places if (place / _MODEL).is_file()), None)


class OpenVino(PeerEngine):
    """``ContinuousBatchingPipeline`` with prefix caching, in the task's precision."""

    package = "openvino_genai"

    @staticmethod
    def missing(model: str, dtype: str) -> str | None:
        """Name the folder of the converted checkpoint that is missing."""
        if converted(model) is not None:
            return None
        folder = Path(model)
        target = folder.with_name(f"{folder.name}.ov")
        weights = "fp32" if dtype == "float32" else "fp16"
        return (
            f"neither {target / _MODEL} nor {folder / 'openvino' / _MODEL} exists; make it with "
            f"`optimum-cli export openvino --model {folder} --task text-generation-with-past "
            f"--weight-format {weights} {target}`"
        )

    def __init__(self, task: Task) -> None:
        genai: Any = import_module("openvino_genai")
        self._genai = genai
        self._openvino: Any = import_module("openvino")
        self._numpy: Any = import_module("numpy")
        self.version = genai.get_version().partition("-")[0]
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = task.cache_gib
        scheduler.max_num_batched_tokens = _BATCHED_TOKENS
        scheduler.enable_prefix_caching = True
        precision = SHORT[task.dtype]
        options = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_NUM_THREADS": task.threads,
        }
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(converted(task.model)), scheduler, "CPU", options
        )

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Submit all items at once; the pipeline batches them."""
        array, tensor = self._numpy.array, self._openvino.Tensor
        results = self._pipeline.generate(
            [tensor(array([item.prompt], dtype=self._numpy.int64)) for item in items],
            [self._generation(item.num_output) for item in items],
        )
        return [list(result.m_generation_ids[0]) for result in results]

    def _generation(self, num_output: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = num_output
        config.ignore_eos = True
        config.do_sample = False
        return config


if __name__ == "__main__":
    main(OpenVino)
