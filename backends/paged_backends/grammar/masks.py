"""The masks of a step: which tokens may come next for each sequence with guided decoding.

Shapes: G guided sequences, V vocabulary, W = ceil(V / 32) words.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from paged_backends.grammar.compiler import GrammarCompiler
from paged_core.errors import RequestError, error_text
from paged_core.interfaces.grammar import CANNOT_GO_ON, Matcher, Vocabulary
from paged_core.sampling_params import SamplingParams
from paged_core.structured_outputs import StructuredOutputs

_NO_TOKEN = f"{CANNOT_GO_ON}: it allows no token here, since no text of these tokens fits it"


class SequenceGrammar:
    """Follows one sequence by its tokens, so that one which was preempted goes on where it was.

    Args:
        sampling: it has structured outputs.
        tokens: prompt and output: the caller's live list.
    """

    __slots__ = (
        *("_begun", "_ended", "_num_read", "_sampling", "_tail"),
        *("_tokens", "form", "mask_W", "matcher", "problem"),
    )

    def __init__(
        self,
        form: StructuredOutputs,
        sampling: SamplingParams,
        tokens: Sequence[int],
        num_prompt_tokens: int,
    ) -> None:
        self.form = form
        self.matcher: Matcher | None = None
        self.mask_W: NDArray[np.int32] | None = None
        """Place of the token to be sampled."""
        self.problem: str | None = None
        """Why it has no mask."""
        self._sampling = sampling
        self._tokens = tokens
        self._num_read = num_prompt_tokens
        self._begun = form.after is None
        self._ended = False
        self._tail = b""
        """The last bytes of an output whose guided part has not begun."""

    def read(self, vocabulary: Vocabulary) -> Matcher | None:
        """Read the tokens that are new; return the matcher to ask, if that is to be asked.

        Raises:
            ValueError: a token may not come where it is.
        """
        assert self.matcher is not None
        tokens = self._tokens
        for position in range(self._num_read, len(tokens)):
            self._read(position, vocabulary)
            self._num_read = position + 1
        return self.matcher if self._begun and not self._ended else None

    def complete(self, vocabulary: Vocabulary) -> None:
        """Add to its mask what is not the matcher's: before the guided part, and at its end."""
        assert self.mask_W is not None
        assert self.matcher is not None
        if not self._begun:
            self.mask_W[:] = -1
            _set(self.mask_W, vocabulary.eos_token_ids, to=False)
        elif self._ended:  # what is sampled now is dropped: a step was planned ahead
            self.mask_W[:] = 0
            _set(self.mask_W, vocabulary.eos_token_ids)
        elif self._sampling.stop_token_ids and self.matcher.is_at_end:
            _set(self.mask_W, self._sampling.stop_token_ids)

    def _read(self, position: int, vocabulary: Vocabulary) -> None:
        assert self.matcher is not None
        token = self._tokens[position]
        if not self._begun:
            self._begun = self._completes_marker(position, vocabulary)
        elif self._ended or self._ends(token, vocabulary):
            self._ended = True
        else:
            self.matcher.accept(token)

    def _ends(self, token: int, vocabulary: Vocabulary) -> bool:
        assert self.matcher is not None
        ends = token in vocabulary.eos_token_ids or token in self._sampling.stop_token_ids
        return ends and self.matcher.is_at_end

    def _completes_marker(self, position: int, vocabulary: Vocabulary) -> bool:
        """Return whether the text before the guided part is whole with the token there."""
        assert self.form.after is not None
        ids = vocabulary.encode(self.form.after)  # there may be special tokens among them
        if ids == list(self._tokens[max(0, position + 1 - len(ids)) : position + 1]):
            return True
        marker = self.form.after.encode()
        text = self._tail + (vocabulary.token_bytes[self._tokens[position]] or b"")
        self._tail = text[-len(marker) :]
        return marker in text


class GrammarMasks:
    """Fills the masks of steps."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._num_words = -(-vocab_size // 32)

    def begin(self, sequences: Sequence[SequenceGrammar]) -> Thread:
        """Begin to fill the masks of these; they are there once the thread has ended."""
        thread = Thread(target=self.fill, args=(sequences,), daemon=True)
        thread.start()
        return thread

    def fill(self, sequences: Sequence[SequenceGrammar]) -> None:
        """Fill the masks of these, or say for each of them why not."""
        masks_GW = np.zeros((len(sequences), self._num_words), np.int32)
        asked: list[tuple[SequenceGrammar, Matcher]] = []
        others: list[SequenceGrammar] = []
        for each in sequences:
            try:
                each.mask_W = each.problem = None
                matcher = self._matcher(each)
            except RequestError as error:
                each.problem = f"{CANNOT_GO_ON}: {error}"
            except BaseException as error:  # noqa: BLE001 - a component's: its sequence fails
                each.problem = f"structured_outputs: {error_text(error)}"
            else:
                if matcher is None:
                    others.append(each)
                else:
                    asked.append((each, matcher))
        if asked:
            self._ask(asked, masks_GW[: len(asked)])
        for row, each in enumerate(others, len(asked)):
            each.mask_W = masks_GW[row]
        self._complete([each for each in sequences if each.problem is None])

    def _matcher(self, sequence: SequenceGrammar) -> Matcher | None:
        if sequence.matcher is None:
            sequence.matcher = self._compiler.get(sequence.form).matcher()
        return sequence.read(self._compiler.made()[0])

    def _ask(
        self, asked: Sequence[tuple[SequenceGrammar, Matcher]], masks_GW: NDArray[np.int32]
    ) -> None:
        """Have the component fill the masks of all; if it raises, of each alone."""
        backend = self._compiler.made()[1]
        for (each, _), mask_W in zip(asked, masks_GW, strict=True):
            each.mask_W = mask_W
        try:
            found = backend.fill([matcher for _, matcher in asked], masks_GW)
        except BaseException as error:  # noqa: BLE001 - the component's
            if len(asked) > 1:
                for row, one in enumerate(asked):
                    self._ask([one], masks_GW[row : row + 1])
                return
            asked[0][0].problem = f"structured_outputs: {error_text(error)}"
            return
        for row, problem in found.items():
            asked[row][0].problem = f"{CANNOT_GO_ON}: {problem}"

    def _complete(self, sequences: Iterable[SequenceGrammar]) -> None:
        for each in sequences:
            assert each.mask_W is not None
            try:
                each.complete(self._compiler.made()[0])
            except BaseException as error:  # noqa: BLE001 - the component's
                each.problem = f"structured_outputs: {error_text(error)}"
            else:
                if not each.mask_W.any():
                    each.problem = _NO_TOKEN


def _set(mask_W: NDArray[np.int32], token_ids: Iterable[int], *, to: bool = True) -> None:
    bits = mask_W.view(np.uint32)
    for token in token_ids:
        word, bit = token // 32, np.uint32(1 << token % 32)
        if word < len(bits):
            bits[word] = bits[word] | bit if to else bits[word] & ~bit
