"""What devices keep in flash: it outlasts the emulator, as it outlasts a gateway on a wall.

Samples that nobody acknowledged, counters, properties that were written, modes and firmware versions. The
rest of the world begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from meshfleet.errors import MalformedVersion, UnreadableMemory
from meshfleet.gateway.world.effects import take_effect
from meshfleet.gateway.world.products import Mode
from meshfleet.gateway.world.samples import Sample
from meshfleet.wire.codes import Kind
from meshfleet.wire.ids import Identifier, Mac, Version

if TYPE_CHECKING:
    from meshfleet.gateway.core import Core
    from meshfleet.gateway.world.device import Device

_KEPT: Final = (Kind.MEASUREMENT, Kind.EVENT)


class _Series(Struct):
    kind: Kind
    identifier: Identifier
    samples: list[tuple[int, int, bytes | None]]


class _Flash(Struct, rename="camel"):
    """One device."""

    mode: Mode
    version: str
    battery: int
    uptime: float
    beats: int
    seqs: bytes
    transitions: int
    moved: float
    doors: int
    values: dict[Identifier, bytes]
    series: list[_Series]


class _Memory(Struct):
    gateway: Mac
    devices: dict[Mac, _Flash]


def save(core: Core) -> bytes:
    """Write down what the devices of a gateway keep."""
    devices = {mac: _flash(device, core.agenda.now) for mac, device in core.devices.items()}
    return msgspec.json.encode(_Memory(core.settings.mac, devices))


def restore(core: Core, data: bytes) -> None:
    """Give devices back what they kept. Those of which nothing was written down are as new.

    Raises UnreadableMemory, and then nothing has changed.
    """
    try:
        memory = msgspec.json.decode(data, type=_Memory)
        versions = {mac: Version.parse(flash.version) for mac, flash in memory.devices.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MalformedVersion) as exc:
        raise UnreadableMemory(str(exc)) from exc
    if memory.gateway != core.settings.mac:
        raise UnreadableMemory(f"it is the memory of another gateway, {memory.gateway}")
    for mac, flash in memory.devices.items():
        device = core.devices.get(mac)
        if device is not None and len(flash.seqs) == len(device.seqs):
            _restore(core, device, flash)
            device.version = versions[mac]


def _flash(device: Device, t: float) -> _Flash:
    return _Flash(
        mode=device.mode,
        version=str(device.version),
        battery=device.battery_level(t),
        uptime=t - device.booted,
        beats=device.beats,
        seqs=bytes(device.seqs),
        transitions=device.transitions,
        moved=device.seconds_in_motion(t),
        doors=device.doors,
        values=device.values or {},
        series=[
            _Series(kind, identifier, [(sample.millis, sample.seq, sample.value) for sample in samples])
            for (kind, identifier), samples in (device.samples or {}).items()
        ],
    )


def _restore(core: Core, device: Device, flash: _Flash) -> None:
    device.battery = flash.battery
    device.booted = -flash.uptime
    device.beats = flash.beats
    device.seqs = bytearray(flash.seqs)
    device.transitions = flash.transitions
    device.moved = flash.moved
    device.doors = flash.doors
    for identifier, raw in flash.values.items():
        if identifier in device.product.values:
            device.set_value(identifier, raw)
            take_effect(device, identifier, raw)
    for series in flash.series:
        if series.kind in _KEPT and series.identifier in (*device.product.measured, *device.product.events):
            kept = device.samples_of(series.kind, series.identifier)
            for millis, seq, value in sorted(series.samples, key=lambda sample: sample[:2]):
                kept.keep(Sample(millis, seq & 0xFF, value))
    _restore_mode(core, device, flash.mode)


def _restore_mode(core: Core, device: Device, mode: Mode) -> None:
    """Put a device where it was. A bootloader does not wait that long (DFU mode)."""
    if mode is device.mode or mode is Mode.DFU or mode not in device.product.modes:
        return
    device.mode = mode
    if mode is Mode.CONNECTED:
        core.mesh.join(device.node, 0.0)
    else:
        core.mesh.leave(device.node)
