"""Facts about a loaded model, which all runners keep."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import one_line
from paged_backends.checkpoint.quantized.formats import activation_keys
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import SettingsError, UnsupportedModel
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import Runner
from paged_core.log import get_logger

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""The dtypes of queries, keys and values."""

_log = get_logger()


def check_whole(runner: str, context: RunnerContext) -> None:
    """Refuse to be one of several ranks, on behalf of a runner that computes whole models.

    Raises:
        UnsupportedModel: there are others.
    """
    if context.communicator is not None:
        raise UnsupportedModel(
            f"runner {runner!r} computes whole models, and {context.size} ranks shall share one; "
            "compute with one rank",
            ", or set runner to native",
        )


class LoadedRunner(Runner, ABC):
    """A runner whose ``load`` sets what is known of its model, and calls :meth:`_log_loaded`."""

    def __init__(self, context: RunnerContext) -> None:
        self._context, self._settings = context, context.settings
        self._layers: list[LayerSpec] = []
        self._vocab_size = 0
        self._max_model_len: int | None = None
        self._eos_token_ids: frozenset[int] = frozenset()

    @property
    def layers(self) -> Sequence[LayerSpec]:
        """The attention layers, in order."""
        return self._layers

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self._vocab_size

    @property
    def max_model_len(self) -> int | None:
        """Positions according to the configuration, or fewer where a model is served so far."""
        return self._max_model_len

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """All that the checkpoint's files name, within the vocabulary."""
        return self._eos_token_ids

    def _end_with(self, tokens: frozenset[int]) -> None:
        """Take the tokens that end a sequence, but those that cannot be sampled."""
        beyond = sorted(token for token in tokens if token >= self._vocab_size)
        if beyond and self._context.rank == 0:
            _log.warning(
                "end_tokens_beyond_vocabulary",
                token_ids=beyond[:10],
                vocab_size=self._vocab_size,
                remedy="correct eos_token_id in config.json or generation_config.json",
            )
        self._eos_token_ids = tokens.difference(beyond)

    def _limit_length(self, limit: int | None, reason: str) -> None:
        """Serve no more than so many positions.

        Raises:
            SettingsError: more are asked for, though not more than the model has.
        """
        length, asked = self._max_model_len, self._settings.max_model_len
        if limit is not None and (length is None or limit < length):
            if asked is not None and limit < asked <= (length or asked):
                raise SettingsError(
                    f"max_model_len: {asked} is more than the {limit} positions that are served of "
                    f"this model ({reason}); set it to {limit} or less, or leave it out"
                )
            _log.warning("model_length_lowered", from_tokens=length, to_tokens=limit, reason=reason)
            self._max_model_len = limit

    @contextmanager
    def _fitting(self, device: torch.device) -> Iterator[None]:
        """Raise :class:`SettingsError` where the memory of a device does not suffice."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise SettingsError(
                f"{self._settings.model} does not fit on {device}: {one_line(error)}; use a "
                "smaller model, a smaller dtype, or device: cpu"
            ) from error

    def _log_loaded(self, checkpoint: Checkpoint, *, kept: bool = False) -> None:
        """Say what was loaded.

        Args:
            kept: activations are quantised as the checkpoint says.
        """
        keys = [] if kept or self._context.rank else activation_keys(checkpoint)
        if keys:
            _log.warning(
                "activation_scheme_ignored",
                keys=keys,
                reason="activations are not rounded as these ask, so results differ a little from "
                "those of an engine that does",
            )
        _log.info(
            "model_loaded",
            model=self._settings.model,
            architecture=checkpoint.model_type,
            layers=len(self._layers),
            dtype=self._layers[0].dtype,
            device=self._layers[0].device,
            rank=f"{self._context.rank} of {self._context.size}",
        )
