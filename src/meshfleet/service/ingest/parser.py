"""Messages become a draft. The straight line from the network to the database begins here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedTopic, UnclaimedGateway, WireError
from meshfleet.mqtt.codec.packets import OversizedPublish
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, mac_from_int, mac_to_int
from meshfleet.protocol.topics import ReportTopic, TopicCodec
from meshfleet.service.ingest.handlers import build_handler
from meshfleet.service.ingest.rejects import build_oversize_error, build_reject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.ingest.gateway_admission import GatewayAdmission
    from meshfleet.service.ingest.handlers import ReportHandler
    from meshfleet.service.ingest.parsed_batch import ParsedBatch


# What the topic of a report says.

_MAX_ENDPOINTS: Final = 1 << 18
_MAX_HANDLERS: Final = 1 << 13
"""How many are remembered."""

ReportEndpoint: TypeAlias = tuple[int, int]
"""Of which device something is reported, and by which gateway."""


class TopicCache:
    """Topics of reports, as places and subjects."""

    def __init__(self, prefix: str) -> None:
        self._topics = TopicCodec(prefix, identifier_names=BUILTIN_CATALOGUE.names)
        anybody = Mac("0" * 12)
        self.prefix_length = len(self._topics.format_topic(ReportTopic(anybody, anybody, Kind.DFU))) - len(
            f"/{Kind.DFU}"
        )
        """How long the front of a topic is."""
        self.endpoints: dict[str, ReportEndpoint] = {}
        self._gateways: dict[int, int] = {}
        """Each number once, however many devices there are behind a gateway."""
        self.handlers: dict[str, ReportHandler] = {}

    def parse_topic(self, text: str) -> tuple[ReportEndpoint, ReportHandler]:
        """Read a topic, and remember its parts; raises a `WireError` for what is no report."""
        topic = self._topics.parse_uncached(text)
        if not isinstance(topic, ReportTopic):
            raise MalformedTopic("topic", f"{quote_input(text)} is not that of a report")
        gateway = mac_to_int(topic.gateway)
        place = mac_to_int(topic.device), self._gateways.setdefault(gateway, gateway)
        about = build_handler(topic)
        if len(self.endpoints) >= _MAX_ENDPOINTS:
            self.endpoints.clear()
            self._gateways.clear()
        if len(self.handlers) >= _MAX_HANDLERS:
            self.handlers.clear()
        self.endpoints[text[: self.prefix_length]] = place
        self.handlers[text[self.prefix_length :]] = about
        return place, about


_EVERY_GATEWAY: Final = mac_to_int(EVERY_GATEWAY)
"""Which is nobody, whoever claims to be it."""


class ReportParser:
    """Reads messages. What cannot be read is a reject, and stops nobody (report-30)."""

    def __init__(self, prefix: str, admission: GatewayAdmission | None) -> None:
        self._topic_cache = TopicCache(prefix)
        self._admission = admission

    def parse(self, messages: Sequence[Publish], batch: ParsedBatch) -> None:
        """Add what messages say to a draft."""
        front, places, subjects = (
            self._topic_cache.prefix_length,
            self._topic_cache.endpoints,
            self._topic_cache.handlers,
        )
        seen, gateways, guests, shifts = (
            batch.report_kinds,
            batch.report_gateways,
            self._admission,
            batch.clock_shifts,
        )
        for message in messages:
            topic = message.topic
            place, subject = places.get(topic[:front]), subjects.get(topic[front:])
            try:
                if place is None or subject is None:
                    place, subject = self._topic_cache.parse_topic(topic)
                device, gateway = place
                if guests is not None and gateway not in guests.claimed:
                    self._admit_gateway(guests, gateway, batch)
                if type(message) is OversizedPublish:
                    raise build_oversize_error(message)
                name, take = subject
                if gateway in shifts:
                    batch.set_shift(
                        shifts[gateway], unconfirmed=None if batch.is_shift_confirmed(gateway) else gateway
                    )
                    try:
                        take(batch, device, gateway, message.payload)
                    finally:
                        batch.set_shift(0)
                else:
                    take(batch, device, gateway, message.payload)
            except WireError as exc:
                batch.rejects.append(build_reject(message, exc, batch.now))
            else:
                seen.append(name)
                gateways.append(gateway)

    def _admit_gateway(self, admission: GatewayAdmission, gateway: int, batch: ParsedBatch) -> None:
        """A gateway that nobody claimed speaks (rest-79)."""
        if not admission.autoclaim or gateway == _EVERY_GATEWAY:
            batch.unclaimed_gateways.add(gateway)
            raise UnclaimedGateway("gateway", f"{mac_from_int(gateway)} is not claimed")
        batch.new_gateways.add(gateway)
