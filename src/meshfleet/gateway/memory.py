"""What devices keep in flash: it outlasts the emulator, as it outlasts a gateway on a wall.

Samples that nobody acknowledged, counters, properties that were written, modes and firmware versions. The
rest of the world begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from meshfleet.errors import MalformedVersion, UnreadableMemory, shown
from meshfleet.gateway.world.effects import fits, take_effect
from meshfleet.gateway.world.products import Mode
from meshfleet.gateway.world.samples import Sample
from meshfleet.wire.codes import Kind
from meshfleet.wire.decoders import decoder_of
from meshfleet.wire.ids import Identifier, Mac, Version

if TYPE_CHECKING:
    from meshfleet.gateway.core import Core
    from meshfleet.gateway.world.device import Device

_KEPT: Final = (Kind.MEASUREMENT, Kind.EVENT)


_Count = Annotated[int, Meta(ge=0, le=2**40)]
_Millis = Annotated[int, Meta(ge=0, le=2**45)]
_Seq = Annotated[int, Meta(ge=0, le=255)]
_Raw = Annotated[bytes, Meta(max_length=255)]
_Seconds = Annotated[float, Meta(ge=0, le=4e9)]


class _Series(Struct):
    kind: Kind
    identifier: Identifier
    samples: list[tuple[_Millis, _Seq, _Raw | None]]


class _Flash(Struct, rename="camel"):
    """One device."""

    mode: Mode
    version: str
    battery: Annotated[int, Meta(ge=0, le=100)]
    uptime: _Seconds
    beats: _Count
    seqs: bytes
    transitions: _Count
    moved: _Seconds
    doors: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    values: dict[Identifier, _Raw]
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
        memory = decoder_of(_Memory).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UnreadableMemory(str(exc)) from exc
    if memory.gateway != core.settings.mac:
        raise UnreadableMemory(f"it is the memory of another gateway, {memory.gateway}")
    known = [(core.devices[mac], flash) for mac, flash in memory.devices.items() if mac in core.devices]
    for device, flash in known:
        _check(device, flash)
    for device, flash in known:
        _restore(core, device, flash)


def _check(device: Device, flash: _Flash) -> None:
    """Refuse what the device cannot have kept."""
    if len(flash.seqs) != len(device.seqs):
        raise UnreadableMemory(f"{device.mac} has {len(device.seqs)} counters, and not {len(flash.seqs)}")
    if not _version_fits(flash.version):
        raise UnreadableMemory(f"{device.mac} has no version {shown(flash.version)}")
    for identifier, raw in flash.values.items():
        usual = device.product.values.get(identifier)
        if usual is not None and not (len(raw) == len(usual) and fits(device, identifier, raw)):
            raise UnreadableMemory(f"{device.mac} cannot have kept this value of {shown(identifier)}")


def _version_fits(text: str) -> bool:
    try:
        return max(Version.parse(text)[:3]) <= 0xFF  # noqa: PLR2004 # a byte each
    except MalformedVersion:
        return False


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
    device.version = Version.parse(flash.version)
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
                kept.keep(Sample(millis, seq, value))
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
