"""The text that ``bench quality`` measures on, cut into windows of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from paged_core.errors import SettingsError
from paged_core.interfaces.tokenizer import Tokenizer
from paged_plugins.input_file import read_file

_MAX_BYTES = 16 << 20


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
