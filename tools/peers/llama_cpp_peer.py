"""llama.cpp through llama-cpp-python: one sequence per request, all in one batch."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from peer import SHORT, Item, PeerEngine, Task, main

_ERROR = 4
"""The level of llama.cpp's messages that are shown."""
_BATCH, _COMPUTED_AT_ONCE = 2048, 512
"""llama.cpp's defaults of ``n_batch`` and ``n_ubatch``, in tokens."""
_ROOM = 256
"""The context of a sequence is a multiple of this many tokens."""

Row = tuple[int, int, int, bool]
"""A token, its position, its sequence, and whether its logits are wanted."""


def converted(model: str, dtype: str) -> Path:
    """Return the expected path of the converted checkpoint; a GGUF file is one already."""
    folder = Path(model)
    if folder.suffix == ".gguf":
        return folder
    return folder.with_name(f"{folder.name}.{SHORT[dtype]}.gguf")


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


class LlamaCpp(PeerEngine):
    """Prefills packed into batches, then steps in which all sequences decode together.

    The cache of a sequence is kept for the next call, where the prompt with the longest common
    prefix reuses it; a prefix that all prompts share is computed once.
    """

    package = "llama_cpp"
    cache_written = True
    """A context fills its cache with zeros, in :meth:`prepare`."""

    @staticmethod
    def missing(model: str, dtype: str) -> str | None:
        """Name the GGUF file that is missing."""
        target = converted(model, dtype)
        if target.is_file():
            return None
        if target == Path(model):
            return f"{target} does not exist"
        return (
            f"{target} does not exist; make it with llama.cpp's `python convert_hf_to_gguf.py "
            f"{Path(model)} --outtype {SHORT[dtype]} --outfile {target}`"
        )

    def __init__(self, task: Task) -> None:
        lib: Any = import_module("llama_cpp")
        self._lib = lib
        self._numpy: Any = import_module("numpy")
        self._task = task
        self.version = lib.__version__
        self._say = lib.llama_log_callback(_show_errors)  # llama.cpp holds no reference to it
        lib.llama_log_set(self._say, ctypes.c_void_p(0))
        lib.llama_backend_init()
        path = str(converted(task.model, task.dtype))
        self._model = lib.llama_model_load_from_file(
            path.encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}; its messages are above")
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(_BATCH, 0, 1)
        self._context: Any = None
        self._sizes = (0, 0)
        self._kept: list[list[int]] = []

    def prepare(self, num_sequences: int, num_tokens: int) -> None:
        """Make a context of these sizes, unless the present one has them.

        Raises:
            RuntimeError: llama.cpp cannot make it.
        """
        sizes = (num_sequences, -(-num_tokens // _ROOM) * _ROOM)
        if sizes == self._sizes:
            return
        lib = self._lib
        if self._context is not None:
            lib.llama_free(self._context)
            self._context = None
        options = lib.llama_context_default_params()
        options.n_seq_max = num_sequences
        options.n_ctx = sizes[0] * sizes[1]
        options.n_batch, options.n_ubatch = _BATCH, _COMPUTED_AT_ONCE
        options.n_threads = options.n_threads_batch = self._task.threads
        if self._task.dtype == "float32":
            options.type_k = options.type_v = lib.GGML_TYPE_F32  # otherwise 16 bits, its default
        context = lib.llama_init_from_model(self._model, options)
        if not context:
            raise RuntimeError(
                f"llama.cpp cannot make a context of {sizes[0]} sequences of {sizes[1]} tokens; "
                "its messages are above"
            )
        self._context, self._sizes = context, sizes
        self._memory = lib.llama_get_memory(context)
        self._kept = [[] for _ in range(num_sequences)]

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Prefill all prompts, then decode them together."""
        prompts = [item.prompt for item in items]
        outputs: list[list[int]] = [[] for _ in items]
        sequences = self._assign(prompts)
        places = dict(zip(sequences, range(len(items)), strict=True))
        rows: list[Row] = []
        for sequence, start in zip(sequences, self._reuse(prompts, sequences), strict=True):
            prompt = prompts[places[sequence]]
            rows += [
                (prompt[position], position, sequence, position == len(prompt) - 1)
                for position in range(start, len(prompt))
            ]
        while rows:
            for sequence, token in self._decode(rows):
                outputs[places[sequence]].append(token)
            rows = [
                (output[-1], len(prompt) + len(output) - 1, sequence, True)
                for item, prompt, output, sequence in zip(
                    items, prompts, outputs, sequences, strict=True
                )
                if len(output) < item.num_output
            ]
        for prompt, output, sequence in zip(prompts, outputs, sequences, strict=True):
            self._kept[sequence] = prompt + output[:-1]
        return outputs

    def _assign(self, prompts: Sequence[list[int]]) -> list[int]:
        """Return a sequence for each prompt: the free one with the longest common prefix."""
        free = list(range(len(self._kept)))
        chosen = []
        for prompt in prompts:
            best = max(free, key=lambda sequence: num_common(self._kept[sequence], prompt))
            free.remove(best)
            chosen.append(best)
        return chosen

    def _reuse(self, prompts: Sequence[list[int]], sequences: Sequence[int]) -> list[int]:
        """Cut each sequence to its common prefix with the prompt; return the cached lengths.

        The last token of a prompt is always computed, because its logits are needed.
        """
        lib, memory = self._lib, self._memory
        starts = [
            min(num_common(self._kept[sequence], prompt), len(prompt) - 1)
            for sequence, prompt in zip(sequences, prompts, strict=True)
        ]
        shared = num_common(min(prompts), max(prompts)) if len(prompts) > 1 else 0
        shared = min(shared, min(map(len, prompts)) - 1)
        for sequence, start in zip(sequences, starts, strict=True):
            if not lib.llama_memory_seq_rm(memory, sequence, start, -1):
                raise RuntimeError(f"llama.cpp cannot cut sequence {sequence} to {start} tokens")
        if shared <= min(starts):
            return starts
        source = sequences[starts.index(max(starts))]
        lib.llama_memory_seq_rm(memory, source, shared, -1)
        rows: list[Row] = [
            (prompts[0][position], position, source, False)  # all prompts are the same so far
            for position in range(max(starts), shared)
        ]
        self._decode(rows)
        for sequence in sequences:
            if sequence != source:
                lib.llama_memory_seq_rm(memory, sequence, -1, -1)
                lib.llama_memory_seq_cp(memory, source, sequence, -1, -1)
        return [shared] * len(prompts)

    def _decode(self, rows: Sequence[Row]) -> list[tuple[int, int]]:
        """Compute rows in batches; return the sequence and the argmax token of each wanted row."""
        batches = (rows[first : first + _BATCH] for first in range(0, len(rows), _BATCH))
        return [found for batch in batches for found in self._compute(batch)]

    def _compute(self, rows: Sequence[Row]) -> list[tuple[int, int]]:
        batch = self._batch
        for place, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[place] = token
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = sequence
            batch.logits[place] = wanted
        batch.n_tokens = len(rows)
        status = self._lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode ended with status {status}")
        return [
            (sequence, self._best(place))
            for place, (_, _, sequence, wanted) in enumerate(rows)
            if wanted
        ]

    def _best(self, place: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, place)
        return int(self._numpy.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())


def _show_errors(level: int, text: bytes, _: object) -> None:
    if level == _ERROR:
        sys.stderr.write(text.decode(errors="replace"))


if __name__ == "__main__":
    main(LlamaCpp)
