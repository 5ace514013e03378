"""State of one simulated device.

A process may hold hundreds of thousands of devices, so rarely used state is None until it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.emulator.simulation.noise import derive_noise_key, exponential_delay, noise_bits, uniform_noise
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.simulation.sample_buffer import SampleBuffer
from meshfleet.protocol.ids import Identifier

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.emulator.simulation.products import ProductProfile
    from meshfleet.emulator.simulation.site import SiteDevice
    from meshfleet.protocol.codes import AccessType, Kind
    from meshfleet.protocol.ids import Mac, Version

LOW_BATTERY_PERCENT: Final = 10
"""A device with a lower battery level in percent than this reports a low battery."""

_BATTERY_LIFE_SECONDS: Final = 5 * 365 * 24 * 3600.0
"""Simulated seconds in which a full battery is drained."""

HEARTBEAT_COPIES: Final = 3
"""Number of copies in which a device sends every heartbeat."""

DOORS_PER_HEARTBEAT: Final = 4
"""Scale of the random number of door openings per heartbeat, which is at most this number minus 1."""

_MEAN_STILL_SECONDS: Final = 600.0
"""Mean simulated seconds without motion until a device starts to move."""
_MEAN_MOVING_SECONDS: Final = 60.0
"""Mean simulated seconds in motion until a device stops."""

_MOTION_TIMEOUT = Identifier("8204")


class ResetCause:
    """Causes of a device restart, with the values of property 8102."""

    POWER_ON: Final = 0
    WATCHDOG: Final = 2
    SOFTWARE: Final = 4


class ThroughputTest(Struct):
    """Running throughput test: `remaining` packets to send, in bursts every `interval` simulated seconds."""

    remaining: int
    interval: float
    burst: int
    priority: int


class SimulatedDevice:
    """Simulated device of a mesh, or the gateway as a device."""

    __slots__ = (
        "access",
        "battery",
        "booted_at",
        "door_count",
        "firmware_version",
        "has_sensor_fault",
        "heartbeats",
        "is_offline",
        "is_reporting",
        "is_silent",
        "mac",
        "mode",
        "motion_changed_at",
        "motion_seconds",
        "motion_transitions",
        "node",
        "noise_key",
        "product",
        "received_copies",
        "received_test_packets",
        "reset_cause",
        "sample_buffers",
        "seqs",
        "throughput_test",
        "update_state",
        "values",
    )

    def __init__(self, site_device: SiteDevice, node: MeshNode, seed: int) -> None:
        self.product: ProductProfile = site_device.product
        self.mac: Mac = site_device.mac
        self.node = node
        self.noise_key = derive_noise_key(seed, site_device.mac)
        self.access: AccessType | None = site_device.access
        self.mode = site_device.mode
        self.firmware_version: Version = self.product.firmware
        self.battery = site_device.battery
        # The device was started up to two months before the simulation.
        self.booted_at = -float(noise_bits(self.noise_key, 4) % 5_000_000)
        self.reset_cause = ResetCause.POWER_ON
        self.heartbeats = 0
        self.received_copies = HEARTBEAT_COPIES
        """Number of copies of the last heartbeat that were received."""
        self.seqs = bytearray(len(self.product.series_index))
        self.values: dict[Identifier, bytes] | None = None
        """Stored properties that differ from the default values; None if there are none."""
        self.sample_buffers: dict[tuple[Kind, Identifier], SampleBuffer] | None = None
        self.motion_transitions = 0
        self.motion_changed_at = 0.0
        """Simulated time at which motion last started or stopped."""
        self.motion_seconds = 0.0
        """Total simulated seconds in motion up to `motion_changed_at`."""
        self.door_count = noise_bits(self.noise_key, 5) % 1000
        self.has_sensor_fault = False
        self.is_silent = False
        self.is_offline = False
        """Whether the device is restarting or its battery is empty."""
        self.is_reporting = False
        self.received_test_packets = 0
        """Number of packets received in throughput tests."""
        self.throughput_test: ThroughputTest | None = None
        self.update_state: bytes | None = None
        """Raw value of firmware-update-state (8120); None if no update was started."""

    @property
    def is_reachable(self) -> bool:
        """Whether the device can receive requests: not if silent, offline, in storage mode or in DFU mode."""
        return not (self.is_silent or self.is_offline or self.mode in (DeviceMode.STORAGE, DeviceMode.DFU))

    @property
    def is_connected(self) -> bool:
        """Whether the device is in connected mode, in which it has or seeks a mesh link."""
        return self.mode is DeviceMode.CONNECTED

    def next_seq(self, kind: Kind, identifier: Identifier | None = None) -> int:
        """Return the next sequence number of a report series: 0 to 255, then 0 again."""
        index = self.product.series_index[kind, identifier]
        seq = self.seqs[index]
        self.seqs[index] = (seq + 1) & 0xFF
        return seq

    def value(self, identifier: Identifier) -> bytes:
        """Return the raw value of a stored property."""
        if self.values is not None and identifier in self.values:
            return self.values[identifier]
        return self.product.default_values[identifier]

    def set_value(self, identifier: Identifier, raw: bytes) -> None:
        """Set the raw value of a stored property."""
        if self.values is None:
            self.values = {}
        self.values[identifier] = raw

    def sample_buffer(self, kind: Kind, identifier: Identifier) -> SampleBuffer:
        """Return the buffer for unacknowledged samples of a kind and identifier; create it if needed."""
        if self.sample_buffers is None:
            self.sample_buffers = {}
        buffer = self.sample_buffers.get((kind, identifier))
        if buffer is None:
            buffer = self.sample_buffers[kind, identifier] = SampleBuffer()
        return buffer

    # State that depends on the time

    def battery_level(self, sim_time: float) -> int:
        """Return the battery level in percent at a simulated time. A battery drains in five years."""
        if not self.product.has_battery:
            return 100
        return max(0, self.battery - int(100.0 * sim_time / _BATTERY_LIFE_SECONDS))

    def heartbeat_status(self, sim_time: float) -> int:
        """Return the status in a heartbeat: 2 for sensor fault, 1 for low battery, 0 for OK (gateway-29)."""
        if self.has_sensor_fault:
            return 2
        return int(self.product.has_battery and self.battery_level(sim_time) < LOW_BATTERY_PERCENT)

    @property
    def is_moving(self) -> bool:
        """Whether the device moves or detects motion."""
        return self.motion_transitions % 2 == 1

    def seconds_in_motion(self, sim_time: float) -> float:
        """Return the total simulated seconds in motion up to a simulated time."""
        return self.motion_seconds + (max(0.0, sim_time - self.motion_changed_at) if self.is_moving else 0.0)

    def next_motion_delay(self) -> float:
        """Return the simulated seconds from the last start or end of motion to the next."""
        if not self.is_moving:
            return max(
                exponential_delay(self.noise_key ^ 0xA0, self.motion_transitions, _MEAN_STILL_SECONDS), 1.0
            )
        has_timeout = _MOTION_TIMEOUT in self.product.default_values
        timeout = int.from_bytes(self.value(_MOTION_TIMEOUT), "big") if has_timeout else 60
        return max(
            exponential_delay(self.noise_key ^ 0xA0, self.motion_transitions, _MEAN_MOVING_SECONDS) + timeout,
            1.0,
        )

    def toggle_motion(self, sim_time: float) -> None:
        """Start or stop the motion of the device."""
        self.motion_seconds = self.seconds_in_motion(sim_time)
        self.motion_changed_at = sim_time
        self.motion_transitions += 1

    def is_asleep(self, sim_time: float) -> bool:
        """Return whether the device saves power because it has not moved for some time (gateway-27)."""
        if (
            Identifier("9808") not in self.product.default_values
            or not self.product.motion_code
            or self.is_moving
        ):
            return False
        return sim_time - self.motion_changed_at > int.from_bytes(self.value(Identifier("9808")), "big")

    def seconds_to_advertisement(self, sim_time: float, n: int) -> float:
        """Return the simulated seconds until the next advertisement, to which an extender can connect.

        The delay is random, but always equal for the same count `n`.
        """
        interval = int.from_bytes(self._get_advertising_settings(sim_time)[:2], "big") / 1000.0
        return interval * uniform_noise(self.noise_key, n)

    def _get_advertising_settings(self, sim_time: float) -> bytes:
        """Return the raw value of the property that sets the advertising interval at a simulated time."""
        for alarm, interval in (("9800", "9805"), ("9801", "9806")):
            if Identifier(alarm) in self.product.default_values and any(self.value(Identifier(alarm))):
                return (
                    self.value(Identifier(interval)) if interval in self.product.default_values else b"\0\xc8"
                )
        mode = Identifier("9807" if self.is_asleep(sim_time) else "9804")
        return self.value(mode) if mode in self.product.default_values else b"\0\xc8"

    def count_new_door_openings(self) -> int:
        """Return the random number of door openings since the last heartbeat."""
        return max(
            0,
            noise_bits(self.noise_key ^ 0xD0, self.heartbeats) % (3 * DOORS_PER_HEARTBEAT)
            - 2 * DOORS_PER_HEARTBEAT,
        )

    def restart(self, sim_time: float, cause: int) -> None:
        """Reset the state that a device restart clears; properties, samples and sequence numbers are kept."""
        self.booted_at = sim_time
        self.reset_cause = cause
        self.throughput_test = None
        self.is_reporting = False
        self.received_test_packets = 0
