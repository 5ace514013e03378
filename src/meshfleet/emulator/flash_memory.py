"""Saves and restores the flash memory of simulated devices, so that it survives a restart of the emulator.

The flash memory holds unacknowledged samples, sequence numbers, written properties, device modes and firmware
versions. All other state of the simulation starts from its initial values.
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


class _SeriesRecord(Struct):
    """Saved samples of one kind and identifier of a device, which are not acknowledged yet."""

    kind: Kind
    identifier: Identifier
    samples: list[tuple[_Millis, _Seq, _Raw | None]]


class _DeviceRecord(Struct, rename="camel"):
    """Saved flash memory of one simulated device."""

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
    series: list[_SeriesRecord]


class _MemoryFile(Struct):
    """Saved flash memory of all devices of one gateway."""

    gateway: Mac
    devices: dict[Mac, _DeviceRecord]


def save_devices(context: EmulatorContext) -> bytes:
    """Return the flash memory of all devices of a gateway as JSON."""
    devices = {
        mac: _build_device_record(device, context.scheduler.now) for mac, device in context.devices.items()
    }
    return msgspec.json.encode(_MemoryFile(context.settings.mac, devices))


def restore_devices(context: EmulatorContext, data: bytes) -> None:
    """Restore the flash memory of devices from JSON. Devices missing in the JSON keep their initial state.

    Raise `UnreadableMemory` if the JSON is invalid or belongs to another gateway. Then no device is changed.
    """
    try:
        memory = get_decoder(_MemoryFile).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UnreadableMemory(str(exc)) from exc
    if memory.gateway != context.settings.mac:
        raise UnreadableMemory(f"the memory belongs to another gateway, {memory.gateway}")
    loaded = [
        (context.devices[mac], record) for mac, record in memory.devices.items() if mac in context.devices
    ]
    for device, record in loaded:
        _check_record(device, record)
    for device, record in loaded:
        _restore_device(context, device, record)


def _check_record(device: SimulatedDevice, record: _DeviceRecord) -> None:
    """Raise `UnreadableMemory` if a saved record does not fit the device."""
    if len(record.seqs) != len(device.seqs):
        raise UnreadableMemory(
            f"{device.mac} has {len(device.seqs)} sequence numbers, the memory has {len(record.seqs)}"
        )
    if not _is_valid_version(record.version):
        raise UnreadableMemory(f"{device.mac} has an invalid version {quote_input(record.version)}")
    for identifier, raw in record.values.items():
        default = device.product.default_values.get(identifier)
        if default is not None and not (len(raw) == len(default) and accepts_value(device, identifier, raw)):
            raise UnreadableMemory(f"{device.mac} has an invalid value of {quote_input(identifier)}")


def _is_valid_version(text: str) -> bool:
    try:
        return max(Version.parse(text)[:3]) <= 0xFF  # noqa: PLR2004 # one byte each
    except MalformedVersion:
        return False


def _build_device_record(device: SimulatedDevice, sim_time: float) -> _DeviceRecord:
    """Return the flash memory of a device at a simulated time."""
    return _DeviceRecord(
        mode=device.mode,
        version=str(device.firmware_version),
        battery=device.battery_level(sim_time),
        uptime=sim_time - device.booted_at,
        beats=device.heartbeats,
        seqs=bytes(device.seqs),
        transitions=device.motion_transitions,
        moved=device.seconds_in_motion(sim_time),
        doors=device.door_count,
        values=device.values or {},
        series=[
            _SeriesRecord(kind, identifier, [(sample.millis, sample.seq, sample.value) for sample in samples])
            for (kind, identifier), samples in (device.sample_buffers or {}).items()
        ],
    )


def _restore_device(context: EmulatorContext, device: SimulatedDevice, record: _DeviceRecord) -> None:
    """Set the state of a device from its saved flash memory."""
    device.firmware_version = Version.parse(record.version)
    device.battery = record.battery
    device.booted_at = -record.uptime
    device.heartbeats = record.beats
    device.seqs = bytearray(record.seqs)
    device.motion_transitions = record.transitions
    device.motion_seconds = record.moved
    device.door_count = record.doors
    for identifier, raw in record.values.items():
        if identifier in device.product.default_values:
            device.set_value(identifier, raw)
            apply_value_effects(device, identifier, raw)
    for series in record.series:
        if series.kind in _SAMPLE_KINDS and series.identifier in (
            *device.product.measurements,
            *device.product.events,
        ):
            buffer = device.sample_buffer(series.kind, series.identifier)
            for millis, seq, value in sorted(series.samples, key=lambda sample: sample[:2]):
                buffer.add(DeviceSample(millis, seq, value))
    _restore_mode(context, device, record.mode)


def _restore_mode(context: EmulatorContext, device: SimulatedDevice, mode: DeviceMode) -> None:
    """Restore the saved mode of a device. Ignore DFU mode, which the bootloader leaves after a timeout."""
    if mode is device.mode or mode is DeviceMode.DFU or mode not in device.product.modes:
        return
    device.mode = mode
    if mode is DeviceMode.CONNECTED:
        context.mesh.join(device.node, 0.0)
    else:
        context.mesh.leave(device.node)
