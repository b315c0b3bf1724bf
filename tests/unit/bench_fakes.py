"""A model without weights, and engines that run it, with the interfaces of OpenVINO and llama.cpp.

They refuse what the real ones refuse: arguments of another type, positions with gaps, requests that
do not fit. What a sequence generates follows from all of its tokens, so that tokens which were
dropped, mixed up or left over change it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from paged_plugins.bench.turns import full_prompt
from paged_plugins.bench.workloads import Item

VOCAB_SIZE = 97


def next_token(tokens: Sequence[int]) -> int:
    """Return what follows ``tokens``."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB_SIZE


def generated(prompt: Sequence[int], num_output: int) -> list[int]:
    """Return what a prompt is completed with."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_output:
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def expected(items: Sequence[Item]) -> list[list[int]]:
    """Return what every engine must generate for a workload."""
    outputs: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        outputs[place] = generated(full_prompt(items, place, outputs), item.num_output)
    return list(outputs.values())


def _need(value: object, kind: type) -> None:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")


# ---------------------------------------------------------------------- OpenVINO


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
            result = ModuleType("result")
            tokens = generated(tensor.data[0].tolist(), config.max_new_tokens)
            vars(result)["m_generation_ids"] = [tokens]
            results.append(result)
        return results


def openvino_modules() -> dict[str, ModuleType]:
    """Return what ``import`` must find."""
    genai, openvino = ModuleType("openvino_genai"), ModuleType("openvino")
    for kind in (SchedulerConfig, GenerationConfig, ContinuousBatchingPipeline):
        setattr(genai, kind.__name__, kind)
    vars(genai)["get_version"] = lambda: "2026.4.1.0-2889-abc"
    vars(openvino)["Tensor"] = Tensor
    return {"openvino_genai": genai, "openvino": openvino}


# ---------------------------------------------------------------------- llama.cpp


class ContextParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")),
        *((name, ctypes.c_int32) for name in ("n_threads", "n_threads_batch")),
        *((name, ctypes.c_int) for name in ("type_k", "type_v")),
    )


class Batch:
    """Rows in arrays of C, which refuse what is no whole number and what lies outside."""

    def __init__(self, size: int) -> None:
        numbers = ctypes.c_int32 * size
        self.token, self.pos, self.n_seq_id = numbers(), numbers(), numbers()
        self.seq_id = ((ctypes.c_int32 * 1) * size)()
        self.logits = (ctypes.c_int8 * size)()
        self.n_tokens = 0


class LlamaLibrary(ModuleType):
    """The functions that our peer calls, over sequences of tokens instead of keys and values."""

    __version__ = "0.3.36"
    GGML_TYPE_F32 = 0
    llama_log_callback = staticmethod(
        ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    )

    def __init__(self) -> None:
        super().__init__("llama_cpp")
        self.contexts: list[dict[str, int]] = []
        self.batches: list[list[tuple[int, int, int]]] = []
        self.loads = True
        self._sequences: list[list[int]] = []
        self._logits: dict[int, Any] = {}

    def llama_log_set(self, callback: Any, _: ctypes.c_void_p) -> None:
        callback(1, b"chatter\n", None)
        callback(4, b"a real problem\n", None)

    def llama_backend_init(self) -> None:
        return None

    def llama_model_default_params(self) -> str:
        return "defaults"

    def llama_model_load_from_file(self, path: bytes, params: str) -> str | None:
        _need(path, bytes)
        assert params == "defaults"
        return "model" if self.loads and Path(path.decode()).is_file() else None

    def llama_model_get_vocab(self, model: str) -> str:
        assert model == "model"
        return "vocab"

    def llama_vocab_n_tokens(self, vocab: str) -> int:
        assert vocab == "vocab"
        return VOCAB_SIZE

    def llama_context_default_params(self) -> ContextParams:
        return ContextParams(n_ctx=512, n_batch=2048, n_ubatch=512, n_seq_max=1, type_k=1, type_v=1)

    def llama_init_from_model(self, model: str, params: ContextParams) -> str | None:
        assert model == "model"
        assert not self._sequences, "the context before was not freed"
        if params.n_seq_max > 256:
            return None
        self.contexts.append({name: getattr(params, name) for name, *_ in params._fields_})
        self._sequences = [[] for _ in range(params.n_seq_max)]
        return "context"

    def llama_free(self, context: str) -> None:
        assert context == "context"
        self._sequences = []

    def llama_get_memory(self, context: str) -> str:
        assert context == "context"
        return "memory"

    def llama_batch_init(self, num_tokens: int, embedding: int, num_sequences: int) -> Batch:
        assert (embedding, num_sequences) == (0, 1)
        return Batch(num_tokens)

    def llama_memory_seq_rm(self, memory: str, sequence: int, start: int, end: int) -> bool:
        assert memory == "memory"
        assert end == -1
        del self._sequences[sequence][max(start, 0) :]
        return True

    def llama_memory_seq_cp(
        self, memory: str, source: int, target: int, start: int, end: int
    ) -> None:
        assert memory == "memory"
        assert (start, end) == (-1, -1)
        assert not self._sequences[target]
        self._sequences[target] = list(self._sequences[source])

    def llama_decode(self, context: str, batch: Batch) -> int:
        assert context == "context"
        limit = self.contexts[-1]["n_ctx"] // self.contexts[-1]["n_seq_max"]
        rows = [
            (batch.token[row], batch.pos[row], batch.seq_id[row][0])
            for row in range(batch.n_tokens)
        ]
        self._logits = {}
        for row, (token, position, sequence) in enumerate(rows):
            tokens = self._sequences[sequence]
            if position != len(tokens) or position >= limit or batch.n_seq_id[row] != 1:
                return 1
            tokens.append(token)
            if batch.logits[row]:
                self._logits[row] = (ctypes.c_float * VOCAB_SIZE)()
                self._logits[row][next_token(tokens)] = 1.0
        self.batches.append(rows)
        return 0

    def llama_get_logits_ith(self, context: str, row: int) -> Any:
        assert context == "context"
        return ctypes.cast(self._logits[row], ctypes.POINTER(ctypes.c_float))
