"""Devices, as far as they bound the time of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Peaks of one device, from its data sheet."""

    memory_bytes: int
    bandwidth: float
    """Bytes per second of its own memory."""
    flops_16: float
    """Dense multiply-adds of 16-bit numbers, two operations each, per second."""
    flops_32: float
    """Likewise of 32-bit numbers, without reduced precision."""
    interconnect: float
    """Bytes per second to another device, in one direction."""
    host_bandwidth: float
    """Bytes per second to the host's memory, in one direction."""


_A100 = Device(
    memory_bytes=80 * _GIB,
    bandwidth=2.039e12,
    flops_16=312e12,
    flops_32=19.5e12,
    interconnect=300e9,
    host_bandwidth=25e9,
)
_H100 = Device(
    memory_bytes=80 * _GIB,
    bandwidth=3.35e12,
    flops_16=989e12,
    flops_32=67e12,
    interconnect=450e9,
    host_bandwidth=50e9,
)
_L4 = Device(
    memory_bytes=24 * _GIB,
    bandwidth=300e9,
    flops_16=121e12,
    flops_32=30.3e12,
    interconnect=25e9,
    host_bandwidth=25e9,
)
_RTX_4070_LAPTOP = Device(
    memory_bytes=8 * _GIB,
    bandwidth=256e9,
    flops_16=80e12,
    flops_32=20e12,
    interconnect=12e9,
    host_bandwidth=12e9,
)

DEVICES: Mapping[str, Device] = {
    # NVIDIA's data sheets, without sparsity; A100 and H100: SXM
    "a100-40g": replace(_A100, memory_bytes=40 * _GIB, bandwidth=1.555e12),
    "a100-80g": _A100,
    "h100": _H100,
    "h200": replace(_H100, memory_bytes=141 * 10**9, bandwidth=4.8e12),
    "l4": _L4,
    # NVIDIA's Ada whitepaper: AD106 with 36 SMs at 2.175 GHz, 128-bit GDDR6
    "rtx-4070-laptop": _RTX_4070_LAPTOP,
}


def device(name: str) -> Device:
    """Return a device by its name.

    Raises:
        SettingsError: none is called that.
    """
    if name not in DEVICES:
        known = did_you_mean(name, DEVICES)
        raise SettingsError(f"cost_model.device: no device is called {name!r}{known}")
    return DEVICES[name]
