"""What runners of the decoder's families have in common: what they say of their model."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from paged_backends.runners.native.config import DecoderConfig
from paged_backends.runners.native.source import ModelSource, model_size
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.model_size import ModelSize
from paged_core.interfaces.runner import Runner, RunnerParts
from paged_core.log import get_logger

_log = get_logger()


class DescribedRunner(Runner, ABC):
    """A runner whose model is described by a :class:`DecoderConfig`.

    Its ``load`` calls :meth:`_describe` once the source is open, and :meth:`_log_loaded` at the
    end.
    """

    def __init__(self, parts: RunnerParts) -> None:
        self._parts, self._settings = parts, parts.settings
        self._layers: list[LayerSpec] = []
        self._config: DecoderConfig
        self._bytes_per_weight: float

    def _describe(self, source: ModelSource, bytes_per_weight: float) -> None:
        """Take the description of a model whose linear layers take so many bytes a weight.

        Raises:
            SettingsError: see :meth:`ModelSource.check_memory`.
        """
        source.check_memory(bytes_per_weight)
        self._config, self._bytes_per_weight = source.config, bytes_per_weight
        self._layers = source.layers(self._settings)

    def _log_loaded(self, source: ModelSource) -> None:
        _log.info(
            "model_loaded",
            model=self._settings.model,
            architecture=source.checkpoint.model_type,
            layers=len(self._layers),
            dtype=self._layers[0].dtype,
            device=str(source.device),
            rank=f"{self._parts.rank} of {self._parts.size}",
        )

    @property
    def layers(self) -> Sequence[LayerSpec]:
        """The attention layers, in order."""
        return self._layers

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self._config.vocab_size

    @property
    def max_model_len(self) -> int | None:
        """Positions according to the configuration."""
        return self._config.max_model_len

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """From the checkpoint's generation settings, or else its configuration."""
        return self._config.eos_token_ids

    def model_size(self) -> ModelSize:
        """Count the weights of all linear layers."""
        return model_size(self._config, self._layers, self._bytes_per_weight)
