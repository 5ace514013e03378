"""Acks: what becomes of samples that somebody has in safety, and of acks where there are none."""

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
ROOM = 300
"""A device has room for more samples than that."""
SUFFIXES = ["ack/8800", "ack-decoded/temperature"]


class Series:
    """The samples of a device under an identifier, as they come and come again."""

    def __init__(self, gateway: GatewayProcess, device: str, kind: str, *names: str) -> None:
        self._gateway = gateway
        self.device = device
        self._names = names
        self._topic = gateway.kind(kind), gateway.identifier(*names)

    def several(self, number: int, *, after: int = 0) -> list[str]:
        """The times of the next samples."""
        found = self._gateway.recorder.wait_for_many(number, self.holds, after=after)
        return [heard.payload["time"] for heard in found]

    @property
    def known(self) -> list[str]:
        """The times of all that have come up to now."""
        return [
            heard.payload["time"] for heard in self._gateway.recorder.messages_since() if self.holds(heard)
        ]

    def ack(self, operation: str, **payload: Any) -> int:
        """Acknowledge a sample, and wait until the device has worked on that; gives the mark before it."""
        identifier = self._names[operation == "ack-decoded"]
        mark = self._gateway.recorder.mark
        self._gateway.send(self.device, f"{operation}/{identifier}", json.dumps(payload).encode())
        self._gateway.wait_until_idle(self.device)
        return mark

    def again(self, *, after: int) -> list[RecordedMessage]:
        """Samples behind a mark that had come before it."""
        before = {
            heard.data for heard in self._gateway.recorder.messages_since()[:after] if self.holds(heard)
        }
        return [
            heard
            for heard in self._gateway.recorder.messages_since(after)
            if self.holds(heard) and heard.data in before
        ]

    def backfilled(self, until: str, *, after: int) -> list[str]:
        """The times of samples that come again behind a mark, up to the one with a time."""
        self._gateway.recorder.wait_for(
            lambda heard: self.holds(heard) and heard.payload["time"] == until, after=after
        )
        return [heard.payload["time"] for heard in self.again(after=after)]

    def holds(self, heard: RecordedMessage) -> bool:
        """Whether a message is a sample of this series."""
        return heard.is_report(self.device, *self._topic)


@run_at(NEWEST, DECODED, of=WITH_ACKS)
@pytest.mark.rule("ack-1", "ack-2", "ack-3", "ack-5", "ack-18", "ack-20")
@each_row(
    ("operation", "names"),
    [("ack", ("8801", "pressure")), ("ack-decoded", ("8802", "humidity"))],
)
def test_type_1_brings_all_older_samples_again_newest_first(
    gateway: GatewayProcess, operation: str, names: tuple[str, str]
) -> None:
    series = Series(gateway, TRACKER, "measurement", *names)
    newest = series.several(4, after=gateway.recorder.mark)[-1]
    older = [each for each in series.known[-ROOM:] if each < newest]
    again = series.backfilled(older[0], after=series.ack(operation, time=newest, type=1))
    assert again[: len(older)] == older[::-1]


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-19", "ack-5", "ack-18")
@each_row("operation", ["ack", "ack-decoded"])
def test_type_0_removes_one_sample_which_no_backfill_brings(gateway: GatewayProcess, operation: str) -> None:
    device = {"ack": WRITTEN, "ack-decoded": TRACKER}[operation]
    series = Series(gateway, device, "measurement", "8800", "temperature")
    first, second, third, fourth = series.several(4, after=gateway.recorder.mark)
    assert series.again(after=series.ack(operation, time=second, type=0)) == []
    after = series.ack(operation, time=fourth, type=1, priority=4)
    assert series.backfilled(first, after=after)[:2] == [third, first]


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-23", "ack-5")
@each_row(
    ("operation", "names"),
    [("ack", ("8803", "light-intensity")), ("ack-decoded", ("8813", "total-minutes-in-motion"))],
)
def test_type_2_erases_all_samples(gateway: GatewayProcess, operation: str, names: tuple[str, str]) -> None:
    series = Series(gateway, OUTER_SENSOR, "measurement", *names)
    old = series.several(3)
    after = series.ack(operation, time=old[-1], type=2)
    mark = gateway.recorder.mark
    young, newest = series.several(2, after=mark)
    again = series.backfilled(young, after=series.ack(operation, time=newest, type=1))
    assert young in again
    assert not set(again) & set(old)
    assert [heard for heard in series.again(after=after) if heard.payload["time"] in old] == []


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-1", "ack-20", "gateway-27")
@each_row("operation", ["ack", "ack-decoded"])
def test_events_are_acknowledged_like_measurements(gateway: GatewayProcess, operation: str) -> None:
    device = {"ack": TRACKER, "ack-decoded": REPORTING}[operation]
    series = Series(gateway, device, "event", "8810", "motion")
    first, second = series.several(2)
    after = series.ack(operation, time=second, type=1)
    assert series.backfilled(first, after=after) == [first]


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-4", "ack-2", "ack-3", "ack-5")
@each_row(
    "wrong",
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
def test_a_malformed_ack_has_no_effect_and_no_answer(
    gateway: GatewayProcess, operation: str, wrong: dict[str, Any]
) -> None:
    series = Series(gateway, REPORTING, "measurement", "8803", "light-intensity")
    series.several(3)
    newest = series.known[-1]
    right = {"time": newest, "type": 1, "priority": 2, "id": "an id"}
    given = {name: value for name, value in {**right, **wrong}.items() if value is not None}
    after = series.ack(operation, **given)
    assert series.again(after=after) == []
    suffix = {"ack": "ack/8803", "ack-decoded": "ack-decoded/light-intensity"}[operation]
    assert gateway.responses(REPORTING, suffix, after=after) == []


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-5")
@each_row("payload", [b"", b"{}", b"{", b"[]", b"\xff"])
@each_row("suffix", [*SUFFIXES, "ack/xyz", "ack", "ack-decoded/no-such-name"])
def test_whatever_comes_as_an_ack_is_not_answered(
    gateway: GatewayProcess, suffix: str, payload: bytes
) -> None:
    mark = gateway.recorder.mark
    for target in (gateway.mac, TRACKER):
        gateway.send(target, suffix, payload)
        gateway.wait_until_idle(target)
        assert gateway.responses(target, suffix, after=mark) == []


@run_at(NEWEST, of=WITH_ACKS)
@pytest.mark.rule("ack-4", "ack-5", "ack-19")
def test_acks_are_taken_at_every_priority_and_not_answered(gateway: GatewayProcess) -> None:
    series = Series(gateway, REPORTING, "measurement", "8813", "total-minutes-in-motion")
    mark = gateway.recorder.mark
    first, *others, newest = series.several(8, after=mark)
    priorities = [{"priority": each} for each in range(5)]
    for sample, priority in zip(others, [*priorities, {}], strict=True):
        series.ack("ack", time=sample, type=0, id="an id", **priority)
    assert series.backfilled(first, after=series.ack("ack", time=newest, type=1))[0] == first
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
