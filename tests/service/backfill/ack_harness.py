"""Ingest with acknowledgements behind it, a clock that the test moves, and all that gateways would hear."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.service.backfill import store
from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.backfill.gap_check import check_due_gaps
from meshfleet.service.backfill.series import complete_up_to
from tests.eventually import eventually_async
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, format_time, mac_to_number, temperature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.backfill.series import SeriesKey, SeriesState
    from tests.service.ingest.ingest_harness import IngestHarness

TEMPERATURE: SeriesKey = (mac_to_number(D), 1, 0x8800)
"""The series that most tests are about."""

_LOOKS = 100
"""More than it ever takes until no hole is due."""


class Ack(NamedTuple):
    """What a gateway hears."""

    topic: str
    time: str
    type: int


class RecordingTransport:
    """The carrier: it keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Publish] = []

    def send(self, messages: Sequence[Publish]) -> None:
        """See `Carrier`."""
        self.sent += messages

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> None:
        """Nobody says anything."""

    def connected_gateways(self) -> None:
        """Nobody knows who is there."""

    def connection_number(self, gateway: str) -> None:
        """See `gateways`."""

    def last_connection_number(self, gateway: str) -> None:
        """See `gateways`."""

    async def send_urgent(self, message: Publish) -> None:
        """See `Carrier`."""

    @property
    def unavailable_reason(self) -> None:
        """See `Carrier`."""


class AckHarness:
    """Two gateways that take acknowledgements, and a ledger of what they bring."""

    def __init__(self, intake: IngestHarness) -> None:
        self.ingest_harness = intake
        self.transport = RecordingTransport()
        self.acknowledger = self._start()

    def _start(self, prefix: str = "") -> SampleAcknowledger:
        acks = SampleAcknowledger(self.transport, prefix=prefix, now=self.ingest_harness.now)
        self.ingest_harness.ingest.acking_gateways = {mac_to_number(A), mac_to_number(B)}
        self.ingest_harness.ingest.subscribe(acks)
        return acks

    async def restart(self, *, after: int = SECOND) -> None:
        """Be killed, and start again after so many milliseconds."""
        self.ingest_harness.now += after
        await self.ingest_harness.restart()
        self.acknowledger = self._start()
        self.acknowledger.restore(self.load_series())

    async def commit(self, *messages: Publish) -> list[Ack]:
        """Let messages come as one batch; gives how they are acknowledged."""
        self.transport.sent.clear()
        await self.ingest_harness.commit(*messages)
        await eventually_async(lambda: not self.acknowledger.has_backlog, "the last acknowledgement")
        return [_ack(each) for each in self.transport.sent]

    async def commit_samples(self, *places: int, gateway: str = A, device: str = D) -> list[int]:
        """Let samples come that are made a minute apart and counted; gives the types of their acks.

        It is the moment of the newest.
        """
        self.ingest_harness.now = max(self.ingest_harness.now, sample_time(max(places)))
        messages = [
            temperature(sample_time(each), gateway=gateway, device=device, seq=each % 256) for each in places
        ]
        return [ack.type for ack in await self.commit(*messages)]

    async def check_gaps(self) -> None:
        """Let a while pass, and look at all holes that are due."""
        self.ingest_harness.now += 11 * SECOND
        for _ in range(_LOOKS):
            before = self.gaps
            await check_due_gaps(
                self.acknowledger, self.ingest_harness.store, lambda: self.ingest_harness.now
            )
            if self.gaps == before:
                return
        raise AssertionError("it does not end")

    @property
    def series(self) -> SeriesState:
        """The series that most tests are about."""
        return self.acknowledger.series[TEMPERATURE]

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Where something is missing in it, by the places of samples."""
        return [(sample_index(hole.since), sample_index(hole.until)) for hole in self.series.gaps or ()]

    @property
    def complete_up_to(self) -> float | None:
        """The place of the sample up to which nothing is missing."""
        until = complete_up_to([self.series], self.ingest_harness.now)
        return None if until is None else sample_index(until)

    def load_series(self) -> dict[SeriesKey, SeriesState]:
        """What the database knows."""
        return self.ingest_harness.database.read_now(store.load_series)

    def stored_complete_up_to(self) -> float | None:
        """As `complete`, as clients are told."""
        known = self.ingest_harness.database.read_now(store.list_series, mac_to_number(D), 0x8800)
        until = complete_up_to(known, self.ingest_harness.now)
        return None if until is None else sample_index(until)

    def close(self) -> None:
        """Let running work end."""
        self.ingest_harness.close()


def sample_time(place_of_sample: int) -> int:
    """When a sample was made."""
    return NOON + place_of_sample * MINUTE


def sample_index(time: int) -> float:
    """Which sample was made then."""
    return (time - NOON) / MINUTE


def _ack(message: Publish) -> Ack:
    assert (message.qos, message.retain) == (1, False)
    told = json.loads(message.payload)
    ack = Ack(message.topic, told.pop("time"), told.pop("type"))
    assert told == {}
    return ack


def build_ack(end: str, time: int, type_: int = 0, *, gateway: str = A, device: str = D) -> Ack:
    """An ack; `end` is the operation and the identifier."""
    return Ack(f"mt/gateway/{gateway}/request/{device}/{end}", format_time(time), type_)


def to_rows(ledger: dict[SeriesKey, SeriesState]) -> dict[SeriesKey, tuple[object, ...]]:
    """What tables have of a ledger."""
    return {
        key: (
            each.time,
            each.seq,
            each.unfilled,
            [(hole.since, hole.until, hole.found_at, hole.lost_at) for hole in each.gaps or ()],
        )
        for key, each in ledger.items()
    }


async def assert_flushed(ground: AckHarness) -> None:
    """Write down what has changed; then the tables agree with what is remembered."""
    await ground.ingest_harness.ingest.flush()
    assert to_rows(ground.load_series()) == to_rows(ground.acknowledger.series)
    holes = [hole for series in ground.acknowledger.series.values() for hole in series.gaps or ()]
    counted = ground.acknowledger.gap_index
    assert counted.lost == sum(hole.lost_at is not None for hole in holes)
    assert counted.open == len(holes) - counted.lost
    assert counted.unchecked == sum(not each.is_gap_checked for each in ground.acknowledger.series.values())
