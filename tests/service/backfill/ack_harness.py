"""Ingest pipeline with acknowledgments, a clock set by the test, and the sent acks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.service.backfill import store
from meshfleet.service.backfill.acknowledger import SampleAcknowledger
from meshfleet.service.backfill.gap_check import check_due_gaps
from meshfleet.service.backfill.series import SeriesKey, SeriesState, complete_up_to
from tests.eventually import eventually_async
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND, IngestHarness
from tests.service.ingest.messages import A, B, D, format_time, mac_to_number, temperature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.mqtt.codec.packets import Publish

TEMPERATURE: SeriesKey = (mac_to_number(D), 1, 0x8800)
"""Series that most tests use."""

_MAX_CHECKS = 100
"""More checks than are ever needed until no gap is due."""


class Ack(NamedTuple):
    """Ack as a gateway receives it."""

    topic: str
    time: str
    type: int


class RecordingTransport:
    """Transport that records the sent messages."""

    def __init__(self) -> None:
        self.sent: list[Publish] = []

    def send(self, messages: Sequence[Publish]) -> None:
        """Record the messages; see `Transport`."""
        self.sent += messages

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> None:
        """Ignore the subscription: no messages are received."""

    def connected_gateways(self) -> None:
        """Return None: the connected gateways are unknown."""

    def hears_requests(self, gateway: str) -> bool:  # noqa: ARG002 # every gateway does
        return True

    def connection_id(self, gateway: str) -> None:
        """Return None: connections are unknown."""

    def last_connection_id(self, gateway: str) -> None:
        """Return None: connections are unknown."""

    async def send_urgent(self, message: Publish) -> None:
        """Ignore the message; see `Transport`."""

    @property
    def unavailable_reason(self) -> None:
        """None: the transport is always available."""


class AckHarness:
    """Two gateways that accept acks, and the acknowledger of their samples."""

    def __init__(self, ingest_harness: IngestHarness) -> None:
        self.ingest_harness = ingest_harness
        self.transport = RecordingTransport()
        self.acknowledger = self._start()

    def _start(self, prefix: str = "") -> SampleAcknowledger:
        acknowledger = SampleAcknowledger(self.transport, prefix=prefix, now=self.ingest_harness.now)
        self.ingest_harness.acking_gateways.update((mac_to_number(A), mac_to_number(B)))
        self.ingest_harness.ingest.subscribe(acknowledger)
        return acknowledger

    async def restart(self, *, after: int = SECOND) -> None:
        """Simulate a crash, and a start after some milliseconds."""
        self.ingest_harness.now += after
        await self.ingest_harness.restart()
        self.acknowledger = self._start()
        self.acknowledger.restore(self.load_series())

    async def commit(self, *messages: Publish) -> list[Ack]:
        """Commit messages as one batch. Return their acks."""
        self.transport.sent.clear()
        await self.ingest_harness.commit(*messages)
        await eventually_async(lambda: not self.acknowledger.has_backlog, "the last acknowledgment")
        return [_decode_ack(message) for message in self.transport.sent]

    async def commit_samples(self, *indexes: int, gateway: str = A, device: str = D) -> list[int]:
        """Commit samples made a minute apart, at the time of the newest. Return the types of their acks."""
        self.ingest_harness.now = max(self.ingest_harness.now, sample_time(max(indexes)))
        messages = [
            temperature(sample_time(index), gateway=gateway, device=device, seq=index % 256)
            for index in indexes
        ]
        return [ack.type for ack in await self.commit(*messages)]

    async def check_gaps(self) -> None:
        """Let some time pass, and check all due gaps."""
        self.ingest_harness.now += 11 * SECOND
        for _ in range(_MAX_CHECKS):
            before = self.gaps
            await check_due_gaps(
                self.acknowledger, self.ingest_harness.store, lambda: self.ingest_harness.now
            )
            if self.gaps == before:
                return
        raise AssertionError("the checks do not end")

    @property
    def series(self) -> SeriesState:
        """Series that most tests use."""
        return self.acknowledger.series[TEMPERATURE]

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Gaps of that series, by the indexes of samples."""
        return [(sample_index(gap.since), sample_index(gap.until)) for gap in self.series.gaps or ()]

    @property
    def complete_up_to(self) -> float | None:
        """Index of the sample up to which nothing is missing."""
        until = complete_up_to([self.series], self.ingest_harness.now)
        return None if until is None else sample_index(until)

    def load_series(self) -> dict[SeriesKey, SeriesState]:
        """Load the series stored in the database."""
        return self.ingest_harness.database.read_now(store.load_series)

    def stored_complete_up_to(self) -> float | None:
        """Return `complete_up_to` of the stored series, as clients see it."""
        stored = self.ingest_harness.database.read_now(store.list_series, mac_to_number(D), 0x8800)
        until = complete_up_to(stored, self.ingest_harness.now)
        return None if until is None else sample_index(until)

    def close(self) -> None:
        """Wait for running work, then close the store."""
        self.ingest_harness.close()


def sample_time(index: int) -> int:
    """Return the time of a sample."""
    return NOON + index * MINUTE


def sample_index(time: int) -> float:
    """Return the index of the sample with this time."""
    return (time - NOON) / MINUTE


def _decode_ack(message: Publish) -> Ack:
    assert (message.qos, message.retain) == (1, False)
    fields = json.loads(message.payload)
    ack = Ack(message.topic, fields.pop("time"), fields.pop("type"))
    assert fields == {}
    return ack


def build_ack(end: str, time: int, type_: int = 0, *, gateway: str = A, device: str = D) -> Ack:
    """Build an ack; `end` is the operation and the identifier."""
    return Ack(f"mt/gateway/{gateway}/request/{device}/{end}", format_time(time), type_)


def to_rows(series: dict[SeriesKey, SeriesState]) -> dict[SeriesKey, tuple[object, ...]]:
    """Return the columns that tables have of the series."""
    return {
        key: (
            state.time,
            state.seq,
            state.unfilled,
            [(gap.since, gap.until, gap.found_at, gap.lost_at) for gap in state.gaps or ()],
        )
        for key, state in series.items()
    }


async def assert_flushed(harness: AckHarness) -> None:
    """Flush changes, and check that the tables and counts equal the series in memory."""
    await harness.ingest_harness.ingest.flush()
    assert to_rows(harness.load_series()) == to_rows(harness.acknowledger.series)
    gaps = [gap for series in harness.acknowledger.series.values() for gap in series.gaps or ()]
    counts = harness.acknowledger.gap_index
    assert counts.lost == sum(gap.lost_at is not None for gap in gaps)
    assert counts.open == len(gaps) - counts.lost
    assert counts.unchecked == sum(
        not series.is_gap_checked for series in harness.acknowledger.series.values()
    )
