"""Component ``transformers``: decoder-only models of that library over a flattened batch.

The new tokens of all sequences are concatenated into a single row, without padding; the model's
attention function passes query, key and value of each layer to the paged cache.

Shapes: T tokens in the batch, H query heads, K key/value heads, D head_dim, R rows that sample a
token.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from paged_backends.checkpoint.config_fields import LENGTHS
from paged_backends.checkpoint.end_tokens import end_tokens
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import one_line
from paged_backends.device import choose_device
from paged_backends.runners.loaded_runner import LoadedRunner, check_whole
from paged_backends.runners.settings import TransformersSettings
from paged_backends.runners.transformers.attention_port import AttentionPort, probe_layers, quiet
from paged_backends.runners.transformers.long_row import try_long_row
from paged_backends.runners.transformers.model_loader import load_model
from paged_backends.runners.transformers.odd_fields import blamed
from paged_backends.runners.transformers.trial_run import try_out
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import PagedCoreError, UnsupportedModel
from paged_core.interfaces.layer import ModelSize

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


class TransformersRunner(LoadedRunner):
    """Runs a model with its own code, except for attention."""

    def __init__(self, options: TransformersSettings, context: RunnerContext) -> None:
        super().__init__(context)
        self._modules: list[nn.Module] = []
        self._attend: Attend | None = None
        self._next_layer = 0

    def model_size(self) -> ModelSize:
        """Count the weights of all matrices except embeddings."""
        tables = {
            id(module.weight) for module in self._base.modules() if isinstance(module, nn.Embedding)
        }
        matrices = [p for p in self._base.parameters() if p.ndim > 1 and id(p) not in tables]
        head = self._head.get_output_embeddings()
        return ModelSize(
            layer_weights=sum(matrix.numel() for matrix in matrices),
            head_weights=0 if head is None else head.weight.numel(),
            layers=tuple(self._layers),
        )

    # ------------------------------------------------------------------ loading

    def load(self) -> None:
        """Read the model, probe its layers, and check its logits with the paged cache."""
        # its tensor-parallel plans need process groups of torch.distributed, not a communicator
        check_whole("transformers", self._context)
        settings = self._settings
        checkpoint = Checkpoint.open(
            settings.model,
            allow_pickle=settings.allow_pickle,
            trust_remote_code=settings.trust_remote_code,
        )
        device = choose_device(settings.device, self._context.rank)
        with self._fitting(device), quiet(), _refusing(checkpoint):
            model = load_model(checkpoint, settings, device)
            self._describe(model, checkpoint)
        kept = any(each.element_size() == 1 for each in model.parameters())  # as its kernels do
        self._log_loaded(checkpoint, kept=kept)

    def _describe(self, model: Any, checkpoint: Checkpoint) -> None:
        _check_shape(model)
        self._base = _decoder(model)
        self._head, self._given = _head_of(model)
        text = model.config.get_text_config()
        lengths = (getattr(text, key, None) for key in LENGTHS)
        self._max_model_len = next((n for n in lengths if isinstance(n, int) and n > 0), None)
        # beyond it, one long sequence would change the positions of every other in the batch
        trained = _unscaled_length(text, getattr(text, "rope_parameters", None))
        self._limit_length(trained, "longer ones would change the rotary embedding of all others")
        self._port = AttentionPort(model)
        longest = self._max_model_len or 4096
        probed = probe_layers(model, self._base, self._port, self._settings, longest)
        self._modules = [module for module, _ in probed]
        self._layers = [layer for _, layer in probed]
        self._heed_unused_window(model.config.get_text_config())
        self._vocab_size = try_out(self, model, self._modules)
        self._end_with(end_tokens(checkpoint, getattr(text, "eos_token_id", None)))
        limits = getattr(self._settings.scheduler, "step_limits", None)
        try_long_row(self, model, self._modules, getattr(limits, "num_tokens", None))

    def _heed_unused_window(self, config: Any) -> None:
        """Limit the length to a window that only the model's own cache would apply."""
        window = getattr(config, "sliding_window", None)
        if window is None or getattr(config, "layer_types", None) is not None:
            return
        if any(layer.sliding_window is not None for layer in self._layers):
            return
        self._limit_length(window, "its layers do not apply its sliding window")

    # ------------------------------------------------------------------ running

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return hidden states [T, hidden] of ``tokens`` [T] at ``positions`` [T]."""
        self._attend, self._next_layer = attend, 0
        with self._port.connected(self._serve):
            output = self._base(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                return_dict=True,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return logits [R, vocab_size], scaled and capped by the model's own code."""
        self._given.hidden = hidden[None]
        rows = hidden.new_zeros((1, len(hidden)), dtype=torch.int64)
        logits: Tensor = self._head(input_ids=rows, use_cache=False, return_dict=True).logits[0]
        return logits

    def _serve(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        options: Mapping[str, Any],
    ) -> Tensor:
        index = self._next_layer
        self._next_layer = index + 1
        assert self._attend is not None
        assert self._modules[index] is module, "layers are called in the order that was probed"
        width, value_width = query.shape[-1], value.shape[-1]
        query_THD, key_TKD, value_TKD = (part[0].transpose(0, 1) for part in (query, key, value))
        if width != value_width:  # zeros change neither scores nor values
            common = max(width, value_width)
            query_THD, key_TKD, value_TKD = (
                functional.pad(part, (0, common - part.shape[-1]))
                for part in (query_THD, key_TKD, value_TKD)
            )
        return self._attend(index, query_THD, key_TKD, value_TKD)[None, ..., :value_width]


@contextmanager
def _refusing(checkpoint: Checkpoint) -> Iterator[None]:
    """Refuse a model whose code raises while it is made or tried.

    Raises:
        CheckpointError: it did, and values of the configuration are a likely cause.
        UnsupportedModel: it did.
    """
    try:
        yield
    except (PagedCoreError, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the library's code, with values that it did not check
        raise blamed(checkpoint, error) or UnsupportedModel(
            f"{checkpoint.model_type} cannot be served: transformers {transformers.__version__} "
            f"raised {type(error).__name__} ({one_line(error, 300)}) when its model was made, or "
            "tried over a few tokens in one row, without masks and a cache of its own; choose a "
            "model whose layers need neither, or another version of transformers"
        ) from error


class _GivenOutput:
    """A decoder's output that has hidden states; every other field is ``None``."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Given(nn.Module):
    """Replaces a model's decoder, and returns hidden states that are already computed."""

    hidden: Tensor

    @property
    def decoder(self) -> _Given:
        """OPT has its decoder one level deeper."""
        return self

    def forward(self, *_: Any, **__: Any) -> _GivenOutput:
        """Return the hidden states."""
        return _GivenOutput(self.hidden)


def _head_of(model: Any) -> tuple[Any, _Given]:
    """Return the model with its decoder replaced, so that only its head is computed."""
    given = _Given()
    head = copy.copy(model)
    head.__dict__["_modules"] = dict(model._modules)
    head.__dict__["_modules"][_decoder_name(model)] = given
    return head, given


def _decoder(model: Any) -> Any:
    """Return the module that computes hidden states."""
    return model._modules[_decoder_name(model)]


def _decoder_name(model: Any) -> str | None:
    """Return the name of the attribute that holds the decoder."""
    names = (model.base_model_prefix, "model", "transformer")
    return next((name for name in names if name in model._modules), None)


_STATELESS = {"attention", "full_attention", "sliding_attention", "mlp", "moe"}
"""Types of layers, of models that may have others, which keep keys and values at most."""


def _check_shape(model: Any) -> None:
    name = model.config.model_type
    refusal = f"{name} cannot be served: "
    if any("Indexer" in type(module).__name__ for module in model.modules()):
        raise UnsupportedModel(
            f"{refusal}it chooses the keys that a token sees by an index (sparse attention), whose "
            "own keys are not paged; choose a model that sees all of them, or those in a window"
        )
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or [""]
    if getattr(model, "_is_stateful", False) and not _STATELESS.issuperset(kinds):
        raise UnsupportedModel(
            f"{refusal}it carries a recurrent state from token to token (Mamba or linear "
            "attention), which is not paged; choose a model that only has attention"
        )
    if _decoder_name(model) is None:
        raise UnsupportedModel(f"{refusal}its decoder cannot be separated from its head")
    if "position_ids" not in inspect.signature(_decoder(model).forward).parameters:
        raise UnsupportedModel(
            f"{refusal}it takes no position ids, so sequences cannot share a row of its batch"
        )


def _unscaled_length(config: Any, rope: Any) -> int | None:
    """Length up to which rotary embeddings do not depend on the longest sequence of the batch."""
    if not isinstance(rope, Mapping):
        return None
    nested = [_unscaled_length(config, part) for part in rope.values()]
    lengths = [length for length in nested if length is not None]
    if rope.get("rope_type") in ("dynamic", "longrope"):
        own = rope.get("original_max_position_embeddings")
        own = own or getattr(config, "original_max_position_embeddings", None)
        lengths.append(own or config.max_position_embeddings)
    return min(lengths, default=None)
