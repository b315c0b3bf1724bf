"""Component ``flash_attn``: flash attention over the paged cache, by the best package there is.

A cache is ``[blocks, 2, kv_heads, block_size, head_dim]``, as our own kernels have it. Providers
get its keys and values as views ``[blocks, block_size, kv_heads, head_dim]``, whose last dimension
alone must be contiguous.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from torch import Tensor

from paged_backends.attention.cache import SlotWrites
from paged_backends.attention.flash_packages import Provider, Sequences, providers
from paged_backends.attention.layers import by_head, not_on_nvidia
from paged_backends.attention.settings import FlashAttnSettings
from paged_backends.attention.step import BlockBounds, contiguous_rows
from paged_backends.kernels.nvidia import compute_capability, gpu_problem
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec
from paged_core.log import get_logger

_log = get_logger()


class Plan:
    """Plan of one step, or of a captured graph and all its replays."""

    def __init__(self, batch: AttentionBatch, *, captured: bool = False) -> None:
        self.sequences = Sequences(batch)
        self.writes = SlotWrites(batch.slot_mapping, may_be_empty=captured)
        self._bounds = BlockBounds.of(batch)
        self._checked: set[tuple[int, int]] = set()

    def check(self, num_blocks: int, block_size: int) -> None:
        """Check that a cache has all blocks; ValueError if not."""
        if (num_blocks, block_size) not in self._checked:
            self._bounds.check(num_blocks, block_size)
            self._checked.add((num_blocks, block_size))

    def refresh(self, batch: AttentionBatch) -> None:
        """Take over the numbers of ``batch`` from the tensors that the plan was made with."""
        self._bounds = BlockBounds.of(batch)
        for cache in self._checked:
            self._bounds.check(*cache)
        self.sequences.refresh()
        self.writes.refresh()


class PagedLayer:
    """Attention of one layer over its cache."""

    def __init__(self, provider: Provider, layer: LayerSpec, cache_BXKPD: Tensor) -> None:
        self._provider, self._layer, self._cache_BXKPD = provider, layer, cache_BXKPD
        self._keys_BPKD, self._values_BPKD = cache_BXKPD.transpose(2, 3).unbind(1)
        self._slopes_H = by_head(layer.alibi_slopes, cache_BXKPD.device)
        self._sinks_H = by_head(layer.sinks, cache_BXKPD.device)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        cache = self._cache_BXKPD
        plan.check(len(cache), self._layer.block_size)
        plan.writes.write(cache, key, value)
        out_THD = self._provider.attend(
            self._layer,
            contiguous_rows(query, cache.dtype),
            self._keys_BPKD,
            self._values_BPKD,
            self._slopes_H,
            self._sinks_H,
            plan.sequences,
        )
        return out_THD.to(query.dtype)


class FlashAttnAttention(AttentionBackend):
    """Component ``flash_attn``; packages are imported when the first layer is checked.

    It is a :class:`~paged_core.interfaces.attention.SupportsGraphCapture`.
    """

    def __init__(self, options: FlashAttnSettings, context: AttentionContext) -> None:
        self._providers = providers(options.provider, deterministic=context.settings.deterministic)
        self._logged: set[str] = set()

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why no provider serves ``layer``: the reason of each, and what would help."""
        if compute_capability(layer.device) is None:
            return not_on_nvidia(layer)
        provider, refused = self._choose(layer)
        if provider is not None:
            return None
        return "; ".join(f"{title}: {reason}" for title, reason in refused.items())

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Return what the layers share; nothing waits for the device."""
        return Plan(batch)

    def plan_capture(self, batch: AttentionBatch, /) -> Plan:
        """See :class:`~paged_core.interfaces.attention.SupportsGraphCapture`."""
        return Plan(batch, captured=True)

    def update_capture(self, plan: Plan, batch: AttentionBatch, /) -> None:
        """See :class:`~paged_core.interfaces.attention.SupportsGraphCapture`."""
        plan.refresh(batch)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``, by the first provider that serves it.

        Raises:
            ValueError: none does.
        """
        provider, refused = self._choose(layer)
        if provider is None:
            raise ValueError(f"attention 'flash_attn' cannot serve {layer}: {self.check(layer)}")
        if provider.package.name not in self._logged:
            self._logged.add(provider.package.name)
            _log.info("attention_provider_chosen", name=provider.package.name, refused=refused)
        return PagedLayer(provider, layer, cache)

    def _choose(self, layer: LayerSpec) -> tuple[Provider | None, dict[str, str]]:
        """Return the provider for ``layer``, if any, and why those before it were refused."""
        capability = compute_capability(layer.device)
        refused: dict[str, str] = {}
        if capability is None:
            return None, refused
        for provider in self._providers:
            reason = provider.check(layer, capability)
            if reason is None:
                return provider, refused
            refused[provider.package.title] = reason
        return None, refused


def unavailable_reason() -> str | None:
    """Return why no provider can be used, or ``None``; without a GPU none is imported."""
    reason = gpu_problem()
    if reason is not None:
        return reason
    usable, others = _found()
    return None if usable else "; ".join(others)


def details() -> str:
    """Return the providers that can be used, and how to get the others."""
    usable, others = _found()
    return "; ".join([f"provider {', '.join(usable)}", *others])


def _found() -> tuple[list[str], list[str]]:
    """Return the titles of the providers that can be used, and why others cannot be."""
    found = [
        (one.package.title, one.unavailable_reason())
        for one in providers("auto", deterministic=False)
    ]
    usable = [title for title, reason in found if reason is None]
    return usable, [f"{title}: {reason}" for title, reason in found if reason is not None]
