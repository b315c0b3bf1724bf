"""nano-vLLM, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from peer import Item, PeerEngine, Task, main


class NanoVllm(PeerEngine):
    """Its offline interface with its defaults; CUDA graphs are on."""

    package = "nanovllm"

    @staticmethod
    def missing(model: str, dtype: str) -> str | None:
        """Return that the model must be a folder, if it is not one."""
        return None if Path(model).is_dir() else "it loads a folder, and no hub id; download it"

    @classmethod
    def problem(cls, temperature: float) -> str | None:
        """Return that it always samples, if it is not to."""
        return None if temperature > 0 else "it only samples at temperatures above 0"

    def __init__(self, task: Task) -> None:
        nano_vllm = import_module("nanovllm")
        try:
            self.version = version("nano-vllm")
        except PackageNotFoundError:  # a checkout on the path
            self.version = "unknown"
        self._sampling = nano_vllm.SamplingParams
        self._temperature = task.temperature
        self._llm = nano_vllm.LLM(task.model, enforce_eager=False, max_model_len=task.max_model_len)

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Submit all items at once; the engine batches them."""
        outputs = self._llm.generate(
            [item.prompt for item in items],
            [
                self._sampling(
                    temperature=self._temperature, max_tokens=item.num_output, ignore_eos=True
                )
                for item in items
            ],
            use_tqdm=False,
        )
        return [list(output["token_ids"]) for output in outputs]


if __name__ == "__main__":
    main(NanoVllm)
