"""Conformance of model runners, tested with attention that has no paged cache.

Tensors are torch's, which is imported when the first one is made: the kit does not import it.

Shapes: H query heads, K key/value heads, D head_dim, Q new and L all tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import combinations, permutations
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import RunnerContext
from paged_core.errors import PagedCoreError
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import Runner, SupportsBestTokens, SupportsTopLogits
from paged_core.settings.schema import settings_class
from paged_testing.component import ComponentConformance


class DenseAttention:
    """Keeps the keys and values of sequences in lists, and attends to all of them."""

    def __init__(self, layers: Sequence[LayerSpec], num_sequences: int) -> None:
        self._torch: Any = import_module("torch")
        self.layers = layers
        self.called: list[int] = []
        """The layers that attended in this step, in order."""
        self._kept: list[list[Any]] = [[None] * num_sequences for _ in layers]
        self._batch: Sequence[tuple[int, int]] = ()

    def begin(self, batch: Sequence[tuple[int, int]]) -> None:
        """Start a step; ``batch`` holds the index and the number of new tokens of each sequence."""
        self._batch, self.called = batch, []

    def __call__(self, layer: int, query: Any, key: Any, value: Any, /) -> Any:
        """Attend in ``layer``.

        Raises:
            AssertionError: a shape or dtype differs from the layer's description.
        """
        spec = self.layers[layer]
        total = sum(num_tokens for _, num_tokens in self._batch)
        assert tuple(query.shape) == (total, spec.num_heads, spec.head_dim), query.shape
        for part in (key, value):
            assert tuple(part.shape) == (total, spec.num_kv_heads, spec.head_dim), part.shape
            assert str(part.dtype).removeprefix("torch.") == spec.dtype, part.dtype
        self.called.append(layer)
        results, start = [], 0
        for sequence, num_tokens in self._batch:
            rows = slice(start, start + num_tokens)
            start += num_tokens
            new = self._torch.stack([key[rows], value[rows]])
            before = self._kept[layer][sequence]
            seen = new if before is None else self._torch.cat([before, new], dim=1)
            self._kept[layer][sequence] = seen.clone()
            results.append(self._attend(spec, query[rows], seen))
        return self._torch.cat(results).to(query.dtype)

    def _attend(self, spec: LayerSpec, query: Any, seen: Any) -> Any:
        """Return [Q, H, D] for the last Q tokens of ``seen``, keys and values [2, L, K, D]."""
        torch = self._torch
        keys, values = seen.float().repeat_interleave(spec.num_heads // spec.num_kv_heads, dim=2)
        scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        length = keys.shape[0]
        distance = torch.arange(length - len(query), length)[:, None] - torch.arange(length)
        if spec.alibi_slopes is not None:
            scores = scores - torch.tensor(spec.alibi_slopes)[:, None, None] * distance
        hidden = distance < 0
        if spec.sliding_window is not None:
            hidden |= distance >= spec.sliding_window
        scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
        sinks = torch.tensor(spec.sinks or [-torch.inf] * spec.num_heads, device=scores.device)
        sinks = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return torch.einsum("hqk,khd->qhd", weights, values)


PROMPTS = ((1, 5, 9, 2, 6, 3, 8), (4, 4, 7), (2, 9, 1, 1, 3))


class RunnerConformance(ComponentConformance):
    """Subclass it for a runner, and name the model to test it with::

        class TestMyRunner(RunnerConformance):
            component = "my_runner"
            settings = {"model": "demo", "dtype": "float32"}

    The model needs a vocabulary of at least ten tokens. Whether the logits are right is left to
    other tests; here they must not depend on chunks and on the batch.
    """

    slot: ClassVar[str] = "runner"
    settings: ClassVar[Mapping[str, Any]] = {"model": "demo", "dtype": "float32"}
    """Settings of the engine, such as the model."""
    tolerance: ClassVar[float] = 1e-4
    """Largest difference of logits computed in different batches."""
    max_seconds: ClassVar[float] = 200
    """Seconds of a test: it loads a model."""

    def make(self, **values: Any) -> Runner:
        """A fresh runner, loaded; the test is skipped where it is not available.

        Args:
            values: settings besides :attr:`settings`.
        """
        reason = self.refusal()
        if reason:
            pytest.skip(reason)
        values = {**self.settings, **values, "runner": self._table}
        settings = settings_class(self.registry)(**values)
        made = self.build(RunnerContext(settings=settings))
        assert isinstance(made, Runner)
        made.load()
        return made

    num_uses: ClassVar[int] = 40

    def uses(self) -> Callable[[int], object]:
        """A sequence of tokens of its own, computed in two steps."""
        runner = self.make()

        def use(number: int) -> None:
            attention, tokens = DenseAttention(runner.layers, 1), [1, *map(int, f"{number:06}")]
            self.step(runner, attention, [(0, tokens[:4], 0)])
            self.step(runner, attention, [(0, tokens[4:], 4)])

        return use

    def test_describes_the_model_once_it_is_loaded(self) -> None:
        runner = self.make(block_size=8)
        assert runner.layers
        for layer in runner.layers:
            assert isinstance(layer, LayerSpec)
            assert layer.num_heads % layer.num_kv_heads == 0
            assert layer.block_size == 8, f"its block_size is {layer.block_size}, the settings' 8"
        assert runner.vocab_size >= 10
        assert runner.max_model_len is None or runner.max_model_len > 0
        assert all(0 <= token < runner.vocab_size for token in runner.eos_token_ids)

    def test_calls_attention_once_per_layer_in_order(self) -> None:
        runner = self.make()
        attention = DenseAttention(runner.layers, 1)
        self.step(runner, attention, [(0, PROMPTS[0], 0)])
        assert attention.called == list(range(len(runner.layers)))

    def test_logits_have_a_row_per_hidden_state(self) -> None:
        torch: Any = import_module("torch")
        runner = self.make()
        rows = self.logits_of(runner, PROMPTS[0])
        assert tuple(rows.shape) == (len(PROMPTS[0]), runner.vocab_size)
        dtypes = {"float32", runner.layers[0].dtype}
        assert str(rows.dtype).removeprefix("torch.") in dtypes, f"logits are {rows.dtype}"
        assert bool(torch.isfinite(rows).all())

    @pytest.mark.parametrize("cuts", [[], [1], [3, 1], [2, 2, 2], [1, 1, 1, 1]], ids=str)
    def test_logits_are_the_same_in_written_chunks(self, cuts: list[int]) -> None:
        runner = self.make()
        alone = self.logits_alone(runner)
        for order in permutations(range(len(PROMPTS))):
            self.check_chunks(runner, alone, cuts, order)

    def test_a_batch_leaves_nothing_behind(self) -> None:
        """The logits of a prompt are the same again after others."""
        torch: Any = import_module("torch")
        runner = self.make()
        for first, again in zip(self.logits_alone(runner), self.logits_alone(runner), strict=True):
            assert torch.equal(first, again), "the second time it computes other logits"

    def test_logits_of_some_rows_are_those_of_all(self) -> None:
        torch: Any = import_module("torch")
        runner = self.make()
        attention = DenseAttention(runner.layers, 1)
        hidden = self.hidden(runner, attention, [(0, PROMPTS[0], 0)])
        with torch.inference_mode():
            whole = runner.logits(hidden)
            some = runner.logits(hidden[[4, 1]])
        apart = float(torch.max(torch.abs(some - whole[[4, 1]])))
        assert apart <= self.tolerance, f"logits of two rows alone differ by {apart}"
        for scale in (1, 0, 1 / 8, 8):
            self.check_best(runner, hidden * scale)

    def test_different_tokens_have_different_logits(self) -> None:
        """Compare the same prompt at other positions, too, where a token was put before it."""
        torch: Any = import_module("torch")
        runner = self.make()
        prompts = ((1, 5, 9), (1, 5, 8), (2, 5, 9), (5, 1, 9))
        last = {prompt: self.logits_of(runner, prompt)[-1] for prompt in prompts}
        for one, other in combinations(last, 2):
            same = torch.equal(last[one], last[other])
            assert not same, f"the prompts {one} and {other} have the same logits"

    def test_a_long_prompt_and_the_last_positions(self) -> None:
        """In one step and in several: of more tokens than a decode has, and up to the end."""
        torch: Any = import_module("torch")
        runner = self.make()
        length = min(70, runner.max_model_len or 70)
        prompt = [2 + place * 5 % 8 for place in range(length)]
        for first in (0, min(runner.max_model_len or 4096, 4096) - length):
            whole = self.step(runner, DenseAttention(runner.layers, 1), [(0, prompt, first)])
            attention = DenseAttention(runner.layers, 1)
            cut = [
                self.step(runner, attention, [(0, prompt[at : at + 16], first + at)])
                for at in range(0, length, 16)
            ]
            apart = float(torch.max(torch.abs(whole - torch.cat(cut))))
            assert apart <= self.tolerance, (
                f"logits of {length} tokens from position {first} on, and of 16 of them at a time, "
                f"differ by {apart}"
            )

    def test_two_runners_compute_the_same(self) -> None:
        """Also in turns with one of another dtype, with which they share nothing."""
        torch: Any = import_module("torch")
        one, (prompt, another, *_) = self.make(), PROMPTS
        alone, attention = self.logits_of(one, prompt), DenseAttention(one.layers, 1)
        rows = [self.step(one, attention, [(0, prompt[:3], 0)])]
        with suppress(PagedCoreError):
            dtype = "float32" if one.layers[0].dtype == "bfloat16" else "bfloat16"
            other = self.make(dtype=dtype)
            assert other.layers[0].dtype == dtype, f"{other.layers[0]} where settings say {dtype}"
            self.logits_of(other, another)
        rows.append(self.step(one, attention, [(0, prompt[3:], 3)]))
        apart = float(torch.max(torch.abs(torch.cat(rows) - alone)))
        assert apart <= self.tolerance, (
            f"logits differ by {apart} after another runner was loaded: keep what one knows in "
            "itself, not in its class or module"
        )
        assert torch.equal(alone, self.logits_of(self.make(), prompt))

    # ------------------------------------------------------------------ what is checked

    def logits_of(self, runner: Runner, prompt: Sequence[int]) -> Any:
        """The logits of a prompt, computed at once and alone."""
        return self.step(runner, DenseAttention(runner.layers, 1), [(0, prompt, 0)])

    def logits_alone(self, runner: Runner) -> list[Any]:
        """Logits of each of the prompts."""
        return [self.logits_of(runner, prompt) for prompt in PROMPTS]

    def check_best(self, runner: Runner, hidden: Any) -> None:
        """Check best tokens and top logits, if the runner has them, by the logits of these rows."""
        torch: Any = import_module("torch")
        counts = (1, 9, runner.vocab_size) if isinstance(runner, SupportsTopLogits) else ()
        found = {}
        with torch.inference_mode():
            logits = runner.logits(hidden).cpu().float()
            if not bool(torch.isfinite(logits).all()):
                return
            if isinstance(runner, SupportsBestTokens):
                best = runner.best_tokens(hidden)
                found["best_tokens()"] = [each.cpu()[:, None] for each in best]
            for count in counts:
                values, tokens = runner.top_logits(hidden, count)  # type: ignore[attr-defined]
                found[f"top_logits() of {count}"] = [tokens.cpu(), values.cpu()]
        ranked, order = logits.sort(dim=-1, descending=True, stable=True)
        within = self.tolerance * max(1.0, float(logits.abs().max()))
        is_zero = (hidden == 0).all(-1).cpu()
        for name, (tokens, values) in found.items():
            count, held = tokens.shape[1], logits.gather(1, tokens)
            for wanted in (ranked[:, :count], held):
                apart = float((values - wanted).abs().max())
                assert apart <= within, f"{name} differ by {apart} from the highest of logits()"
            assert all(len({*row}) == count for row in tokens.tolist()), f"{name} repeat a token"
            tied = is_zero & (ranked[:, 0] == ranked[:, max(count, 9) - 1])
            assert torch.equal(tokens[tied], order[tied, :count]), (
                f"{name} of equal logits are not the lowest tokens: {tokens[tied][:, :9].tolist()}"
            )

    def check_chunks(
        self, runner: Runner, alone: Sequence[Any], cuts: Sequence[int], order: Sequence[int]
    ) -> None:
        """Check that logits do not depend on chunks and on the batch."""
        torch: Any = import_module("torch")
        attention = DenseAttention(runner.layers, len(PROMPTS))
        done = [0] * len(PROMPTS)
        for cut in [*cuts, 99]:
            batch = []
            for sequence in order:
                start, prompt = done[sequence], PROMPTS[sequence]
                if start < len(prompt):
                    batch.append((sequence, prompt[start : start + cut], start))
            if not batch:
                break
            rows = self.step(runner, attention, batch)
            for sequence, chunk, start in batch:
                wanted = alone[sequence][start : start + len(chunk)]
                got, rows = rows[: len(chunk)], rows[len(chunk) :]
                apart = float(torch.max(torch.abs(got - wanted)))
                assert apart <= self.tolerance, (
                    f"logits of tokens {start} to {start + len(chunk)} of sequence {sequence} "
                    f"differ by {apart} from those that it has alone"
                )
                done[sequence] += len(chunk)

    def step(
        self,
        runner: Runner,
        attention: DenseAttention,
        batch: Sequence[tuple[int, Sequence[int], int]],
    ) -> Any:
        """Return logits [T, V] of a batch: index, tokens and first position of each sequence."""
        torch: Any = import_module("torch")
        hidden = self.hidden(runner, attention, batch)
        with torch.inference_mode():
            return runner.logits(hidden).cpu()

    def hidden(
        self,
        runner: Runner,
        attention: DenseAttention,
        batch: Sequence[tuple[int, Sequence[int], int]],
    ) -> Any:
        """Return the hidden states [T, hidden] of a batch, as for :meth:`step`."""
        torch: Any = import_module("torch")
        device = runner.layers[0].device
        attention.begin([(sequence, len(tokens)) for sequence, tokens, _ in batch])
        tokens = [token for _, chunk, _ in batch for token in chunk]
        positions = [start + i for _, chunk, start in batch for i in range(len(chunk))]
        ids, places = (torch.tensor(e, device=device) for e in (tokens, positions))
        with torch.inference_mode():
            hidden = runner.forward(ids, places, attention)
        assert (ids.tolist(), places.tolist()) == (tokens, positions), (
            "forward() changed the tokens or positions that it was given"
        )
        assert len(hidden) == len(tokens), "a hidden state for each token is expected"
        return hidden
