"""Peaks of devices, from their data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paged_core.errors import SettingsError, did_you_mean

_GIB = 2**30


@dataclass(frozen=True, slots=True)
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
    # NVIDIA's data sheets, without sparsity; A100 and H100: SXM
    "a100-40g": Device(40 * _GIB, 1.555e12, 312e12, 19.5e12, 300e9, 25e9),
    "a100-80g": Device(80 * _GIB, 2.039e12, 312e12, 19.5e12, 300e9, 25e9),
    "a40": Device(45 * _GIB, 696e9, 149.7e12, 37.4e12, 56e9, 25e9),
    "h100": Device(80 * _GIB, 3.35e12, 989e12, 67e12, 450e9, 50e9),
    "h200": Device(141 * 10**9, 4.8e12, 989e12, 67e12, 450e9, 50e9),
    "l4": Device(24 * _GIB, 300e9, 121e12, 30.3e12, 25e9, 25e9),
    # NVIDIA's Ada whitepaper: AD106 with 36 SMs at 2.175 GHz, 128-bit GDDR6
    "rtx-4070-laptop": Device(8 * _GIB, 256e9, 80e12, 20e12, 12e9, 12e9),
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
