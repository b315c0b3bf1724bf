"""Conformance of model runners."""

from __future__ import annotations

import gc
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from random import Random
from shutil import copytree
from tempfile import TemporaryDirectory
from threading import Barrier
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import RunnerContext
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.interfaces.layer import LayerSpec, ModelSize
from paged_core.interfaces.runner import (
    Runner,
    SupportsBestTokens,
    SupportsModelSize,
    SupportsTopLogits,
)
from paged_core.settings.schema import settings_class
from paged_testing.component import ComponentConformance
from paged_testing.runner_scene import (
    DenseAttention,
    FusedAttention,
    PreparingAttention,
    ThreadRank,
)

_MOST_TOKENS = 347
"""In a step of a use: a prime number, so that no two of so many uses have as many."""
_LONG = 532
"""Tokens of a long prompt."""
PROMPTS = ((1, 5, 9, 2, 6, 3, 8), (4, 4, 7), (2, 9, 1, 1, 3))
_Step = Sequence[tuple[int, int]]
"""For some of the prompts, how many tokens of each are computed."""
_FROM_2_TO_4: Sequence[_Step] = ([(1, 2), (2, 1), (0, 4)], [(1, 1), (2, 1), (0, 1)])
"""The last one of tokens at the positions 2, 1 and 4, which are no range."""


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
            values: settings besides :attr:`settings`, but for ``runner``, which is
                :attr:`component`.
        """
        return self._loaded(values)

    def _loaded(self, values: Mapping[str, Any], **parts: Any) -> Runner:
        assert "runner" not in values, "`component` names the runner and its options"
        reason = self.refusal()
        if reason:
            pytest.skip(reason)
        values = {**self.settings, **values, "runner": self._table}
        settings = settings_class(self.registry)(**values)
        made = self.build(RunnerContext(settings=settings, **parts))
        assert isinstance(made, Runner)
        made.load()
        return made

    num_uses: ClassVar[int] = 40

    def uses(self) -> Callable[[int], object]:
        """Sequences of tokens, lengths and positions of their own, computed in two steps.

        The first one is the longest, for buffers that are as large as was ever needed.
        """
        torch: Any = import_module("torch")
        runner = self.make()
        limit = min(runner.max_model_len or 4096, 4096)

        def use(number: int) -> None:
            drawn, count = Random(number), number % 4 + 1
            total = _MOST_TOKENS - number * 61 % _MOST_TOKENS
            lengths = [max(1, min((total + each) // count, limit // 2)) for each in range(count)]
            tokens = [drawn.choices(range(runner.vocab_size), k=length + 1) for length in lengths]
            starts = [
                drawn.randrange(limit - length) if number else limit - 1 - length
                for length in lengths
            ]
            attention = DenseAttention(runner.layers, count)
            self.hidden(runner, attention, [(n, t[:-1], starts[n]) for n, t in enumerate(tokens)])
            hidden = self.hidden(
                runner,
                attention,
                [(n, t[-1:], starts[n] + lengths[n]) for n, t in enumerate(tokens)],
            )
            with torch.inference_mode():
                runner.logits(hidden)
                if isinstance(runner, SupportsBestTokens):
                    runner.best_tokens(hidden)
                if isinstance(runner, SupportsTopLogits):
                    runner.top_logits(hidden, 1 + (49 + number * 31) % 50)
            self._returned.clear()

        return use

    def check_written(self) -> None:
        super().check_written()
        with suppress(pytest.skip.Exception, SettingsError):
            runner = self.make()
            alone = self.logits_alone(runner)
            most = max(float(each.abs().max()) for each in alone)  # options may make them larger
            cases = self.variant(tolerance=self.tolerance * max(1.0, most))
            cases.check_chunks(runner, alone, _chunks(0))
            hidden = self.hidden(runner, DenseAttention(runner.layers, 1), [(0, PROMPTS[0], 0)])
            cases.check_best(runner, hidden)

    def test_describes_the_model_once_it_is_loaded(self) -> None:
        runner = self.make(block_size=8)
        assert runner.layers
        for layer in runner.layers:
            assert isinstance(layer, LayerSpec)
            assert layer.num_heads % layer.num_kv_heads == 0
            assert layer.block_size == 8, f"its block_size is {layer.block_size}, the settings' 8"
        longest, size, ends = runner.max_model_len, runner.vocab_size, runner.eos_token_ids
        assert type(size) is int and size >= 10, f"vocab_size is {size!r}, no int from 10 on"
        is_length = type(longest) is int and longest > 0
        assert is_length or longest is None, f"max_model_len is {longest!r}, no int above 0"
        if isinstance(runner, SupportsModelSize) and (found := runner.model_size()) is not None:
            assert isinstance(found, ModelSize), f"model_size() returns {found!r}, no ModelSize"
            assert [*found.layers] == [*runner.layers], f"other layers than its own: {found}"
        assert isinstance(ends, frozenset), f"eos_token_ids are {ends!r}, no frozenset"
        assert all(0 <= token < size for token in ends)

    def test_layers_have_the_formats_that_settings_name(self) -> None:
        named = (("dtype", "auto"), ("kv_cache_dtype", "int8"), ("kv_cache_dtype", "fp8_e4m3"))
        for name, wanted in named:
            with suppress(PagedCoreError):
                found = {getattr(each, name) for each in self.make(**{name: wanted}).layers}
                assert wanted in ("auto", *found) and len(found) == 1, (
                    f"{name} of its layers is {found}, that of the settings {wanted!r}"
                )

    def test_reads_its_files_or_refuses_them(self) -> None:
        """All that name an end of sequences, in a copy of the checkpoint; then some are cut off,
        and weights replaced."""
        place = Path(str(self.settings.get("model", "demo")))
        place = Path(str(files("paged_backends") / "demo")) if str(place) == "demo" else place
        if not (place / "config.json").exists():
            pytest.skip("its model is no folder")
        with TemporaryDirectory() as folder:
            copytree(place, folder, dirs_exist_ok=True)
            for name, ends in (("generation_config.json", [4, 5]), ("config.json", 3)):
                path = Path(folder, name)
                known = json.loads(path.read_text()) if path.exists() else {}
                path.write_text(json.dumps({**known, "eos_token_id": ends}))
            found = self.make(model=folder).eos_token_ids
            assert len(found & {3, 4, 5}) in (0, 3), (
                f"eos_token_ids are {found}, where config.json names 3 and generation_config.json "
                "4 and 5"
            )
            for each in (path, *Path(folder).glob("*.safetensors")):
                whole = each.read_bytes()
                each.write_bytes(whole[:-9])
                with suppress(PagedCoreError):
                    self.make(model=folder)
                each.write_bytes(whole)
            usual = self.logits_of(self.make(model=folder), PROMPTS[0])
            with TemporaryDirectory() as other, suppress(PagedCoreError):
                copytree(folder, other, dirs_exist_ok=True)
                for each in (
                    *Path(folder).glob("*.safetensors"),
                    *Path(other).glob("*.safetensors"),
                ):
                    whole = each.read_bytes()
                    each.unlink()  # what is mapped stays
                    each.write_bytes(whole[: len(whole) // 2] + bytes(-(-len(whole) // 2)))
                wanted, found = (
                    self.logits_of(self.make(model=each), PROMPTS[0]) for each in (other, folder)
                )
                assert bool((found == wanted).all()) or not bool((found == usual).all()), (
                    "a runner that is loaded after its weights were replaced has the former ones"
                )

    def test_calls_attention_once_per_layer_in_order(self) -> None:
        runner = self.make()
        attention = DenseAttention(runner.layers, len(PROMPTS))
        for batch in ([(0, PROMPTS[0], 0)], [(0, (5,), 7)], [(n, (5,), n) for n in range(3)]):
            self.step(runner, attention, batch)

    def test_logits_have_a_row_per_hidden_state(self) -> None:
        torch: Any = import_module("torch")
        runner = self.make()
        rows = self.logits_of(runner, PROMPTS[0])
        assert tuple(rows.shape) == (len(PROMPTS[0]), runner.vocab_size)
        dtypes = {"float32", runner.layers[0].dtype}
        assert str(rows.dtype).removeprefix("torch.") in dtypes, f"logits are {rows.dtype}"
        of_last = self.logits_of(runner, (runner.vocab_size - 1, 0, runner.vocab_size - 2))
        assert bool(torch.isfinite(rows).all() and torch.isfinite(of_last).all())

    @pytest.mark.parametrize("kind", [DenseAttention, FusedAttention, PreparingAttention])
    def test_logits_are_the_same_in_any_chunks(self, kind: type[DenseAttention]) -> None:
        """Also where the layers of attention may be called, and prepare heads."""
        runner = self.make()
        alone = self.logits_alone(runner)
        for steps in (_FROM_2_TO_4, *map(_chunks, range(6))):
            self.check_chunks(runner, alone, steps, kind)

    def test_batches_that_are_alike_in_numbers_are_told_apart(self) -> None:
        """Steps in a row of as many tokens and sequences, from the same position to the same."""
        torch: Any = import_module("torch")
        runner = self.make()
        alone = {prompt: self.logits_of(runner, prompt) for prompt in (*PROMPTS, (1, 5, 9, 3, 8))}
        steps = ((4, 2, 3, 4), (2, 4, 3, 4), (4, 3, 2, 4), (4, 3, 2, 4), (3, 4, 2, 4))
        for number, lengths in enumerate(steps):
            prompts = [[*alone][(number + place) % 2 * 3] for place in range(len(lengths))]
            batch = [(n, p[:m], 0) for n, (p, m) in enumerate(zip(prompts, lengths, strict=True))]
            rows = self.step(runner, DenseAttention(runner.layers, len(batch)), batch)
            wanted = torch.cat([alone[p][:m] for p, m in zip(prompts, lengths, strict=True)])
            apart = _apart(rows, wanted)
            assert apart <= self.tolerance, (
                f"logits of prompts of {lengths} tokens differ by {apart} from those of each alone"
                + (f", after a step of {steps[number - 1]}" if number else "")
            )

    def test_logits_of_some_rows_are_those_of_all(self) -> None:
        torch: Any = import_module("torch")
        runner = self.make()
        attention = DenseAttention(runner.layers, 1)
        hidden = self.hidden(runner, attention, [(0, PROMPTS[0], 0)])
        with torch.inference_mode():
            whole = runner.logits(hidden)
            some = runner.logits(hidden[[4, 1]])
        apart = _apart(some, whole[[4, 1]])
        assert apart <= self.tolerance, f"logits of two rows alone differ by {apart}"
        for scale in (1, 0, 1 / 8, 8):
            self.check_best(runner, hidden * scale)
        mixed = hidden.repeat(2, 1)
        mixed[1], mixed[3], mixed[5, 0], mixed[7, -1] = torch.nan, 0, torch.inf, -torch.inf
        self.check_best(runner, mixed)

    def test_a_logit_that_is_nan_is_told_wherever_it_is(self) -> None:
        """As where weights are damaged: of one token, which may be any."""
        torch: Any = import_module("torch")
        runner = self.make()
        hidden = self.hidden(runner, DenseAttention(runner.layers, 1), [(0, PROMPTS[0], 0)])
        size = runner.vocab_size
        tensors = [each for each in _tensors_of(runner) if size in each.shape]
        with torch.inference_mode():
            kept = [each.data for each in tensors]  # code of C may know where they are
            for each in tensors:
                each.data = each.data.clone()
            for token in (0, size // 2 + 1, size - 1):
                for each in tensors:
                    each.select(each.shape.index(size), token).fill_(torch.nan)
                self.check_best(runner, hidden)
                for each, before in zip(tensors, kept, strict=True):
                    each.copy_(before)

    def test_two_runners_compute_the_same(self) -> None:
        """Also one of another dtype, which runs within their steps and shares nothing."""
        torch: Any = import_module("torch")
        prompt, another, *_ = PROMPTS
        dtype = "float32" if self.make().layers[0].dtype == "bfloat16" else "bfloat16"
        other = self.make()
        with suppress(PagedCoreError):
            other = self.make(dtype=dtype)
            assert other.layers[0].dtype == dtype, f"{other.layers[0]} where settings say {dtype}"
        wanted = self.logits_of(other, another)
        one = self.make()
        alone, attention = self.logits_of(one, prompt), DenseAttention(one.layers, 1)
        found = list[Any]()
        with ThreadPoolExecutor(1) as pool:
            run = partial(pool.submit, self.logits_of, other, another)
            attention.meanwhile = lambda: found.append(run().result())
            parts = ((prompt[:3], 0), (prompt[3:], 3))
            rows = [self.step(one, attention, [(0, *each)]) for each in parts]
        apart = _apart(torch.cat(rows), alone)
        said = (
            "another runs within its steps, in another thread than that which loaded it: keep what "
            "one knows in itself, not in its module or thread"
        )
        assert apart <= self.tolerance, f"logits differ by {apart} where {said}"
        assert all(torch.equal(each, wanted) for each in found), f"logits differ where {said}"
        assert torch.equal(alone, self.logits_of(self.make(), prompt))

    @pytest.mark.parametrize("values", [{}, {"dtype": "bfloat16"}], ids=["", "in bfloat16"])
    def test_positions_differ_up_to_the_longest_sequence(self, values: Mapping[str, Any]) -> None:
        """Queries and keys of one token at any two positions, where layers do not see to them."""
        torch: Any = import_module("torch")
        try:
            runner = self.make(**values)
        except PagedCoreError as error:
            if not values:
                raise
            pytest.skip(str(error))
        if any(each.alibi_slopes for each in runner.layers):
            pytest.skip("the scores of its attention depend on positions")
        limit = runner.max_model_len or 4096
        edges = {2**k + d for k in range(limit.bit_length()) for d in (-1, 0, 1)}
        edges |= {*range(min(limit, 1024)), *range(limit - 9, limit)}
        edges |= {Random(0).randrange(limit) for _ in range(500)}
        places = sorted(each for each in edges if 0 <= each < limit)
        seen: list[Any] = []

        def attend(layer: int, query: Any, key: Any, value: Any, /) -> Any:
            seen.extend(part.flatten(1).float().cpu() for part in (query, key))
            return torch.zeros_like(query)

        device = runner.layers[0].device
        ids, at = (torch.tensor(e, device=device) for e in ([5] * len(places), places))
        with torch.inference_mode():
            runner.forward(ids, at, attend)
        _, kinds = torch.unique(torch.cat(seen, dim=1), dim=0, return_inverse=True)
        first: dict[int, int] = {}
        for place, kind in zip(places, kinds.tolist(), strict=True):
            before = first.setdefault(kind, place)
            assert before == place, (
                f"queries and keys of a token at the positions {before} and {place} are the same "
                f"in all layers; a sequence may have {limit} tokens"
            )

    def test_a_long_prompt_and_the_last_positions(self) -> None:
        """In one step, beside others of thousands of tokens, and in several; and up to the end."""
        torch: Any = import_module("torch")
        runner = self.make()
        length = min(_LONG, runner.max_model_len or _LONG)
        prompt = [2 + place * 5 % 8 for place in range(length)]
        for first in (0, min(runner.max_model_len or 4096, 4096) - length):
            four = [(number, prompt, first) for number in range(4)]
            whole = self.hidden(runner, DenseAttention(runner.layers, 4), four)
            attention = DenseAttention(runner.layers, 1)
            cut = [
                self.hidden(runner, attention, [(0, prompt[at : at + 133], first + at)])
                for at in range(0, length, 133)
            ]
            with torch.inference_mode():
                few = [runner.logits(rows) for rows in torch.cat(cut)[3::4].split(48)]
                some = (runner.logits(rows[3::4]) for rows in whole.split(length))
                apart = max(_apart(rows, torch.cat(few)) for rows in some)
            assert apart <= self.tolerance, (
                f"logits of four prompts of {length} tokens from position {first} on, and of one, "
                f"133 at a time, differ by {apart}"
            )

    def test_ranks_share_the_heads_or_are_refused(self) -> None:
        """Two of them, which are threads here."""
        torch: Any = import_module("torch")
        whole, parts, barrier = self.make(), list[Any]([None, None]), Barrier(2, timeout=60)

        def run(rank: int) -> tuple[Runner, Any]:
            end = ThreadRank(rank, parts, barrier)
            try:
                made = self._loaded({}, rank=rank, size=2, communicator=end)
                batch = [(0, PROMPTS[0], 0)]
                self.check_best(made, self.hidden(made, DenseAttention(made.layers, 1), batch))
                return made, self.logits_of(made, PROMPTS[0])
            except BaseException:
                barrier.abort()  # the other one waits for this one
                raise

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(run, rank) for rank in range(2)]
        if any(isinstance(each.exception(), PagedCoreError) for each in running):
            return
        (one, logits), (other, others) = (each.result() for each in running)
        for layer, of_one, of_other in zip(whole.layers, one.layers, other.layers, strict=True):
            heads = [of_one.num_heads, of_other.num_heads]
            assert sum(heads) == layer.num_heads, (
                f"with a communicator of 2 ranks its layers have {heads} heads, where the model "
                f"has {layer.num_heads}: it computes the share of its rank, or refuses by an "
                "UnsupportedModel"
            )
        assert one.vocab_size == other.vocab_size == whole.vocab_size
        assert torch.equal(logits, others), "two ranks have other logits"
        apart = _apart(logits, self.logits_of(whole, PROMPTS[0]))
        assert apart <= self.tolerance, f"logits of two ranks differ by {apart} from those of one"

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
            if isinstance(runner, SupportsBestTokens):
                best = runner.best_tokens(hidden)
                found["best_tokens()"] = [each.cpu()[:, None] for each in best]
            for count in counts:
                values, tokens = runner.top_logits(hidden, count)  # type: ignore[attr-defined]
                assert values.dtype == torch.float32, f"top_logits() returns {values.dtype}"
                found[f"top_logits() of {count}"] = [tokens.cpu(), values.cpu()]
        ranked, order = logits.sort(dim=-1, descending=True, stable=True)
        finite = logits[logits.isfinite()]
        within = self.tolerance * max(1.0, float(finite.abs().max()) if len(finite) else 0.0)
        is_zero = (hidden == 0).all(-1).cpu()
        for name, (tokens, values) in found.items():
            for each in (tokens, values):
                self._keep(f"what {name} returned", each)
            count = int(name.rpartition(" ")[2]) if "of" in name else 1
            assert tokens.shape == values.shape == (len(logits), count), (
                f"{name} return {tuple(tokens.shape)} tokens and {tuple(values.shape)} logits"
            )
            assert tokens.dtype == torch.int64, f"{name} return tokens as {tokens.dtype}"
            held = logits.gather(1, tokens)
            for wanted in (ranked[:, :count], held):
                for row, (got, want) in enumerate(zip(values.float(), wanted, strict=True)):
                    near = torch.isclose(got, want, rtol=0, atol=within, equal_nan=True)
                    assert near.all(), (
                        f"{name} differ from the best of logits(): {got[~near][:3].tolist()} for "
                        f"{want[~near][:3].tolist()} in row {row} of {len(logits)}, of which the "
                        f"tokens {logits[row].isnan().nonzero()[:3, 0].tolist()} are NaN"
                    )
            assert all(len({*row}) == count for row in tokens.tolist()), f"{name} repeat a token"
            tied = is_zero & (ranked[:, 0] == ranked[:, max(count, 9) - 1])
            assert torch.equal(tokens[tied], order[tied, :count]), (
                f"{name} of equal logits are not the lowest tokens: {tokens[tied][:, :9].tolist()}"
            )

    def check_chunks(
        self,
        runner: Runner,
        alone: Sequence[Any],
        steps: Iterable[_Step],
        kind: type[DenseAttention] = DenseAttention,
    ) -> None:
        """Check that logits of the prompts do not depend on chunks and on the batch."""
        attention, done = kind(runner.layers, len(PROMPTS)), [0] * len(PROMPTS)
        for step in steps:
            rows = self.step(
                runner,
                attention,
                [(n, PROMPTS[n][done[n] : done[n] + count], done[n]) for n, count in step],
            )
            for sequence, count in step:
                start, got, rows = done[sequence], rows[:count], rows[count:]
                done[sequence] += count
                apart = _apart(got, alone[sequence][start : start + count])
                assert apart <= self.tolerance, (
                    f"logits of tokens {start} to {start + count} of sequence {sequence} differ by "
                    f"{apart} from those that it has alone, in a step of (sequence, tokens) {step}"
                )

    @cached_property
    def _returned(self) -> deque[tuple[str, Any, Any]]:
        return deque(maxlen=12)

    def _keep(self, what: str, tensor: Any) -> None:
        """Note what was returned, which later calls are to leave as it is."""
        for said, each, before in [*self._returned]:
            same = import_module("torch").allclose(each, before, 0, 0, equal_nan=True)
            assert same, f"{said} changed in later calls"
        self._returned.append((what, tensor, tensor.clone()))

    def step(
        self,
        runner: Runner,
        attention: DenseAttention,
        batch: Sequence[tuple[int, Sequence[int], int]],
    ) -> Any:
        """Return logits [T, V] of a batch: index, tokens and first position of each sequence."""
        torch: Any = import_module("torch")
        hidden = self.hidden(runner, attention, batch)
        kept = hidden.clone()
        with torch.inference_mode():
            logits = runner.logits(hidden)
        assert torch.equal(hidden, kept), "logits() changed the hidden states that it was given"
        self._keep("what logits() returned", logits)
        return logits.cpu()

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
        assert attention.called == list(range(len(runner.layers))), (
            f"attend() was called for the layers {attention.called}, in a step of {len(tokens)} "
            f"tokens: once for each of {len(runner.layers)}, in order"
        )
        self._keep("what forward() returned", hidden)
        return hidden


def _chunks(seed: int) -> Iterator[_Step]:
    """Yield steps of some of the prompts in any order, until all are computed."""
    drawn, left = Random(seed), {number: len(prompt) for number, prompt in enumerate(PROMPTS)}
    while left:
        step = list[tuple[int, int]]()
        for number in drawn.sample([*left], drawn.randint(1, len(left))):
            step.append((number, min(left[number], drawn.choice((1, 1, 2, 3, 99)))))
            left[number] -= step[-1][1]
        left = {number: count for number, count in left.items() if count}
        yield step


def _apart(one: Any, other: Any) -> float:
    return float((one - other).abs().max())


def _tensors_of(runner: Runner) -> Iterator[Any]:
    """Yield tensors of floating-point numbers that a runner holds, if only through others."""
    torch: Any = import_module("torch")
    seen, todo = set[int](), [vars(runner)]
    while todo:
        each: Any = todo.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            if each.is_floating_point() and each.layout is torch.strided:
                yield each
        else:
            todo += gc.get_referents(each)
