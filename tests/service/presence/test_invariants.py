"""The state of presence is consistent and bounded after any sequence of operations."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meshfleet.service.presence.store import ConnectedDevice, PresenceSnapshot
from tests.examples import examples
from tests.service.ingest.messages import dfu, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import HOUR, MINUTE, SECOND, PresenceHarness

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.codec.packets import Publish

GATEWAYS = ["02005e000001", "02005e000002"]
DEVICES = ["c0ffee000010", "c0ffee000011", *GATEWAYS]

gateways, devices = st.sampled_from(GATEWAYS), st.sampled_from(DEVICES)
report_builders = st.sampled_from([heartbeat, temperature, dfu])
ages = st.sampled_from([0, 0, 0, 0, 0, 59, 60, 3600, -59, -3600])


class PresenceModel(RuleBasedStateMachine):
    """Operations in any order, compared with a model of the connected devices."""

    harness: PresenceHarness

    @initialize(
        external_broker=st.booleans(), snapshot_rows=st.lists(st.tuples(devices, st.none() | gateways))
    )
    def start(self, external_broker: bool, snapshot_rows: list[tuple[str, str | None]]) -> None:  # noqa: FBT001 # drawn by Hypothesis
        rows = {
            device: ConnectedDevice(mac_to_number(device), mac_to_number(gateway) if gateway else None, None)
            for device, gateway in snapshot_rows
        }
        snapshot = PresenceSnapshot({mac_to_number(each) for each in GATEWAYS[:1]}, list(rows.values()))
        self.harness = PresenceHarness(external_broker=external_broker, snapshot=snapshot)
        self.external_broker = external_broker
        self.connected_devices = dict.fromkeys((mac_to_number(each) for each in rows), True)
        """Connection state by device according to the changes so far."""
        self.connected_gateways: set[str] = set()

    @rule(reports=st.lists(st.tuples(report_builders, devices, gateways, ages), min_size=1, max_size=6))
    def report(self, reports: list[tuple[Callable[..., Publish], str, str, int]]) -> None:
        now = self.harness.now
        self.harness.commit(
            *(
                build(now - age * SECOND, device=device, gateway=gateway)
                for build, device, gateway, age in reports
            )
        )

    @rule(gateway=gateways)
    def toggle_connection(self, gateway: str) -> None:
        if self.external_broker:
            return
        if gateway in self.connected_gateways:
            self.harness.disconnect(gateway)
        else:
            self.harness.connect(gateway)
        self.connected_gateways ^= {gateway}

    @rule(seconds=st.sampled_from([1, 2, 10, 29, 61, 179, 181, 3601, -1, -3600]))
    def advance(self, seconds: int) -> None:
        self.harness.now += seconds * SECOND

    @rule(offset=st.sampled_from([-HOUR, -MINUTE, 0, HOUR]), gateway=gateways)
    def measure(self, offset: int, gateway: str) -> None:
        self.harness.clocks.measure_offset(
            mac_to_number(gateway), self.harness.now, self.harness.now, self.harness.now + offset
        )

    @rule(device=devices)
    def remove(self, device: str) -> None:
        self.harness.tracker.remove_device(mac_to_number(device))
        self.connected_devices.pop(mac_to_number(device), None)

    @rule()
    def collect_changes(self) -> None:
        changes = self.harness.collect_changes()
        assert max(Counter(each.device for each in changes).values(), default=1) == 1, (
            "a device changed twice"
        )
        for change in changes:
            if change.device not in map(mac_to_number, GATEWAYS):
                assert self.connected_devices.get(change.device, False) is not change.connected, (
                    "the change repeats the known state"
                )
            self.connected_devices[change.device] = change.connected

    @rule(seconds=st.sampled_from([5, 100, 400]))
    def advance_with_flushes(self, seconds: int) -> None:
        for _ in range(seconds // 25):
            self.harness.now += 25 * SECOND
            self.collect_changes()

    @invariant()
    def check_agreement(self) -> None:
        if not hasattr(self, "harness"):
            return
        tracker = self.harness.tracker
        last_seen_by_device, devices_by_gateway = tracker._last_seen.devices, tracker._last_seen._by_gateway  # noqa: SLF001 # internal state under test
        assert {(device, each.gateway) for device, each in last_seen_by_device.items()} == {
            (device, gateway) for gateway, devices in devices_by_gateway.items() for device in devices
        }
        assert all(devices_by_gateway.values())
        assert last_seen_by_device.keys() <= {mac_to_number(each) for each in DEVICES}
        for device in DEVICES:
            assert self.harness.is_connected(device) is self.connected_devices.get(
                mac_to_number(device), False
            )

    @invariant()
    def check_timers(self) -> None:
        if not hasattr(self, "harness"):
            return
        tracker = self.harness.tracker
        wheel = tracker._timer_wheel.slots  # noqa: SLF001 # internal state under test
        for device, last_seen in tracker._last_seen.devices.items():  # noqa: SLF001 # internal state under test
            if last_seen.connected and (self.external_broker or device not in tracker._gateways):  # noqa: SLF001 # internal state under test
                assert device in wheel[last_seen.due_slot]
        assert sum(map(len, wheel.values())) < 2000


TestPresence = PresenceModel.TestCase
TestPresence.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestPresence = pytest.mark.rule("rest-51")(TestPresence)
