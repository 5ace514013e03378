"""MQTT subscriptions to the reports of gateways, which are decoded to typed values."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from meshfleet.client.arguments import normalize_mac, parse_enum, to_tuple
from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedInput, PayloadTooLarge
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
    """Report about a device that a gateway published over MQTT."""

    gateway: Mac
    device: Mac
    kind: Kind
    identifier: AnyIdentifier | None
    """Hex id of the identifier, or its name in a decoded report; None for kinds without an identifier."""
    body: reports.Report
    """Content of the report; the type depends on `kind`, see `meshfleet.client.reports`."""
    received: datetime
    """Time at which this program received the report, in UTC."""


class ReportFilter(Struct, frozen=True, kw_only=True):
    """Selects reports by gateway, device and kind. None and an empty set match all reports."""

    gateway: Mac | None
    device: Mac | None
    kinds: frozenset[Kind]

    @classmethod
    def parse(
        cls, gateway: str | None, device: str | None, kinds: Kind | str | Iterable[Kind | str]
    ) -> ReportFilter:
        """Create a filter from the arguments of `Mesh.reports`. Raise `MalformedInput` for invalid values."""
        return cls(
            gateway=None if gateway is None else normalize_mac(gateway),
            device=None if device is None else normalize_mac(device, "device"),
            kinds=frozenset(parse_enum(Kind, each, "kind") for each in to_tuple(kinds)),
        )

    def topic_filters(self, topics: TopicCodec) -> list[str]:
        """Return the MQTT topic filters to subscribe to. They may match reports that `matches` refuses."""
        prefix = f"{topics.report_filter(self.gateway).removesuffix('#')}{self.device or '+'}/"
        kinds = set(self.kinds)
        if Kind.MEASUREMENT_ERROR_DECODED in kinds:
            kinds.add(Kind.MEASUREMENT_ERROR)  # its topic may also have a name (topic-16)
        return [f"{prefix}{kind}/#" for kind in sorted(kinds)] or [f"{prefix}#"]

    def matches(self, topic: ReportTopic) -> bool:
        """Return whether the filter selects a report with this topic.

        A persistent MQTT session may also deliver reports for topic filters of an earlier program.
        """
        return (
            self.gateway in {None, topic.gateway}
            and self.device in {None, topic.device}
            and (not self.kinds or topic.kind in self.kinds)
        )


class ReportSubscription:
    """Receives reports on an MQTT connection of its own, for one call of `Mesh.reports`."""

    def __init__(
        self, address: BrokerAddress, client_id: str, topics: TopicCodec, *, clean: bool, options: MqttOptions
    ) -> None:
        self._topics = topics
        self._mqtt = MqttClient(
            address, client_id, clean=clean, options=replace(options, single_message_batches=True)
        )
        self.rejected = 0
        """Number of received reports that could not be decoded."""

    async def receive(self, report_filter: ReportFilter) -> AsyncGenerator[Report, None]:
        """Iterate over the reports that match the filter, until `close` is called.

        A report is acknowledged when the next report is requested. If the program ends while it processes a
        report, a persistent session delivers this report again.
        """
        async with self._mqtt as mqtt:
            await mqtt.subscribe(*report_filter.topic_filters(self._topics))
            async for batch in mqtt:
                for message in batch.messages:
                    if (report := self._decode_report(message, report_filter)) is not None:
                        yield report
                batch.acknowledge()

    async def close(self) -> None:
        """Disconnect from the broker, which ends the iteration over `receive`."""
        await self._mqtt.close()

    def _decode_report(self, message: Publish, report_filter: ReportFilter) -> Report | None:
        try:
            topic = self._topics.parse(message.topic)
            if not isinstance(topic, ReportTopic) or not report_filter.matches(topic):
                return None
            if isinstance(message, OversizedPublish):
                raise PayloadTooLarge("payload", f"has {message.size} bytes")
            body = reports.decode_report(topic.kind, message.payload)
        except MalformedInput as exc:
            self.rejected += 1
            # Without the text of the error, which may quote a part of the payload.
            _log.warning(
                "skipped a report on %s that cannot be decoded: %s, %s",
                quote_input(message.topic),
                exc.field,
                exc.code,
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
