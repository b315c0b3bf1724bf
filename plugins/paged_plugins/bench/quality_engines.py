"""The engines that ``bench quality`` compares side by side, and the text that it cuts for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from paged_core.cli.options import SettingsArgs
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.llm import LLM
from paged_core.settings.documents import DocumentError, parse_yaml
from paged_core.settings.layers import Entry, Layer, Origin
from paged_core.settings.schema import EngineSettings, Resolved
from paged_plugins.files import read_file

_EXAMPLE = "--variant 'torch={attention: torch}'"


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings that differ from those of the command, under a name."""

    name: str
    changes: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``NAME={KEY: VALUE, ...}``.

        Raises:
            SettingsError: the text is not written so.
        """
        name, equals, rest = text.partition("=")
        changes = parse_changes(rest, f"--variant {text:.80}")
        if not (name.strip() and equals and changes):
            raise SettingsError(
                f"--variant {text:.80}: write NAME={{KEY: VALUE}}, as in {_EXAMPLE}"
            )
        return cls(name.strip(), changes)

    def resolve(self, given: SettingsArgs, below: Layer = ()) -> Resolved:
        """Return the settings of the command with the changes on top, and ``below`` beneath them.

        Raises:
            SettingsError: a setting is wrong.
        """
        return given.resolve(below, **self.changes)


def parse_changes(text: str, what: str) -> dict[str, Any]:
    """Return settings written as ``{KEY: VALUE, ...}``; none, if the text is no such table.

    Args:
        what: the option and its value, for an error.

    Raises:
        SettingsError: the text is not YAML.
    """
    try:
        values, _ = parse_yaml(text)
    except DocumentError as error:
        raise SettingsError(f"{what}: {error}") from error
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def parse_variants(texts: Sequence[str], taken: Collection[str]) -> list[Variant]:
    """Return the variants of a command line.

    Args:
        taken: names that tables have for something else.

    Raises:
        SettingsError: a text is not written so, or its name is taken.
    """
    found: dict[str, Variant] = {}
    for text in texts:
        variant = Variant.parse(text)
        if variant.name in found or variant.name in taken:
            raise SettingsError(
                f"--variant {text:.80}: {variant.name!r} is another engine's name; choose one that "
                "is not in the table yet"
            )
        found[variant.name] = variant
    return list(found.values())


SIDE_BY_SIDE = 8
"""Windows that an engine serves at once, at most."""
_WINDOW = 512
_CHUNK = 64
"""Tokens of a prompt that a step computes: later chunks read the cache."""
_CHUNK_OPTION = "long_prefill_token_threshold"
_ORIGIN = Origin("default", "bench quality")
_MAX_BYTES = 16 << 20


class QualityEngines:
    """A base and its variants, each with a cache of a few windows; all close with this.

    They stay resident together, so that a window passes through all of them before the next, and
    the logits of a whole text are never held, neither in memory nor in files.

    Args:
        window: tokens of a sequence; ``None``: 512, or the model's length if that is less.

    Raises:
        SettingsError: a setting is wrong, the engine does not show its logits, or its sequences
            are shorter than a window.
        CheckpointError, UnsupportedModel, PluginError: the base cannot serve the model.
    """

    def __init__(self, given: SettingsArgs, base: Variant, window: int | None) -> None:
        self._given = given
        self._max_model_len: int | None = None
        self._stack = ExitStack()
        self.window = window or _WINDOW
        self.others: dict[str, LLM] = {}
        self.left_out: dict[str, str] = {}
        """Why variants cannot serve the model here, by name."""
        with ExitStack() as on_error:
            self.base = self._start(base)
            on_error.callback(self.base.close)
            longest = self.base.engine.capacity.max_model_len
            if window is not None and window > longest:
                raise SettingsError(
                    f"--window {window} is more than the {longest} tokens of a sequence; give less"
                )
            self._stack = on_error.pop_all()
        self.window = self._max_model_len = min(self.window, longest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def load(self, variant: Variant, text: str) -> None:
        """Start another engine, which is to take tokens of ``text`` for the same as the base.

        Raises:
            SettingsError: it cannot serve the model, or its tokens are others; nothing was started.
        """
        try:
            llm = self._start(variant)
            with ExitStack() as on_error:
                on_error.callback(llm.close)
                _check_same_tokens(self.base, llm, text)
                self._stack.push(on_error.pop_all())
        except PagedCoreError as error:
            raise SettingsError(f"--variant {variant.name}: {error}") from error
        self.others[variant.name] = llm

    def load_if_served(self, variant: Variant, text: str) -> None:
        """As :meth:`load`, but keep the reason where it cannot."""
        try:
            self.load(variant, text)
        except SettingsError as error:
            self.left_out[variant.name] = str(error.__cause__)

    def _start(self, variant: Variant) -> LLM:
        below = self._below(variant.resolve(self._given).settings)
        resolved = variant.resolve(self._given, below)
        llm = LLM.from_settings(resolved.settings, resolved.registry)
        if reason := _unavailable_reason(llm):
            llm.close()
            raise SettingsError(reason)
        return llm

    def _below(self, settings: EngineSettings) -> Layer:
        """Return settings that all those of the command override."""
        values: dict[tuple[str, ...], object] = {("dtype",): "bfloat16"}
        if self._max_model_len is not None:
            values["max_model_len",] = self._max_model_len
        if settings.kv_cache_memory is None:
            blocks = SIDE_BY_SIDE * (-(-self.window // settings.block_size) + 1)
            values["num_blocks",] = blocks
        if _CHUNK_OPTION in type(settings.scheduler).model_fields:
            values["scheduler", _CHUNK_OPTION] = _CHUNK
        return [Entry(path, value, _ORIGIN) for path, value in values.items()]


def _unavailable_reason(llm: LLM) -> str | None:
    """Say why an engine cannot be measured, or return ``None``."""
    executor = llm.settings.executor.name
    if llm.engine.capacity.remote:
        return (
            f"executor {executor!r} runs the model in another process, where its logits stay; use "
            "--executor local"
        )
    if llm.tokenizer is None:
        return (
            f"model {llm.settings.model!r} has no tokenizer with executor {executor!r}, and text "
            "needs one; name one with --tokenizer, or use --executor local"
        )
    return None


def _check_same_tokens(base: LLM, other: LLM, text: str) -> None:
    """Check that two engines call a text's tokens by the same ids; SettingsError if not."""
    ours, theirs = (llm.engine.capacity.vocab_size for llm in (base, other))
    if ours != theirs:
        raise SettingsError(
            f"its vocabulary has {theirs} tokens and that of the base {ours}; compare models of "
            "one vocabulary"
        )
    if other.settings.model != base.settings.model:
        first, second = (llm.get_tokenizer().encode(text) for llm in (base, other))
        if first != second:
            raise SettingsError(
                "its tokenizer turns the text into other tokens than that of the base; name one "
                "for both with --tokenizer"
            )


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive tokens of a text, after the special tokens that a prompt begins with."""

    tokens: Sequence[int]
    num_prefilled: int
    """Leading tokens that are sent as the prompt, at least one; the others are decoded."""

    @property
    def prompt(self) -> list[int]:
        """The tokens to prefill."""
        return list(self.tokens[: self.num_prefilled])

    @property
    def decoded(self) -> list[int]:
        """The tokens to decode, at least one."""
        return list(self.tokens[self.num_prefilled :])


def quality_text(path: Path | None) -> str:
    """Return the text of a file; ``None``: short documents of what the demo model was trained on.

    Raises:
        SettingsError: the file cannot be read, or is larger than 16 MiB.
    """
    if path is not None:
        return read_file(path, _MAX_BYTES)
    return files(__package__).joinpath("quality_text.txt").read_text("utf-8")


def windows_of(
    text: str, tokenizer: Tokenizer, *, length: int, num_decoded: int | None, limit: int
) -> list[Window]:
    """Cut the first ``limit`` tokens of a text into windows of ``length`` tokens.

    What is left at the end is dropped; a text shorter than a window is one.

    Args:
        num_decoded: tokens at the end of each window that are decoded; ``None``: a quarter.

    Raises:
        SettingsError: the text has too few tokens, or no token of a window would be prefilled.
    """
    body = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.encode(text)
    start = whole[: len(whole) - len(body)] if whole[len(whole) - len(body) :] == body else []
    body = body[:limit]
    length = min(length, len(start) + len(body))
    step = length - len(start)
    if step < 2:
        raise SettingsError(
            f"--text, --limit and --window leave {len(body)} tokens in windows of {length}, too "
            "few to predict one from another; give more"
        )
    count = max(1, length // 4) if num_decoded is None else num_decoded
    if count >= length:
        raise SettingsError(
            f"--decode {count} leaves no token of a window of {length} to prefill; give less"
        )
    ends = range(step, len(body) + 1, step)
    return [Window([*start, *body[end - step : end]], length - count) for end in ends]
