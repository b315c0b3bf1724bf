"""FlashInfer's wrappers, made once and used again when a plan no longer needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from paged_backends.attention.flashinfer.package import wrapper_class

_WORKSPACE_BYTES = 384 << 20
"""For partial results of split sequences; FlashInfer recommends 128 MiB at least, and raises an
error where large batches of long sequences need more."""


@dataclass(slots=True)
class Lease:
    """A wrapper, and the plan that uses it."""

    wrapper: Any
    holder: ref[Any]
    copied: Any = None
    """The event when the device has what was planned; ``None``: at once, since it is no GPU."""

    def is_over(self) -> bool:
        """Whether the wrapper may be planned again."""
        return self.holder() is None and (self.copied is None or self.copied.query())

    def plan(self, *args: Any, **options: Any) -> None:
        """Plan the wrapper."""
        self.wrapper.plan(*args, **options)
        if self.wrapper.device.type == "cuda":
            self.copied = torch.cuda.current_stream(self.wrapper.device).record_event()


class Wrappers:
    """All wrappers of a backend, which share one workspace, since one stream runs them in turn.

    A wrapper plans in pinned memory that is copied to the device later, so it is planned again only
    when that copy is made; with steps planned ahead, two or three wrappers of a kind are in use.
    """

    def __init__(self) -> None:
        self._workspaces: dict[torch.device, Tensor] = {}
        self._leases: dict[object, list[Lease]] = {}

    def take(self, kind: str, holder: object, device: torch.device, **options: Any) -> Lease:
        """Return a wrapper to be planned for ``holder``, which has it while it lives.

        Args:
            kind: ``Prefill`` or ``Decode``.
            options: of its constructor.
        """
        leases = self._leases.setdefault((kind, device, *sorted(options.items())), [])
        lease = next((lease for lease in leases if lease.is_over()), None)
        if lease is None:
            make = wrapper_class(f"Batch{kind}WithPagedKVCacheWrapper")
            lease = Lease(make(self._workspace(device), "HND", **options), ref(holder))
            leases.append(lease)
        lease.holder = ref(holder)
        return lease

    def _workspace(self, device: torch.device) -> Tensor:
        if device not in self._workspaces:
            count = _WORKSPACE_BYTES if device.type == "cuda" else 16
            self._workspaces[device] = torch.zeros(count, dtype=torch.uint8, device=device)
        return self._workspaces[device]
