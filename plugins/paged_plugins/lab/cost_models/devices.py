"""Devices, as far as they bound the time of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


DEVICES: Mapping[str, Device] = {
    "a100-40g": Device(  # NVIDIA A100 data sheet, SXM 40 GB
        memory_bytes=40 * _GIB,
        bandwidth=1.555e12,
        flops_16=312e12,
        flops_32=19.5e12,
        interconnect=300e9,
        host_bandwidth=25e9,
    ),
    "a100-80g": Device(  # NVIDIA A100 data sheet, SXM 80 GB
        memory_bytes=80 * _GIB,
        bandwidth=2.039e12,
        flops_16=312e12,
        flops_32=19.5e12,
        interconnect=300e9,
        host_bandwidth=25e9,
    ),
    "h100": Device(  # NVIDIA H100 data sheet, SXM
        memory_bytes=80 * _GIB,
        bandwidth=3.35e12,
        flops_16=989e12,
        flops_32=67e12,
        interconnect=450e9,
        host_bandwidth=50e9,
    ),
    "h200": Device(  # NVIDIA H200 data sheet, SXM
        memory_bytes=141 * 10**9,
        bandwidth=4.8e12,
        flops_16=989e12,
        flops_32=67e12,
        interconnect=450e9,
        host_bandwidth=50e9,
    ),
    "l4": Device(  # NVIDIA L4 data sheet; 121 TFLOP/s without sparsity
        memory_bytes=24 * _GIB,
        bandwidth=300e9,
        flops_16=121e12,
        flops_32=30.3e12,
        interconnect=25e9,
        host_bandwidth=25e9,
    ),
    "rtx-4070-laptop": Device(  # Ada whitepaper, AD106 with 36 SMs at 2.175 GHz, 128-bit GDDR6
        memory_bytes=8 * _GIB,
        bandwidth=256e9,
        flops_16=80e12,
        flops_32=20e12,
        interconnect=12e9,
        host_bandwidth=12e9,
    ),
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
