"""What devices keep in flash: it outlasts the emulator, as it outlasts a gateway on a wall.

Samples that nobody acknowledged, counters, properties that were written, modes and firmware versions. The
rest of the world begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.simulation.properties import accepts_value, apply_value_effects
from meshfleet.emulator.simulation.sample_buffer import DeviceSample
from meshfleet.errors import quote_input
from meshfleet.errors.emulator import UnreadableMemory
from meshfleet.errors.protocol import MalformedVersion
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.decoders import get_decoder
from meshfleet.protocol.ids import Identifier, Mac, Version

if TYPE_CHECKING:
    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.simulation.device import SimulatedDevice

_SAMPLE_KINDS: Final = (Kind.MEASUREMENT, Kind.EVENT)


_Count = Annotated[int, Meta(ge=0, le=2**40)]
_Millis = Annotated[int, Meta(ge=0, le=2**45)]
_Seq = Annotated[int, Meta(ge=0, le=255)]
_Raw = Annotated[bytes, Meta(max_length=255)]
_Seconds = Annotated[float, Meta(ge=0, le=4e9)]


class _FlashSeries(Struct):
    kind: Kind
    identifier: Identifier
    samples: list[tuple[_Millis, _Seq, _Raw | None]]


class _Flash(Struct, rename="camel"):
    """One device."""

    mode: DeviceMode
    version: str
    battery: Annotated[int, Meta(ge=0, le=100)]
    uptime: _Seconds
    beats: _Count
    seqs: bytes
    transitions: _Count
    moved: _Seconds
    doors: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    values: dict[Identifier, _Raw]
    series: list[_FlashSeries]


class _Memory(Struct):
    gateway: Mac
    devices: dict[Mac, _Flash]


def save_devices(core: EmulatorContext) -> bytes:
    """Write down what the devices of a gateway keep."""
    devices = {mac: _build_flash(device, core.scheduler.now) for mac, device in core.devices.items()}
    return msgspec.json.encode(_Memory(core.settings.mac, devices))


def restore_devices(core: EmulatorContext, data: bytes) -> None:
    """Give devices back what they kept. Those of which nothing was written down are as new.

    Raises UnreadableMemory, and then nothing has changed.
    """
    try:
        memory = get_decoder(_Memory).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UnreadableMemory(str(exc)) from exc
    if memory.gateway != core.settings.mac:
        raise UnreadableMemory(f"it is the memory of another gateway, {memory.gateway}")
    known = [(core.devices[mac], flash) for mac, flash in memory.devices.items() if mac in core.devices]
    for device, flash in known:
        _check_flash(device, flash)
    for device, flash in known:
        _restore_device(core, device, flash)


def _check_flash(device: SimulatedDevice, flash: _Flash) -> None:
    """Refuse what the device cannot have kept."""
    if len(flash.seqs) != len(device.seqs):
        raise UnreadableMemory(f"{device.mac} has {len(device.seqs)} counters, and not {len(flash.seqs)}")
    if not _version_fits(flash.version):
        raise UnreadableMemory(f"{device.mac} has no version {quote_input(flash.version)}")
    for identifier, raw in flash.values.items():
        usual = device.product.default_values.get(identifier)
        if usual is not None and not (len(raw) == len(usual) and accepts_value(device, identifier, raw)):
            raise UnreadableMemory(f"{device.mac} cannot have kept this value of {quote_input(identifier)}")


def _version_fits(text: str) -> bool:
    try:
        return max(Version.parse(text)[:3]) <= 0xFF  # noqa: PLR2004 # a byte each
    except MalformedVersion:
        return False


def _build_flash(device: SimulatedDevice, t: float) -> _Flash:
    return _Flash(
        mode=device.mode,
        version=str(device.firmware_version),
        battery=device.battery_level(t),
        uptime=t - device.booted_at,
        beats=device.heartbeats,
        seqs=bytes(device.seqs),
        transitions=device.motion_transitions,
        moved=device.seconds_in_motion(t),
        doors=device.door_count,
        values=device.values or {},
        series=[
            _FlashSeries(kind, identifier, [(sample.millis, sample.seq, sample.value) for sample in samples])
            for (kind, identifier), samples in (device.sample_buffers or {}).items()
        ],
    )


def _restore_device(core: EmulatorContext, device: SimulatedDevice, flash: _Flash) -> None:
    device.firmware_version = Version.parse(flash.version)
    device.battery = flash.battery
    device.booted_at = -flash.uptime
    device.heartbeats = flash.beats
    device.seqs = bytearray(flash.seqs)
    device.motion_transitions = flash.transitions
    device.motion_seconds = flash.moved
    device.door_count = flash.doors
    for identifier, raw in flash.values.items():
        if identifier in device.product.default_values:
            device.set_value(identifier, raw)
            apply_value_effects(device, identifier, raw)
    for series in flash.series:
        if series.kind in _SAMPLE_KINDS and series.identifier in (
            *device.product.measurements,
            *device.product.events,
        ):
            kept = device.sample_buffer(series.kind, series.identifier)
            for millis, seq, value in sorted(series.samples, key=lambda sample: sample[:2]):
                kept.add(DeviceSample(millis, seq, value))
    _restore_mode(core, device, flash.mode)


def _restore_mode(core: EmulatorContext, device: SimulatedDevice, mode: DeviceMode) -> None:
    """Put a device where it was. A bootloader does not wait that long (DFU mode)."""
    if mode is device.mode or mode is DeviceMode.DFU or mode not in device.product.modes:
        return
    device.mode = mode
    if mode is DeviceMode.CONNECTED:
        core.mesh.join(device.node, 0.0)
    else:
        core.mesh.leave(device.node)
