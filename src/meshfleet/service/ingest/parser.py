"""Parses MQTT messages into reports, the first step of ingest, called for every message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedInput, MalformedTopic, UnclaimedGateway
from meshfleet.mqtt.codec.packets import OversizedPublish, Publish
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, mac_from_int, mac_to_int
from meshfleet.protocol.topics import ReportTopic, TopicCodec
from meshfleet.service.ingest.handlers import ReportHandler, build_handler
from meshfleet.service.ingest.rejects import build_oversize_error, build_reject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.service.ingest.gateway_admission import GatewayAdmission
    from meshfleet.service.ingest.parsed_batch import ParsedBatch


# Cache of parsed topics.

_MAX_ENDPOINTS: Final = 1 << 18
"""Maximum number of cached pairs of device and gateway; a full cache is cleared."""

_MAX_HANDLERS: Final = 1 << 13
"""Maximum number of cached report handlers; a full cache is cleared."""

ReportEndpoint: TypeAlias = tuple[int, int]
"""MACs as integers: the device of a report, and the gateway that sent the report."""


class TopicCache:
    """Caches parsed report topics: device and gateway by the start of a topic, the handler by its ending."""

    def __init__(self, prefix: str) -> None:
        self._topics = TopicCodec(prefix, identifier_names=BUILTIN_CATALOGUE.names)
        any_mac = Mac("0" * 12)
        self.prefix_length = len(self._topics.format_topic(ReportTopic(any_mac, any_mac, Kind.DFU))) - len(
            f"/{Kind.DFU}"
        )
        """Length of a report topic up to the slash before the kind; equal for all report topics."""
        self.endpoints: dict[str, ReportEndpoint] = {}
        self._gateways: dict[int, int] = {}
        """One int object per gateway, shared by the endpoints of all its devices to save memory."""
        self.handlers: dict[str, ReportHandler] = {}

    def parse_topic(self, text: str) -> tuple[ReportEndpoint, ReportHandler]:
        """Parse and cache a report topic. Raise a `MalformedInput` if `text` is not a report topic."""
        topic = self._topics.parse_uncached(text)
        if not isinstance(topic, ReportTopic):
            raise MalformedTopic("topic", f"{quote_input(text)} is not a report topic")
        gateway = mac_to_int(topic.gateway)
        endpoint = mac_to_int(topic.device), self._gateways.setdefault(gateway, gateway)
        handler = build_handler(topic)
        if len(self.endpoints) >= _MAX_ENDPOINTS:
            self.endpoints.clear()
            self._gateways.clear()
        if len(self.handlers) >= _MAX_HANDLERS:
            self.handlers.clear()
        self.endpoints[text[: self.prefix_length]] = endpoint
        self.handlers[text[self.prefix_length :]] = handler
        return endpoint, handler


_EVERY_GATEWAY: Final = mac_to_int(EVERY_GATEWAY)
"""Address that means "all gateways" in topics; no gateway has this address."""


class ReportParser:
    """Parses MQTT messages into a batch.

    An invalid message is recorded as a rejected report; the other messages are still parsed (report-30).
    """

    def __init__(self, prefix: str, admission: GatewayAdmission | None) -> None:
        self._topic_cache = TopicCache(prefix)
        self._admission = admission

    def parse(self, messages: Sequence[Publish], batch: ParsedBatch) -> None:
        """Parse MQTT messages. Add the report of each valid message, or else a reject, to `batch`."""
        topic_cache, admission, clock_shifts = self._topic_cache, self._admission, batch.clock_shifts
        endpoints, handlers = topic_cache.endpoints, topic_cache.handlers
        prefix_length = topic_cache.prefix_length
        report_kinds, report_gateways = batch.report_kinds, batch.report_gateways
        for message in messages:
            topic = message.topic
            endpoint, handler = endpoints.get(topic[:prefix_length]), handlers.get(topic[prefix_length:])
            try:
                if endpoint is None or handler is None:
                    endpoint, handler = topic_cache.parse_topic(topic)
                device, gateway = endpoint
                if admission is not None and gateway not in admission.claimed:
                    self._admit_gateway(admission, gateway, batch)
                if type(message) is OversizedPublish:
                    raise build_oversize_error(message)
                kind, handle_payload = handler
                if gateway in clock_shifts:
                    batch.set_shift(
                        clock_shifts[gateway],
                        unconfirmed=None if batch.is_shift_confirmed(gateway) else gateway,
                    )
                    try:
                        handle_payload(batch, device, gateway, message.payload)
                    finally:
                        batch.set_shift(0)
                else:
                    handle_payload(batch, device, gateway, message.payload)
            except MalformedInput as exc:
                batch.rejects.append(build_reject(message, exc, batch.now))
            else:
                report_kinds.append(kind)
                report_gateways.append(gateway)

    def _admit_gateway(self, admission: GatewayAdmission, gateway: int, batch: ParsedBatch) -> None:
        """Add an unclaimed gateway to the new gateways of the batch if autoclaim is on (rest-79).

        Raise `UnclaimedGateway` if autoclaim is off.
        """
        if not admission.autoclaim or gateway == _EVERY_GATEWAY:
            batch.unclaimed_gateways.add(gateway)
            raise UnclaimedGateway("gateway", f"{mac_from_int(gateway)} is not claimed")
        batch.new_gateways.add(gateway)
