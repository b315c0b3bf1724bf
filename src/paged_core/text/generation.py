"""One request that the engine serves: its sequences, and their text as it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paged_core.errors import RequestError
from paged_core.ids import SeqId
from paged_core.interfaces.tokenizer import Detokenizer, Tokenizer
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup, SequenceState, Status, StopCheck
from paged_core.text.outputs import (
    CompletionOutput,
    Logprob,
    OutputDelta,
    RequestMetrics,
    RequestOutput,
    TokenTexts,
    with_ranks,
)


@dataclass(slots=True, eq=False)
class OutputText:
    """Turns one sequence's tokens into text and looks for its stop strings.

    Give each generated token to :meth:`append`, which returns the stop string that it completes, if
    any; call :meth:`finish` when the sequence ends for another reason. ``text`` is then final. Of
    several stop strings the one that is complete first counts, and of those the one that starts
    first, so that the result does not depend on how the text was split into tokens.

    For streaming, :meth:`take` returns text that no later token can take back: it is whole
    characters, and does not end in what may become a stop string.
    """

    detokenizer: Detokenizer
    stop: Sequence[str] = ()
    """Non-empty strings."""
    include_stop_str_in_output: bool = field(default=False, kw_only=True)
    """Cut the text after the stop string, not before it."""
    stop_outside: Sequence[str] = field(default=(), kw_only=True)
    """As in :class:`~paged_core.sampling_params.SamplingParams`."""
    stop_tokens: Mapping[int, str] = field(default_factory=dict, kw_only=True)
    """Stop strings that are tokens of which the detokenizer shows nothing."""
    min_tokens: int = field(default=0, kw_only=True)
    """A stop string that is complete within this many tokens does not count."""
    text: str = field(default="", init=False)
    """The text so far, cut where a stop string was found."""
    num_tokens: int = field(default=0, init=False)
    """Tokens taken in; those after a stop string are not."""
    finished: bool = field(default=False, init=False)
    """A stop string was found or :meth:`finish` was called: the text is final."""
    _num_searched: int = field(default=0, init=False)
    """Leading characters of ``text`` in which no stop string ends that counts."""
    _num_taken: int = field(default=0, init=False)
    """Leading characters of ``text`` that :meth:`take` has returned."""
    _first: int | None = field(default=None, init=False)
    """Place in ``text`` from which on stop strings count; ``None``: that has not come."""

    def append(self, token_ids: Sequence[int], /) -> str | None:
        """Take new tokens, up to the one that completes a stop string; return that string.

        Raises:
            ValueError: the text is final already; nothing has changed.
        """
        if self.finished:
            raise ValueError("this output is finished and takes no more tokens")
        if not self.stop:
            self.num_tokens += len(token_ids)
            self.text += self.detokenizer.append(token_ids)
            return None
        for piece in [(token_id,) for token_id in token_ids]:
            self.num_tokens += len(piece)
            self.text += self.detokenizer.append(piece)
            found = self._search() or self._at_token(piece[0])
            if found is not None:
                return found
        return None

    def finish(self) -> str | None:
        """Take in what the detokenizer held back; return a stop string if that completes one.

        Calling it again, or after a stop string was found, changes nothing.
        """
        if self.finished:
            return None
        self.text += self.detokenizer.flush()
        found = self._search()
        self.finished = True
        return found

    def take(self) -> str:
        """Return the text that has become safe to return since the last call."""
        end = len(self.text)
        if self.stop and not self.finished:
            end -= max(_overlap(self.text, stop) for stop in self.stop)
        piece = self.text[self._num_taken : end]
        self._num_taken = end
        return piece

    def _search(self) -> str | None:
        """Look for stop strings that end in the text not searched yet; cut the text at one."""
        start_of_new, self._num_searched = self._num_searched, len(self.text)
        if self._first is None:
            if (first := self._find_first(start_of_new)) is None:
                return None
            start_of_new = self._first = first
        if self.num_tokens <= self.min_tokens:
            return None
        found: list[tuple[int, int, str]] = []
        for stop in self.stop:
            start = self.text.find(stop, max(self._first, start_of_new - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        end, start, stop = min(found)
        self.text = self.text[: end if self.include_stop_str_in_output else start]
        self.finished = True
        return stop

    def _find_first(self, start_of_new: int) -> int | None:
        """Return where what has marks around it has ended; 0: the text does not begin with it."""
        if not self.stop_outside:
            return 0
        *first, ends = self.stop_outside
        begins, bare = "".join(first), self.text.lstrip()
        if not bare.startswith(begins[: len(bare)]):
            return 0
        place = self.text.find(ends, max(0, start_of_new - len(ends) + 1))
        return place + len(ends) if place >= 0 and len(bare) >= len(begins) else None

    def _at_token(self, token_id: int) -> str | None:
        """Return the stop string that a token is although nothing of it is shown."""
        stop = self.stop_tokens.get(token_id)
        if stop is None or self._first is None or self.num_tokens <= self.min_tokens:
            return None
        self.text += self.detokenizer.flush()
        if self.include_stop_str_in_output:
            self.text += stop
        self.finished = True
        return stop


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop`` without filling it."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0


class Generation:
    """Joins a request's tokens, which the engine owns, with its text, which it does not know.

    Args:
        request: what the engine is, or will be, given.
        prompt: the text of the prompt, if it was given as text.
        tokenizer: ``None``: there is no text.
    """

    group: SequenceGroup
    """Set once the engine has accepted the request."""

    def __init__(self, request: Request, prompt: str | None, tokenizer: Tokenizer | None) -> None:
        self.request = request
        self.prompt = prompt
        self._tokenizer = tokenizer
        self._texts: dict[SeqId, OutputText] = {}
        self._token_texts: TokenTexts | None = None
        """Made when the first log-probability is named."""
        self._logprobs: dict[SeqId | None, list[dict[int, Logprob] | None]] = {}
        """Log-probabilities returned so far, by sequence; ``None``: the prompt's."""
        self._num_taken: dict[SeqId, int] = {}
        """Generated tokens that :meth:`take` has returned, by sequence."""
        self._chooses_at_end = request.sampling.chooses_at_end
        self._taken_whole: set[SeqId] = set()
        """Sequences whose end it has returned."""

    @property
    def finished(self) -> bool:
        return self.group.status is Status.FINISHED

    @property
    def stop_check(self) -> StopCheck | None:
        """The check that the engine is to call after each token; ``None``: none."""
        return self.find_stop if self.request.sampling.stop else None

    def refuse(self, error: RequestError) -> None:
        """End it with an error, since the engine does not accept the request."""
        self.group = SequenceGroup(self.request, -1, SeqId(-1))
        (sequence,), self.group.live = self.group.sequences, []
        sequence.finish_reason, sequence.error = FinishReason.ERROR, str(error)
        self.group.status = Status.FINISHED

    def find_stop(self, sequence: SequenceState) -> str | None:
        """Return the stop string that the sequence's newest token completes, if any."""
        text = self.text(sequence)
        if text is None or text.finished:
            return None
        return text.append(_output_from(sequence, text.num_tokens))

    def text(self, sequence: SequenceState) -> OutputText | None:
        """Return the sequence's text as of the last :meth:`update`; ``None``: there is none."""
        if self._tokenizer is None or not self.request.sampling.detokenize:
            return None
        if sequence.id not in self._texts:
            sampling = self.request.sampling
            self._texts[sequence.id] = OutputText(
                self._tokenizer.detokenizer(
                    self.request.prompt,
                    skip_special_tokens=sampling.skip_special_tokens,
                    shown_ids=sampling.shown_token_ids,
                ),
                sampling.stop,
                include_stop_str_in_output=sampling.include_stop_str_in_output,
                stop_outside=sampling.stop_outside,
                stop_tokens=self._stop_tokens,
                min_tokens=sampling.min_tokens,
            )
        return self._texts[sequence.id]

    @cached_property
    def _stop_tokens(self) -> dict[int, str]:
        """Stop strings that are special tokens, which are hidden, by their ids."""
        sampling, tokenizer = self.request.sampling, self._tokenizer
        found: dict[int, str] = {}
        if tokenizer is None or not sampling.skip_special_tokens:
            return found
        for each in sampling.stop:
            with suppress(RequestError):  # it cannot be encoded, so it is none
                ids = tokenizer.encode(each, add_special_tokens=False)
                if len(ids) == 1 and not tokenizer.decode(ids):
                    found[ids[0]] = each
        return found

    def update(self, sequence: SequenceState) -> OutputText | None:
        """Return the sequence's text with all of its tokens taken in."""
        text = self.text(sequence)
        if text is not None and not text.finished:
            new = _output_from(sequence, text.num_tokens)
            stopped = sequence.finish_reason is FinishReason.STOP
            at_token = stopped and not isinstance(sequence.stop_reason, str)
            if at_token and not text.include_stop_str_in_output:
                del new[-1:]  # a stop token belongs to the output, but not to its text
            text.append(new)
            if sequence.finish_reason is not None:
                text.finish()
        return text

    def take(self) -> list[OutputDelta]:
        """Return what each sequence gained since the last call; each token is decoded once.

        Empty if nothing was gained, and until the end for requests that choose among their
        sequences at the end.
        """
        if self._chooses_at_end and not self.finished:
            return []
        sequences = self.group.sequences
        return [delta for each in sequences if (delta := self._delta(each)) is not None]

    def _delta(self, sequence: SequenceState) -> OutputDelta | None:
        taken = self._num_taken.get(sequence.id, 0)
        token_ids = _output_from(sequence, taken)
        ended = sequence.finish_reason is not None
        if sequence.id in self._taken_whole or not (token_ids or ended):
            return None
        self._num_taken[sequence.id] = taken + len(token_ids)
        if ended:
            self._taken_whole.add(sequence.id)
        text = self.update(sequence)
        return OutputDelta(
            index=sequence.index,
            token_ids=token_ids,
            text=self._no_text if text is None else text.take(),
            logprobs=self._with_ranks(sequence.id, sequence.logprobs, taken),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            error=sequence.error,
        )

    def output(self) -> RequestOutput:
        """Return the outputs so far."""
        group = self.group
        return RequestOutput(
            request_id=group.id,
            prompt=self.prompt,
            prompt_token_ids=list(self.request.prompt),
            num_cached_tokens=group.num_cached,
            outputs=[self._completion(sequence) for sequence in group.sequences],
            prompt_logprobs=self._with_ranks(None, group.prompt_logprobs),
            finished=self.finished,
            metrics=RequestMetrics(
                arrival=group.arrival, first_token=group.first_token_at, finished=group.finished_at
            ),
        )

    def _completion(self, sequence: SequenceState) -> CompletionOutput:
        text = self.update(sequence)
        return CompletionOutput(
            index=sequence.index,
            text=self._no_text if text is None else text.text,
            token_ids=sequence.output,
            cumulative_logprob=sequence.cumulative_logprob,
            score=sequence.score,
            logprobs=self._with_ranks(sequence.id, sequence.logprobs),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            error=sequence.error,
            is_cut=sequence.finish_reason is FinishReason.LENGTH
            and len(sequence.output) < (self.request.sampling.max_tokens or 0),
        )

    @property
    def _no_text(self) -> str | None:
        """The stand-in for a text that nothing was decoded for."""
        return None if self.request.sampling.detokenize else ""

    def _with_ranks(
        self, of: SeqId | None, logprobs: Sequence[dict[int, float] | None] | None, start: int = 0
    ) -> Any:
        """Return log-probabilities from the token at ``start`` on; each is converted once."""
        if logprobs is None:
            return None
        known = self._logprobs.setdefault(of, [])
        if self._token_texts is None and self._tokenizer is not None:
            self._token_texts = TokenTexts(self._tokenizer)
        texts = self._token_texts if self.request.sampling.detokenize else None
        for entry in logprobs[len(known) :]:
            known.append(None if entry is None else with_ranks(entry, texts))
        return known[start : len(logprobs)]


def _output_from(sequence: SequenceState, start: int) -> list[int]:
    """Return the generated tokens from the one at ``start``."""
    return sequence.tokens[len(sequence.group.request.prompt) + start :]
