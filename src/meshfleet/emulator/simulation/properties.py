"""Property values of simulated devices: stored values, and values computed from the device's state."""

from __future__ import annotations

from hashlib import sha256
from struct import pack
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation.mesh_node import MAX_CHILDREN
from meshfleet.emulator.simulation.radio import DEFAULT_POWER_DBM
from meshfleet.emulator.simulation.sensors import read_sensor
from meshfleet.emulator.simulation.site import derive_public_key
from meshfleet.protocol.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.emulator.simulation.device import SimulatedDevice


# Checks of written values beyond their layout, and the effects of a write on other state.

_MAX_PRESS_MS: Final = 8000
_PRESS_STEP_MS: Final = 100


def accepts_value(device: SimulatedDevice, identifier: Identifier, raw: bytes) -> bool:
    """Return whether a device accepts a raw value for a property. The caller has checked the layout."""
    accepts = _VALUE_CHECKS.get(identifier)
    return accepts is None or accepts(device, raw)


def apply_value_effects(device: SimulatedDevice, identifier: Identifier, raw: bytes) -> None:
    """Apply a written value to the mesh node: 8210 sets the maximum of children, 9802 the transmit power."""
    if effect := _EFFECTS.get(identifier):
        effect(device, raw)


def _accepts_power(device: SimulatedDevice, raw: bytes) -> bool:
    """Return whether the chip of a device supports a transmit power."""
    return int.from_bytes(raw, "big", signed=True) in device.product.chip.value


def _accepts_press_duration(_device: SimulatedDevice, raw: bytes) -> bool:
    millis = int.from_bytes(raw, "big")
    return millis <= _MAX_PRESS_MS and millis % _PRESS_STEP_MS == 0


_VALUE_CHECKS: Final[Mapping[str, Callable[[SimulatedDevice, bytes], bool]]] = {
    "8150": lambda _device, raw: len(raw) == 1,
    "8204": lambda _device, raw: len(raw) == 2,  # noqa: PLR2004 # seconds in two bytes
    "8210": lambda _device, raw: len(raw) == 1 and raw[0] <= MAX_CHILDREN,
    "9802": _accepts_power,
    "9803": _accepts_press_duration,
}


def _set_power(device: SimulatedDevice, raw: bytes) -> None:
    """Set the transmit power of the mesh node of a device."""
    device.node.tx_gain = float(int.from_bytes(raw, "big", signed=True) - DEFAULT_POWER_DBM)


def _set_capacity(device: SimulatedDevice, raw: bytes) -> None:
    """Set the maximum number of children of the mesh node of a device."""
    device.node.capacity = raw[0]


_EFFECTS: Final[Mapping[str, Callable[[SimulatedDevice, bytes], None]]] = {
    "8210": _set_capacity,
    "9802": _set_power,
}


_CHIPS: Final = {"NRF51822": 0x51822, "NRF52832": 0x52832, "NRF52840": 0x52840}

_EMPTY_BATTERY_MV: Final = 2000
"""Voltage of an empty battery in millivolts."""
_FULL_BATTERY_MV: Final = 3000
"""Voltage of a full battery in millivolts."""


def read_property(device: SimulatedDevice, identifier: Identifier, sim_time: float) -> bytes:
    """Return the raw value of a property or sensor of a device at a simulated time."""
    if identifier in device.product.measurements:
        return read_sensor(device, identifier, sim_time)
    if read_state := _STATE_READERS.get(identifier):
        return read_state(device, sim_time)
    return device.value(identifier)


def encode_version(device: SimulatedDevice) -> bytes:
    """Return the firmware version as a raw value: three bytes, and a fourth for a beta version."""
    major, minor, patch, _ = device.firmware_version
    return bytes((major, minor, patch, device.firmware_version.beta))[
        : 4 if device.firmware_version.beta else 3
    ]


def get_model_number(device: SimulatedDevice) -> int:
    """Return the model number of a device as an integer."""
    return int(device.product.model, 16)


def _encode_battery_voltage(device: SimulatedDevice, sim_time: float) -> bytes:
    range_mv = _FULL_BATTERY_MV - _EMPTY_BATTERY_MV
    return pack(">H", _EMPTY_BATTERY_MV + range_mv * device.battery_level(sim_time) // 100)


def _encode_motion(device: SimulatedDevice, _sim_time: float) -> bytes:
    cause = device.product.motion_code if device.is_moving else 0
    return pack(">BIB", cause, device.motion_transitions & 0xFFFFFFFF, 0)


def encode_motion_event(device: SimulatedDevice) -> bytes:
    """Return the raw value of a motion event: property 8810 with the change flag set."""
    return _encode_motion(device, 0.0)[:-1] + b"\x01"


def _encode_production_info(device: SimulatedDevice, _sim_time: float) -> bytes:
    major, minor, patch, _ = device.firmware_version
    entries = (
        bytes.fromhex(device.mac),
        pack(">H", get_model_number(device)),
        bytes((device.product.variant,)),
        bytes((major, minor, patch, device.firmware_version.beta)),
        derive_public_key(device.mac),
        pack(">I", _CHIPS[device.product.chip.name]),
        pack(">I", 0x41414230),
        pack(">I", 0x2000),
    )
    return b"".join(bytes((key, len(entry))) + entry for key, entry in enumerate(entries))


def _get_update_state(device: SimulatedDevice, _sim_time: float) -> bytes:
    return device.update_state or IDLE_UPDATE_STATE


IDLE_UPDATE_STATE: Final = bytes(9)
"""Raw value of the property firmware-update-state (8120) before any update."""

_BROADCAST_IDLE: Final = IDLE_UPDATE_STATE + bytes(4)
_NORDIC_IDLE: Final = IDLE_UPDATE_STATE + bytes(6)

_STATE_READERS: Final[Mapping[str, Callable[[SimulatedDevice, float], bytes]]] = {
    "8000": lambda device, _: pack(">H", get_model_number(device)),
    "8001": lambda device, _: encode_version(device),
    "8002": lambda device, _: bytes(device.product.hardware),
    "8003": lambda device, _: bytes.fromhex(device.mac),
    "8005": _encode_production_info,
    "8006": lambda device, _: sha256(device.mac.encode()).digest()[:4],
    "8007": lambda device, _: bytes((device.product.variant,)),
    "8008": lambda device, _: derive_public_key(device.mac),
    "8020": lambda *_: b"\x02",
    "8100": lambda device, sim_time: bytes((device.battery_level(sim_time),)),
    "8101": lambda device, sim_time: pack(">I", min(int(sim_time - device.booted_at), 0xFFFFFFFF)),
    "8102": lambda device, _: bytes((device.reset_cause,)),
    "8103": _encode_battery_voltage,
    "8110": lambda device, _: bytes((device.mode,)),
    "8120": _get_update_state,
    "8125": lambda device, _: (device.values or {}).get(Identifier("8125"), _BROADCAST_IDLE),
    "8130": lambda device, _: (device.values or {}).get(Identifier("8130"), _NORDIC_IDLE),
    "8305": lambda device, _: pack(">I", device.received_test_packets),
    "8810": _encode_motion,
    "8813": lambda device, sim_time: read_sensor(device, Identifier("8813"), sim_time),
    "8831": lambda device, _: pack(">I", device.door_count & 0xFFFFFFFF),
}
"""Functions that compute raw property values from the state of a device, by identifier."""
