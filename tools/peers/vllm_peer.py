"""vLLM in one process; on a CPU, that is its fastest configuration there, on all cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from importlib import import_module
from pathlib import Path

from peer import Item, PeerEngine, Task, main

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class Vllm(PeerEngine):
    """vLLM's offline interface with its defaults of scheduling and prefix caching."""

    package = "vllm"
    samples = True
    cache_written = True
    """Its cache is allocated as ``torch.zeros``, which writes."""

    @staticmethod
    def environment(task: Task) -> dict[str, str]:
        """Bind its threads, and preload the libraries that its documentation recommends."""
        found = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores_to_use(task.threads))),
            "VLLM_CPU_KVCACHE_SPACE": str(task.cache_gib),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        }
        libraries = [library] if (library := find_library("tcmalloc_minimal")) else []
        openmp = Path(sys.prefix, "lib", "libiomp5.so")
        if openmp.is_file():
            libraries.append(str(openmp))
        if preloaded := ":".join(filter(None, [*libraries, os.environ.get("LD_PRELOAD")])):
            found["LD_PRELOAD"] = preloaded
        if Path(task.model).is_dir():
            found["HF_HUB_OFFLINE"] = "1"
        return found

    def __init__(self, task: Task) -> None:
        vllm = import_module("vllm")

        self.version = vllm.__version__
        self._sampling = vllm.SamplingParams
        self._temperature = task.temperature
        self._llm = vllm.LLM(
            model=task.model,
            dtype=task.dtype,
            max_model_len=task.max_model_len,
            distributed_executor_backend="uni",
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Submit all items at once; the engine batches them."""
        outputs = self._llm.generate(
            [{"prompt_token_ids": item.prompt} for item in items],
            [
                self._sampling(
                    temperature=self._temperature,
                    max_tokens=item.num_output,
                    ignore_eos=True,
                    detokenize=False,
                )
                for item in items
            ],
            use_tqdm=False,
        )
        return [list(output.outputs[0].token_ids) for output in outputs]


def cores_to_use(threads: int) -> list[int]:
    """Return the logical processors to bind threads to: one of each core first, then siblings."""
    if hasattr(os, "sched_getaffinity"):
        usable = sorted(os.sched_getaffinity(0))
    else:
        usable = list(range(os.cpu_count() or 1))
    taken: set[str] = set()
    first: list[int] = []
    others: list[int] = []
    for processor in usable:
        siblings = Path(_TOPOLOGY.format(processor))
        core = siblings.read_text() if siblings.is_file() else str(processor)
        (others if core in taken else first).append(processor)
        taken.add(core)
    return sorted((first + others)[:threads])


if __name__ == "__main__":
    main(Vllm)
