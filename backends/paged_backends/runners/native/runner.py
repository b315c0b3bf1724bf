"""Component ``native``: the most common model families, in our own decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paged_backends.checkpoint.device import choose_device, free_memory
from paged_backends.checkpoint.dtype import choose_dtype
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.weights import RandomWeights, Weights, open_weights
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.choose_ops import choose_ops
from paged_backends.runners.native.compiled_layer import compile_layers
from paged_backends.runners.native.config import DecoderConfig
from paged_backends.runners.native.decoder import Decoder
from paged_backends.runners.native.families import decoder_config
from paged_backends.runners.native.fused_layers import fuse
from paged_backends.runners.native.names import weight_names
from paged_backends.runners.settings import NativeSettings
from paged_core.errors import SettingsError
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.model_size import ModelSize
from paged_core.interfaces.runner import Runner, RunnerParts
from paged_core.log import get_logger

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

log = get_logger()


class NativeRunner(Runner):
    """Runs a model of a folder or a GGUF file, without importing transformers."""

    def __init__(self, options: NativeSettings, parts: RunnerParts) -> None:
        self._options = options
        self._settings = parts.settings
        self._layers: list[LayerSpec] = []
        self._config: DecoderConfig
        self._decoder: Decoder
        self._kernels: Kernels | None = None

    def load(self) -> None:
        """Read the configuration, then the weights; see the interface for what it raises."""
        settings = self._settings
        checkpoint = Checkpoint.open(
            settings.model,
            allow_pickle=settings.allow_pickle,
            trust_remote_code=settings.trust_remote_code,
            reads_gguf=True,
        )
        config = decoder_config(checkpoint, trust_remote_code=settings.trust_remote_code)
        device = choose_device(settings.device)
        weights, dtype = self._open(checkpoint, device)
        self._config = config
        self._check_memory(dtype, device)
        ops = choose_ops(self._options, dtype, device)
        try:
            self._decoder = Assembly(
                config,
                weight_names(checkpoint),
                weights,
                ops=ops,
                dtype=dtype,
                device=device,
            ).decoder()
        except torch.OutOfMemoryError as error:
            raise SettingsError(
                f"{settings.model} does not fit on {device}: {str(error).partition(chr(10))[0]}; "
                "use a smaller model, a smaller dtype, or device: cpu"
            ) from error
        self._kernels = ops.kernels
        if ops.kernels is not None:
            self._decoder.fused = fuse(config, self._decoder.layers, ops.kernels)
        if self._options.compile:
            self._decoder.run = compile_layers(self._decoder.layers, device)
        self._layers = [
            LayerSpec(
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                scale=layer.scale,
                dtype=_DTYPES[dtype],
                device=str(device),
                block_size=settings.block_size,
                kv_cache_dtype=settings.kv_cache_dtype,
                sliding_window=layer.sliding_window,
                soft_cap=layer.soft_cap,
            )
            for layer in config.layers
        ]
        log.info(
            "model_loaded",
            model=settings.model,
            architecture=checkpoint.model_type,
            layers=len(self._layers),
            dtype=_DTYPES[dtype],
            device=str(device),
        )

    def _check_memory(self, dtype: torch.dtype, device: torch.device) -> None:
        """Refuse made-up weights that do not fit; those of a file cannot be larger than it."""
        size = self.model_size()
        needed = (size.layer_weights + size.head_weights) * dtype.itemsize
        free = free_memory(device)
        if self._options.weights == "random" and needed > free:
            raise SettingsError(
                f"the weights of {self._settings.model} take {needed >> 20} MiB of memory, and "
                f"{free >> 20} MiB are free on {device}; use a smaller model or dtype"
            )

    def _open(self, checkpoint: Checkpoint, device: torch.device) -> tuple[Weights, torch.dtype]:
        """Return the weights, and the dtype to compute in."""
        made_up = self._options.weights == "random"
        chosen = self._settings.dtype
        if not made_up or chosen != "auto":
            chosen = choose_dtype(chosen, checkpoint, device)
        named = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "")
        own = getattr(torch, named.removeprefix("torch."), None) if chosen == "auto" else chosen
        if made_up:
            dtype = own if own in _DTYPES else torch.float32
            return RandomWeights(dtype, self._settings.seed), dtype
        weights = open_weights(
            checkpoint,
            allow_pickle=self._settings.allow_pickle,
            dtype=own if own in _DTYPES else torch.float32,
        )
        dtype = own if own in _DTYPES else weights.dtype
        return weights, dtype if dtype in _DTYPES else torch.float32

    # ------------------------------------------------------------------ properties

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

    @property
    def kernels(self) -> Kernels | None:
        """The kernels for this CPU, if they are used."""
        return self._kernels

    def model_size(self) -> ModelSize:
        """Count the weights of all linear layers."""
        config = self._config
        hidden, heads, kv_heads = config.hidden_size, config.num_heads, config.num_kv_heads
        attention = 2 * (heads + kv_heads) * config.head_dim * hidden
        feed_forward = (3 if config.gated else 2) * hidden * config.intermediate_size
        return ModelSize(
            layer_weights=len(config.layers) * (attention + feed_forward),
            head_weights=config.vocab_size * config.embedding_size,
            layers=tuple(self._layers),
        )

    # ------------------------------------------------------------------ running

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        return self._decoder.forward(tokens, positions, attend)

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return logits [R, vocab_size] float32."""
        return self._decoder.logits(hidden)

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the best token [R] int64 of each row, and its logit [R]."""
        return self._decoder.best(hidden)
