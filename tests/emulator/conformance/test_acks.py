"""Acks: deletion and backfill of samples, and acks at versions that do not support them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.emulator.conformance.payload_shapes import FROM_GATEWAY, ON_BEHALF_OF_DEVICE, check_response
from tests.emulator.conformance.site import OUTER_SENSOR, REPORTING, TRACKER, WRITTEN
from tests.emulator.conformance.variants import DECODED, NEWEST, OLDEST, VARIANTS, run_at
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.emulator.conformance.gateway_process import GatewayProcess
    from tests.emulator.conformance.recorder import RecordedMessage

WITH_ACKS = [each for each in VARIANTS if each.version == "2.4.0"]
WITHOUT_ACKS = [each for each in VARIANTS if each.version != "2.4.0"]
ACKNOWLEDGED = "2026-11-15T10:07:21.240Z"
SAFE_SAMPLE_COUNT = 300
"""Number of samples for which a device certainly has space."""
SUFFIXES = ["ack/8800", "ack-decoded/temperature"]


class Series:
    """Samples of a device and identifier, as they are published, and published again."""

    def __init__(self, gateway: GatewayProcess, device: str, kind: str, *names: str) -> None:
        self._gateway = gateway
        self.device = device
        self._names = names
        self._topic = gateway.kind(kind), gateway.identifier(*names)

    def wait_for_times(self, number: int, *, after: int = 0) -> list[str]:
        """Wait for a number of samples. Return their times."""
        messages = self._gateway.recorder.wait_for_many(number, self.contains, after=after)
        return [message.payload["time"] for message in messages]

    @property
    def received_times(self) -> list[str]:
        """Times of all samples received up to now."""
        return [
            message.payload["time"]
            for message in self._gateway.recorder.messages_since()
            if self.contains(message)
        ]

    def ack(self, operation: str, **payload: Any) -> int:
        """Send an ack and wait until the device has applied it. Return the mark before it."""
        identifier = self._names[operation == "ack-decoded"]
        mark = self._gateway.recorder.mark
        self._gateway.send(self.device, f"{operation}/{identifier}", json.dumps(payload).encode())
        self._gateway.wait_until_idle(self.device)
        return mark

    def find_repeated(self, *, after: int) -> list[RecordedMessage]:
        """Return the samples after a mark that were already received before it."""
        data_before = {
            message.data
            for message in self._gateway.recorder.messages_since()[:after]
            if self.contains(message)
        }
        return [
            message
            for message in self._gateway.recorder.messages_since(after)
            if self.contains(message) and message.data in data_before
        ]

    def wait_for_backfill(self, until: str, *, after: int) -> list[str]:
        """Wait for a repeated sample. Return the times of all samples repeated after a mark."""
        self._gateway.recorder.wait_for(
            lambda message: self.contains(message) and message.payload["time"] == until, after=after
        )
        return [message.payload["time"] for message in self.find_repeated(after=after)]

    def contains(self, message: RecordedMessage) -> bool:
        """Return whether a message is a sample of this series."""
        return message.is_report(self.device, *self._topic)


@run_at(NEWEST, DECODED, of=WITH_ACKS)
@pytest.mark.rule("ack-1", "ack-2", "ack-3", "ack-5", "ack-18", "ack-20")
@each_row(
    ("operation", "names"),
    [("ack", ("8801", "pressure")), ("ack-decoded", ("8802", "humidity"))],
)
def test_type_1_publishes_all_older_samples_again_newest_first(
    gateway: GatewayProcess, operation: str, names: tuple[str, str]
) -> None:
    series = Series(gateway, TRACKER, "measurement", *names)
    newest = series.wait_for_times(4, after=gateway.recorder.mark)[-1]
    older = [time for time in series.received_times[-SAFE_SAMPLE_COUNT:] if time < newest]
    repeated_times = series.wait_for_backfill(older[0], after=series.ack(operation, time=newest, type=1))
    assert repeated_times[: len(older)] == older[::-1]


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-19", "ack-5", "ack-18")
@each_row("operation", ["ack", "ack-decoded"])
def test_type_0_deletes_one_sample_which_no_backfill_contains(
    gateway: GatewayProcess, operation: str
) -> None:
    device = {"ack": WRITTEN, "ack-decoded": TRACKER}[operation]
    series = Series(gateway, device, "measurement", "8800", "temperature")
    first, second, third, fourth = series.wait_for_times(4, after=gateway.recorder.mark)
    assert series.find_repeated(after=series.ack(operation, time=second, type=0)) == []
    after = series.ack(operation, time=fourth, type=1, priority=4)
    assert series.wait_for_backfill(first, after=after)[:2] == [third, first]


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-23", "ack-5")
@each_row(
    ("operation", "names"),
    [("ack", ("8803", "light-intensity")), ("ack-decoded", ("8813", "total-minutes-in-motion"))],
)
def test_type_2_erases_all_samples(gateway: GatewayProcess, operation: str, names: tuple[str, str]) -> None:
    series = Series(gateway, OUTER_SENSOR, "measurement", *names)
    old = series.wait_for_times(3)
    after = series.ack(operation, time=old[-1], type=2)
    mark = gateway.recorder.mark
    first_new, newest = series.wait_for_times(2, after=mark)
    repeated_times = series.wait_for_backfill(first_new, after=series.ack(operation, time=newest, type=1))
    assert first_new in repeated_times
    assert not set(repeated_times) & set(old)
    assert [message for message in series.find_repeated(after=after) if message.payload["time"] in old] == []


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-1", "ack-20", "gateway-27")
@each_row("operation", ["ack", "ack-decoded"])
def test_events_are_acknowledged_like_measurements(gateway: GatewayProcess, operation: str) -> None:
    device = {"ack": TRACKER, "ack-decoded": REPORTING}[operation]
    series = Series(gateway, device, "event", "8810", "motion")
    first, second = series.wait_for_times(2)
    after = series.ack(operation, time=second, type=1)
    assert series.wait_for_backfill(first, after=after) == [first]


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-4", "ack-2", "ack-3", "ack-5")
@each_row(
    "invalid_fields",
    [
        {"time": None},
        {"type": None},
        {"type": 3},
        {"type": -1},
        {"type": "1"},
        {"time": "yesterday"},
        {"time": 1_790_000_000_000},
        {"priority": 5},
        {"priority": "2"},
        {"id": 7},
    ],
)
@each_row("operation", ["ack", "ack-decoded"])
def test_a_malformed_ack_has_no_effect_and_no_response(
    gateway: GatewayProcess, operation: str, invalid_fields: dict[str, Any]
) -> None:
    series = Series(gateway, REPORTING, "measurement", "8803", "light-intensity")
    series.wait_for_times(3)
    newest = series.received_times[-1]
    valid = {"time": newest, "type": 1, "priority": 2, "id": "an id"}
    payload = {name: value for name, value in {**valid, **invalid_fields}.items() if value is not None}
    after = series.ack(operation, **payload)
    assert series.find_repeated(after=after) == []
    suffix = {"ack": "ack/8803", "ack-decoded": "ack-decoded/light-intensity"}[operation]
    assert gateway.responses(REPORTING, suffix, after=after) == []


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-5")
@each_row("payload", [b"", b"{}", b"{", b"[]", b"\xff"])
@each_row("suffix", [*SUFFIXES, "ack/xyz", "ack", "ack-decoded/no-such-name"])
def test_an_ack_never_has_a_response_whatever_its_payload(
    gateway: GatewayProcess, suffix: str, payload: bytes
) -> None:
    mark = gateway.recorder.mark
    for target in (gateway.mac, TRACKER):
        gateway.send(target, suffix, payload)
        gateway.wait_until_idle(target)
        assert gateway.responses(target, suffix, after=mark) == []


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-4", "ack-5", "ack-19")
def test_acks_are_accepted_at_every_priority_and_have_no_response(gateway: GatewayProcess) -> None:
    series = Series(gateway, REPORTING, "measurement", "8813", "total-minutes-in-motion")
    mark = gateway.recorder.mark
    first, *others, newest = series.wait_for_times(8, after=mark)
    priorities = [{"priority": priority} for priority in range(5)]
    for sample, priority in zip(others, [*priorities, {}], strict=True):
        series.ack("ack", time=sample, type=0, id="an id", **priority)
    assert series.wait_for_backfill(first, after=series.ack("ack", time=newest, type=1))[0] == first
    assert gateway.responses(REPORTING, "ack/8813", after=mark) == []


@run_at(OLDEST, of=WITHOUT_ACKS)
@pytest.mark.rule("ack-6", "response-24", "version-8", "version-16")
@each_row("suffix", SUFFIXES)
@each_row("is_own", [True, False])
@each_row("given", [{"time": ACKNOWLEDGED, "type": 0}, {}])
def test_before_2_4_0_acks_are_unknown_operations(
    gateway: GatewayProcess, suffix: str, given: dict[str, Any], *, is_own: bool
) -> None:
    response = gateway.request(gateway.mac if is_own else TRACKER, suffix, **given)
    assert check_response(gateway, response, FROM_GATEWAY if is_own else ON_BEHALF_OF_DEVICE, status=3) == {}
