"""What gateways report of devices, one after the other, as typed values."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from meshfleet.client.arguments import normalize_mac, parse_enum, to_tuple
from meshfleet.errors import quote_input
from meshfleet.errors.protocol import PayloadTooLarge, WireError
from meshfleet.mqtt.client import MqttClient, OversizedPublish
from meshfleet.protocol import reports
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import Mac
from meshfleet.protocol.topics import AnyIdentifier, ReportTopic

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from meshfleet.mqtt.client import BrokerAddress, MqttOptions, Publish
    from meshfleet.protocol.topics import TopicCodec

_log = logging.getLogger(__name__)


class Report(Struct, frozen=True, kw_only=True):
    """What a gateway said of a device, and when it came."""

    gateway: Mac
    device: Mac
    kind: Kind
    identifier: AnyIdentifier | None
    """In hex, or by its name in a decoded report; None where the kind has none."""
    body: reports.Report
    received: datetime


class ReportFilter(Struct, frozen=True, kw_only=True):
    """Which reports somebody wants to hear; None and nothing are all."""

    gateway: Mac | None
    device: Mac | None
    kinds: frozenset[Kind]

    @classmethod
    def parse(
        cls, gateway: str | None, device: str | None, kinds: Kind | str | Iterable[Kind | str]
    ) -> ReportFilter:
        """Read what a caller says."""
        return cls(
            gateway=None if gateway is None else normalize_mac(gateway),
            device=None if device is None else normalize_mac(device, "device"),
            kinds=frozenset(parse_enum(Kind, each, "kind") for each in to_tuple(kinds)),
        )

    def topic_filters(self, topics: TopicCodec) -> list[str]:
        """The topic filters that bring it, and perhaps a little more."""
        front = f"{topics.report_filter(self.gateway).removesuffix('#')}{self.device or '+'}/"
        words = set(self.kinds)
        if Kind.MEASUREMENT_ERROR_DECODED in words:
            words.add(Kind.MEASUREMENT_ERROR)  # where a name may stand too (topic-16)
        return [f"{front}{word}/#" for word in sorted(words)] or [f"{front}#"]

    def matches(self, topic: ReportTopic) -> bool:
        """Whether a report is wanted: a session may bring what was wanted in an earlier life."""
        return (
            self.gateway in {None, topic.gateway}
            and self.device in {None, topic.device}
            and (not self.kinds or topic.kind in self.kinds)
        )


class ReportSubscription:
    """The reports of one iterator, on a connection of its own."""

    def __init__(
        self, address: BrokerAddress, client_id: str, topics: TopicCodec, *, clean: bool, options: MqttOptions
    ) -> None:
        self._topics = topics
        self._mqtt = MqttClient(
            address, client_id, clean=clean, options=replace(options, single_message_batches=True)
        )
        self.rejected = 0
        """How many could not be read."""

    async def receive(self, report_filter: ReportFilter) -> AsyncGenerator[Report, None]:
        """Report after report, until the connection is closed by us.

        One is acknowledged when the next is asked for: what the program was busy with when it ended comes
        again, if the session is kept.
        """
        async with self._mqtt as line:
            await line.subscribe(*report_filter.topic_filters(self._topics))
            async for batch in line:
                for message in batch.messages:
                    if (report := self._decode(message, report_filter)) is not None:
                        yield report
                batch.acknowledge()

    async def close(self) -> None:
        """End it; who iterates comes to the end."""
        await self._mqtt.close()

    def _decode(self, message: Publish, report_filter: ReportFilter) -> Report | None:
        try:
            topic = self._topics.parse(message.topic)
            if not isinstance(topic, ReportTopic) or not report_filter.matches(topic):
                return None
            if isinstance(message, OversizedPublish):
                raise PayloadTooLarge("payload", f"has {message.size} bytes")
            body = reports.decode_report(topic.kind, message.payload)
        except WireError as exc:
            self.rejected += 1
            # Not the whole error, which may repeat a part of the payload.
            _log.warning(
                "a report on %s cannot be read: %s, %s", quote_input(message.topic), exc.field, exc.code
            )
            return None
        return Report(
            gateway=topic.gateway,
            device=topic.device,
            kind=topic.kind,
            identifier=topic.identifier,
            body=body,
            received=datetime.now(UTC),
        )
