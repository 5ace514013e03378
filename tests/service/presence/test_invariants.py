"""Whatever happens in whatever order, what is in memory agrees with itself, and does not grow."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meshfleet.service.presence.store import PresenceSnapshot
from tests.examples import examples
from tests.service.ingest.messages import dfu, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import HOUR, MINUTE, SECOND, PresenceHarness

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.codec.packets import Publish

GATEWAYS = ["02005e000001", "02005e000002"]
DEVICES = ["c0ffee000010", "c0ffee000011", *GATEWAYS]

a_gateway, a_device = st.sampled_from(GATEWAYS), st.sampled_from(DEVICES)
a_kind = st.sampled_from([heartbeat, temperature, dfu])
an_age = st.sampled_from([0, 0, 0, 0, 0, 59, 60, 3600, -59, -3600])


class Anything(RuleBasedStateMachine):
    """Operations in any order."""

    scene: PresenceHarness

    @initialize(by_hearing=st.booleans(), known=st.lists(st.tuples(a_device, st.none() | a_gateway)))
    def start(self, by_hearing: bool, known: list[tuple[str, str | None]]) -> None:  # noqa: FBT001 # an example
        rows = {
            device: (mac_to_number(device), gateway and mac_to_number(gateway), None)
            for device, gateway in known
        }
        before = PresenceSnapshot({mac_to_number(each) for each in GATEWAYS[:1]}, list(rows.values()))  # type: ignore[arg-type] # None stays
        self.scene = PresenceHarness(external_broker=by_hearing, snapshot=before)
        self.by_hearing = by_hearing
        self.here = dict.fromkeys((mac_to_number(each) for each in rows), True)
        """Who is connected by what was said so far."""
        self.connected: set[str] = set()

    @rule(reports=st.lists(st.tuples(a_kind, a_device, a_gateway, an_age), min_size=1, max_size=6))
    def report(self, reports: list[tuple[Callable[..., Publish], str, str, int]]) -> None:
        now = self.scene.now
        self.scene.commit(
            *(
                made(now - age * SECOND, device=device, gateway=gateway)
                for made, device, gateway, age in reports
            )
        )

    @rule(gateway=a_gateway)
    def connect_or_not(self, gateway: str) -> None:
        if self.by_hearing:
            return
        if gateway in self.connected:
            self.scene.disconnect(gateway)
        else:
            self.scene.connect(gateway)
        self.connected ^= {gateway}

    @rule(seconds=st.sampled_from([1, 2, 10, 29, 61, 179, 181, 3601, -1, -3600]))
    def pass_time(self, seconds: int) -> None:
        self.scene.now += seconds * SECOND

    @rule(off=st.sampled_from([-HOUR, -MINUTE, 0, HOUR]), gateway=a_gateway)
    def measure(self, off: int, gateway: str) -> None:
        self.scene.clocks.measure(
            mac_to_number(gateway), self.scene.now, self.scene.now, self.scene.now + off
        )

    @rule(device=a_device)
    def forget(self, device: str) -> None:
        self.scene.tracker.remove(mac_to_number(device))
        self.here.pop(mac_to_number(device), None)

    @rule()
    def look(self) -> None:
        changes = self.scene.collect_changes()
        assert max(Counter(each.device for each in changes).values(), default=1) == 1, "nobody changes twice"
        for change in changes:
            if change.device not in map(mac_to_number, GATEWAYS):
                assert self.here.get(change.device, False) is not change.connected, "it is news"
            self.here[change.device] = change.connected

    @rule(seconds=st.sampled_from([5, 100, 400]))
    def go_on(self, seconds: int) -> None:
        for _ in range(seconds // 25):
            self.scene.now += 25 * SECOND
            self.look()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "scene"):
            return
        presence = self.scene.tracker
        rhythms, behind = presence._last_seen.devices, presence._last_seen._by_gateway  # noqa: SLF001 # what this is about
        assert {(device, each.gateway) for device, each in rhythms.items()} == {
            (device, gateway) for gateway, devices in behind.items() for device in devices
        }
        assert all(behind.values())
        assert rhythms.keys() <= {mac_to_number(each) for each in DEVICES}
        for device in DEVICES:
            assert self.scene.is_connected(device) is self.here.get(mac_to_number(device), False)

    @invariant()
    def watches(self) -> None:
        if not hasattr(self, "scene"):
            return
        presence = self.scene.tracker
        wheel = presence._timer_wheel.slots  # noqa: SLF001 # what this is about
        for device, rhythm in presence._last_seen.devices.items():  # noqa: SLF001 # the same
            if rhythm.connected and (self.by_hearing or device not in presence._gateways):  # noqa: SLF001 # the same
                assert device in wheel[rhythm.due_slot]
        assert sum(map(len, wheel.values())) < 2000


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestAnything = pytest.mark.rule("rest-51")(TestAnything)
