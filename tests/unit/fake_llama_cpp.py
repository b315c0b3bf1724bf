"""A fake of llama-cpp-python: the functions that our peer calls.

They keep tokens instead of keys and values, and refuse arguments of another type, positions with
gaps, and requests that do not fit.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType
from typing import Any

from unit.made_up_model import VOCAB_SIZE, next_token


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


def _called_with(expected: tuple[str, ...], answer: Any) -> Any:
    """Return a method that gives an answer, and must be called with these arguments."""

    def call(_: LlamaLibrary, *given: str) -> Any:
        assert given == expected
        return answer

    return call


class LlamaLibrary(ModuleType):
    """The module, its one model and its one context."""

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

    llama_backend_init = _called_with((), None)
    llama_model_default_params = _called_with((), "defaults")
    llama_model_get_vocab = _called_with(("model",), "vocab")
    llama_vocab_n_tokens = _called_with(("vocab",), VOCAB_SIZE)
    llama_get_memory = _called_with(("context",), "memory")

    def llama_model_load_from_file(self, path: bytes, params: str) -> str | None:
        assert params == "defaults"
        return "model" if self.loads and Path(path.decode()).is_file() else None

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
