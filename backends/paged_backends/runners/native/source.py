"""Source of a decoder: configuration and weights on a device; and the runners that describe it."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Literal, Self

import torch

from paged_backends.checkpoint.config_fields import choose_dtype, stated_dtype
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.quantized.layout import layout_of
from paged_backends.checkpoint.weights import RandomWeights, Weights, open_weights
from paged_backends.device import choose_device, free_memory
from paged_backends.runners.loaded_runner import DTYPE_NAMES, LoadedRunner
from paged_backends.runners.native.config import DecoderConfig
from paged_backends.runners.native.families import decoder_config
from paged_backends.runners.native.share import Share
from paged_core.errors import SettingsError
from paged_core.interfaces.layer import LayerSpec, ModelSize
from paged_core.settings.schema import EngineSettings

WeightSource = Literal["checkpoint", "random"]
"""``random``: generated from the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model of one of the families that the decoder covers."""

    checkpoint: Checkpoint
    config: DecoderConfig
    weights: Weights
    dtype: torch.dtype
    """To compute in."""
    device: torch.device
    share: Share
    local: DecoderConfig
    """The model of the share's sizes."""

    @classmethod
    def open(
        cls,
        settings: EngineSettings,
        weights: WeightSource,
        *,
        rank: int = 0,
        share: Share = Share(),  # noqa: B008 - it is frozen
    ) -> Self:
        """Read the configuration, and open the weights; each is read when it is used.

        Args:
            rank: see :func:`choose_device`.
            share: what this rank holds of the model.

        Raises:
            CheckpointError, UnsupportedModel: see :meth:`paged_core.interfaces.runner.Runner.load`.
            SettingsError: the device is not there.
        """
        checkpoint = Checkpoint.open(
            settings.model,
            allow_pickle=settings.allow_pickle,
            trust_remote_code=settings.trust_remote_code,
            reads_gguf=True,
        )
        config = decoder_config(checkpoint, trust_remote_code=settings.trust_remote_code)
        local = share.local(config, checkpoint.place)
        device = choose_device(settings.device, rank)
        opened, dtype = _open(settings, checkpoint, device, made_up=weights == "random")
        return cls(
            checkpoint=checkpoint,
            config=config,
            weights=opened,
            dtype=dtype,
            device=device,
            share=share,
            local=local,
        )

    def layers(self, settings: EngineSettings) -> list[LayerSpec]:
        """Return the description of each attention layer."""
        return [
            LayerSpec(
                num_heads=self.local.num_heads,
                num_kv_heads=self.local.num_kv_heads,
                head_dim=self.config.head_dim,
                scale=layer.scale,
                dtype=DTYPE_NAMES[self.dtype],
                device=str(self.device),
                block_size=settings.block_size,
                kv_cache_dtype=settings.kv_cache_dtype,
                sliding_window=layer.sliding_window,
                soft_cap=layer.soft_cap,
            )
            for layer in self.config.layers
        ]

    def check_not_quantized(self, quantization: str) -> None:
        """Refuse to quantise weights, to ``int8`` or ``int4``, that are quantised already.

        Raises:
            SettingsError: they are.
        """
        method = self.checkpoint.quantized_as
        if method is not None and not isinstance(self.weights, RandomWeights):
            raise SettingsError(
                f"runner.quantization: {quantization}: the weights of {self.checkpoint.place} are "
                f"quantised already, as {method}; set it to off, or give a checkpoint that is not "
                "quantised"
            )

    def check_memory(self, bytes_per_weight: float) -> None:
        """Refuse random weights that do not fit; those of a file cannot be larger than it.

        Raises:
            SettingsError: they take more memory than the device has free.
        """
        needed = model_size(self.local, [], bytes_per_weight).weight_bytes
        free = free_memory(self.device)
        if isinstance(self.weights, RandomWeights) and needed > free:
            raise SettingsError(
                f"the weights of {self.checkpoint.place} take {needed >> 20} MiB of memory, and "
                f"{free >> 20} MiB are free on {self.device}; use a smaller model or dtype"
            )


def model_size(
    config: DecoderConfig, layers: list[LayerSpec], bytes_per_weight: float
) -> ModelSize:
    """Count the weights of all linear layers."""
    hidden, heads, kv_heads = config.hidden_size, config.num_heads, config.num_kv_heads
    attention = 2 * (heads + kv_heads) * config.head_dim * hidden
    feed_forward = (3 if config.gated else 2) * hidden * config.intermediate_size
    return ModelSize(
        layer_weights=len(config.layers) * (attention + feed_forward),
        head_weights=config.vocab_size * config.embedding_size,
        layers=tuple(layers),
        bytes_per_weight=bytes_per_weight,
    )


def _open(
    settings: EngineSettings, checkpoint: Checkpoint, device: torch.device, *, made_up: bool
) -> tuple[Weights, torch.dtype]:
    """Return the weights, and the dtype to compute in."""
    chosen = settings.dtype
    if not made_up or chosen != "auto":
        chosen = choose_dtype(chosen, checkpoint, device)
    own = stated_dtype(checkpoint) if chosen == "auto" else chosen
    if made_up:
        dtype = own if own in DTYPE_NAMES else torch.float32
        return RandomWeights(dtype, settings.seed), dtype
    weights = open_weights(
        checkpoint,
        allow_pickle=settings.allow_pickle,
        dtype=own if own in DTYPE_NAMES else torch.float32,
        layout=layout_of(checkpoint),
    )
    dtype = own if own in DTYPE_NAMES else weights.dtype
    return weights, dtype if dtype in DTYPE_NAMES else torch.float32


# ---------------------------------------------------------------------- runners


class DescribedRunner(LoadedRunner, ABC):
    """A runner whose model is described by a :class:`DecoderConfig`.

    Its ``load`` calls :meth:`_describe` once the source is open.
    """

    _config: DecoderConfig
    _bytes_per_weight: float

    def _describe(self, source: ModelSource, bytes_per_weight: float) -> None:
        """Take the description of a model whose linear layers take so many bytes a weight.

        Raises:
            SettingsError: see :meth:`ModelSource.check_memory`.
        """
        source.check_memory(bytes_per_weight)
        self._config, config = source.local, source.config
        self._bytes_per_weight = bytes_per_weight
        self._layers = source.layers(self._settings)
        self._vocab_size, self._max_model_len = config.vocab_size, config.max_model_len
        self._end_with(config.eos_token_ids)

    def model_size(self) -> ModelSize:
        """Count the weights of all linear layers."""
        return model_size(self._config, self._layers, self._bytes_per_weight)
